"""T: what a training loop of the user's own must obey, next to the task that says the same.

The loop is a function here, run by every virtual worker; everything below it is what `paceline run` has.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank
from paceline.laws.lab import RANDOM_SPEEDS, Finding, Lab, Law, equal_states, report_of, run, within
from paceline.laws.lab import distance as distance_of
from paceline.laws.tasks import ScriptedTask
from paceline.plan.catalog import MODES, SCRIPT_TASK
from paceline.plan.plan import Dtype, Plan
from paceline.sync.samples import SampleStream
from paceline.tasks.script import ScriptParts, provide
from paceline.training.script import unoffered_reason
from paceline.worker.entry.virtual import Incidents, VirtualCluster, VirtualRun
from paceline.worker.gradient import Source
from paceline.worker.loop import LoopResult, Steps, Worker
from paceline.worker.script.data import ScriptSource
from paceline.worker.script.facts import ScriptFacts, ScriptFile
from paceline.worker.script.hosts import SERVER, AloneHost, open_loop_of
from paceline.worker.script.port import OpenLoop, ScriptDoneError
from paceline.worker.script.run import Run
from paceline.worker.script.session import ScriptSession

Script = Callable[[Run], object]
TASK = "paceline.laws.tasks:ScriptedTask"
SCRIPTED = tuple(name for name, mode in MODES.items() if unoffered_reason(mode) is None)
_NO_FILE = ScriptFile(path="a function")
EPOCHS = 99  # more than a plan has: its steps end the loop


def training(
    run: Run, *, accumulate: int = 1, limit: float | None = None, batch: int = 12, dropout: float = 0.1
) -> nn.Module:
    """The loop of ScriptedTask, written by hand."""
    torch.manual_seed(run.seed)
    task = ScriptedTask(seed=run.seed, dropout=dropout)
    model: nn.Module = task.model()
    optimizer = task.optimizer(model.parameters())
    loader = DataLoader(TensorDataset(*task.samples().columns), batch_size=batch // accumulate, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader, accumulate=accumulate)
    for _ in run.epochs(EPOCHS):
        for number, (inputs, targets) in enumerate(loader):
            run.backward((model(inputs) - targets).square().mean() / accumulate)
            if number % accumulate < accumulate - 1:
                continue
            if limit is not None:
                run.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()
    return model


def t1_a_script_is_the_task(lab: Lab) -> Finding:
    """With dropout, batch normalisation and random speeds: the same bits, from the same shares."""
    plan = replace(lab.plan(stragglers=RANDOM_SPEEDS), task=TASK)
    task = run(plan)
    script = run_script(plan, training)
    if report_of(task).positions != report_of(script).positions:
        return Finding(False, "the shares that were done differ")
    return equal_states(script.final_state(), task.final_state(), of="a script, and the task")


def t2_one_worker_is_the_plain_loop(lab: Lab) -> Finding:
    """Without random numbers and in the run's order of samples: what torch alone computes."""
    plan = replace(lab.plan(), task=TASK, task_options={"dropout": 0.0})
    script = run_script(plan, partial(training, batch=plan.global_batch, dropout=0.0))
    torch.manual_seed(plan.seed)
    task = ScriptedTask(seed=plan.seed, dropout=0.0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    for step in range(plan.steps):
        inputs, targets = samples.batch(stream.take(step * plan.global_batch, plan.global_batch))
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    plain = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return equal_states(script.final_state(), plain, of="a script with one worker, and the plain loop")


def t3_every_share_counts_once(lab: Lab) -> Finding:
    """Also where steps are abandoned, or a worker has no part in an epoch."""
    plan = replace(lab.plan(stragglers=RANDOM_SPEEDS, steps=24), task=TASK)
    script = run_script(plan, training)
    positions = report_of(script).positions
    expected = tuple(range(plan.total_gradients))
    abandoned = sum(len(rows) for rows in script.history.abandoned.values())
    return Finding(
        positions == expected,
        f"{len(set(positions))} of {len(expected)} shares, {len(positions)} gradients, {abandoned} abandoned",
    )


def t4_micro_batches_and_a_limit(lab: Lab) -> Finding:
    """Four micro-batches and a clipped mean are those of the task; torch's limit adds 1e-6 to the norm."""
    plan = lab.plan(grad_accumulation=4, batch_sizes=(8, 8, 8), task_options={"dropout": 0.0})
    plan = replace(plan, task=TASK)
    task = run(replace(plan, clip_norm=0.1))
    script = run_script(plan, partial(training, accumulate=4, limit=0.1, batch=24, dropout=0.0))
    return within(distance_of(script, task), 1e-5)


def t5_the_objects_stay_the_same(lab: Lab) -> Finding:
    """`prepare` returns the model that it was given, and its state has the names that it had."""
    names: list[list[str]] = []

    def noting(run: Run) -> object:
        names.append(list(ScriptedTask(seed=0).model().state_dict()))
        model = training(run)
        names.append(list(model.state_dict()))
        return model

    run_script(replace(lab.plan(), task=TASK), noting)
    kept = all(mine == names[0] for mine in names)
    return Finding(kept, f"{len(names[0])} names, before and after")


def run_script(plan: Plan, script: Script) -> VirtualRun:
    """The script in every worker of this plan, in virtual time; an error of any worker is an error here."""
    torch.set_default_dtype(torch.float64 if plan.dtype is Dtype.FLOAT64 else torch.float32)
    outline = _Outline(plan)
    try:
        script(Run(ScriptSession(outline)))  # for the server: up to its first batch
    except ScriptDoneError:
        done = _ScriptCluster(replace(plan, task=SCRIPT_TASK, task_options={}), script).run()
    for error in done.errors:
        if error is not None:
            raise error
    return done


class _Outline(AloneHost):
    """Ends a script at its first batch, when everything is prepared."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(_NO_FILE, plan.seed)
        self.rank = SERVER
        self.plan = plan

    def open_loop(self, parts: ScriptParts, facts: ScriptFacts) -> OpenLoop:
        provide(parts)
        raise ScriptDoneError


class _VirtualHost(AloneHost):
    """A virtual worker."""

    def __init__(self, plan: Plan, rank: Rank, open_worker: Callable[[], Worker]) -> None:
        super().__init__(_NO_FILE, plan.seed)
        self.rank = int(rank)
        self.name = f"worker-{rank}"
        self.plan = plan
        self._open_worker = open_worker

    def open_loop(self, parts: ScriptParts, facts: ScriptFacts) -> OpenLoop:
        assert self.plan is not None, "a virtual worker has a plan"
        provide(parts)
        worker = self._open_worker()
        return open_loop_of(self.plan, worker, self._steps(worker))

    def _steps(self, worker: Worker) -> Steps[LoopResult]:
        result = yield from worker.steps(StepClock(0))
        worker.strategy.close()
        return result


class _ScriptCluster(VirtualCluster):
    def __init__(self, plan: Plan, script: Script) -> None:
        super().__init__(plan, Incidents())
        self._script = script

    def _live(self, rank: Rank) -> None:
        session = ScriptSession(_VirtualHost(self._plan, rank, partial(self._open_worker, rank)))
        try:
            self._script(Run(session))
            session.close(None)
        finally:
            self._run.ended_s[rank] = self._turns.now_ns() / 1e9

    def _open_worker(self, rank: Rank) -> Worker:
        worker = self._new_worker(rank)
        worker.strategy.prepare(worker.replica, StepClock(0))
        return worker

    def _new_source(self) -> Source:
        return ScriptSource(self._plan, self._task.samples(), self._device)


LAWS = (
    Law(
        "T1",
        "a script and the task that says the same end with the same bits",
        SCRIPTED,
        t1_a_script_is_the_task,
        per_mode=True,
    ),
    Law(
        "T2",
        "a script with one worker computes what the plain loop computes",
        ("single",),
        t2_one_worker_is_the_plain_loop,
    ),
    Law(
        "T3", "every share of a script's run counts once", SCRIPTED, t3_every_share_counts_once, per_mode=True
    ),
    Law("T4", "micro-batches and a limit are those of the task", ("ssgd",), t4_micro_batches_and_a_limit),
    Law("T5", "prepare returns the same model with the same names", ("ssgd",), t5_the_objects_stay_the_same),
)

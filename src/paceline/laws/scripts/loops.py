"""T: what a training loop of the user's own must obey, next to the task that says the same.

The loop is a function here, run by every virtual worker; everything below it is what `paceline run` has.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

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
from paceline.worker.script.hosts import SERVER, AloneHost
from paceline.worker.script.port import OpenLoop, ScriptDoneError, open_loop_of
from paceline.worker.script.run import Run
from paceline.worker.script.session import ScriptSession
from paceline.worker.script.suited import MODES_IN_TURN, STREAM_MODES, is_meeting_mode

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


def gan(run: Run, *, every: int = 2, batch: int = 12) -> None:
    """Two optimizers that step in turn, the generator's in every second step."""
    torch.manual_seed(run.seed)
    generator = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    critic = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (generator, critic)]
    columns = ScriptedTask(seed=run.seed).samples().columns
    loader = DataLoader(TensorDataset(*columns), batch_size=batch, shuffle=True)
    generator, critic, first, second, loader = run.prepare(generator, critic, *optimizers, loader)
    for _ in run.epochs(EPOCHS):
        for noise, real in loader:
            fake = generator(noise)
            second.zero_grad()
            run.backward((critic(real) - 1).square().mean() + critic(fake.detach()).square().mean())
            second.step()
            if run.step % every == 0:
                first.zero_grad()
                run.backward((critic(fake) - 1).square().mean())
                first.step()


def t6_optimizers_in_turn(lab: Lab) -> Finding:
    """All workers end with the same models; with ssgd they are those of one process with the union batch."""
    plan = replace(lab.plan(), task=TASK)
    together = run_script(plan, gan)
    apart = _first_that_differs(together)
    if apart is not None:
        return Finding(False, apart)
    if lab.mode != "ssgd":
        return Finding(True, f"the models of {plan.num_workers} workers are equal")
    alone = replace(lab.other("single"), task=TASK, batch_sizes=(plan.global_batch,))
    return within(distance_of(together, run_script(alone, gan)), 1e-12)


def t7_all_hold_the_runs_model(lab: Lab) -> Finding:
    """After the loop every worker's model is that of the run, in all its bits, also behind a server.

    A server computes no batch, so integer buffers (what BatchNorm counts) are compared without one only.
    """
    apart = _first_that_differs(run_script(replace(lab.plan(stragglers=RANDOM_SPEEDS), task=TASK), training))
    return Finding(apart is None, apart or "equal in all workers")


def _first_that_differs(done: VirtualRun) -> str | None:
    first = done.final_state()
    for rank, replica in sorted(done.replicas.items()):
        for name, tensor in replica.arena.named_state().items():
            if done.server is not None and not tensor.is_floating_point():
                continue
            if not torch.equal(tensor, first[name]):
                return f"{name} of worker {rank} differs"
    return None


def t8_the_rate_is_that_of_one_process(lab: Lab) -> Finding:
    """A schedule halves the rate after every third step, as in one process, on workers and on servers."""
    plan = replace(lab.plan(stragglers=RANDOM_SPEEDS), task=TASK)
    rates: dict[int, set[float]] = {}

    def scheduled(run: Run) -> None:
        model = ScriptedTask(seed=run.seed).model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        loader = DataLoader(TensorDataset(*ScriptedTask(seed=run.seed).samples().columns), batch_size=12)
        model, optimizer, loader, scheduler = run.prepare(model, optimizer, loader, scheduler)
        for _ in run.steps(plan.steps):
            for inputs, targets in loader:
                run.backward((model(inputs) - targets).square().mean() * 0)
                optimizer.step()
                rates.setdefault(run.step, set()).add(optimizer.param_groups[0]["lr"])
                scheduler.step()

    run_script(plan, scheduled)
    wrong = [step for step, seen in sorted(rates.items()) if seen != {0.5 ** (step // 3)}]
    return Finding(not wrong and len(rates) > 3, f"{len(rates)} steps, another rate at {wrong or 'none'}")


def t9_an_infinity_in_one_share(lab: Lab) -> Finding:
    """One worker's gradient overflows in step 2: all workers skip the update, and have the same scale.

    Another worker skips its batch in the first step, and in that in which the scale grows.
    """
    plan = replace(lab.plan(), task=TASK)
    scales: dict[int, list[float]] = {}
    changed: list[bool] = []

    def scaled(run: Run) -> None:
        torch.manual_seed(run.seed)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
        columns = ScriptedTask(seed=run.seed).samples().columns
        loader = DataLoader(TensorDataset(*columns), batch_size=12)
        model, optimizer, loader, scaler = run.prepare(model, optimizer, loader, scaler)
        for _ in run.epochs(EPOCHS):
            for inputs, targets in loader:
                if run.rank == 0 and run.step in (0, 6):
                    run.skip()
                    continue
                before = model.weight.detach().clone()
                factor = float("inf") if run.step == 2 and run.rank == plan.num_workers - 1 else 1.0
                run.backward(scaler.scale((model(inputs) - targets).square().mean() * factor))
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                changed.append(run.step == 2 and not torch.equal(before, model.weight))
                scales.setdefault(run.step, []).append(scaler.get_scale())

    run_script(plan, scaled)
    agree = all(len(set(each)) == 1 for each in scales.values())
    # Halved by the overflow, and doubled after every fourth finite step.
    is_right = scales[1][0] == 1024.0 and scales[2][0] == 512.0 and scales[6][0] == 1024.0
    return Finding(agree and is_right and not any(changed), f"scales {[each[0] for each in scales.values()]}")


def t10_augmentation_belongs_to_the_sample(lab: Lab) -> Finding:
    """Random numbers of a sample do not depend on how many workers share a batch, or with how much each."""
    plans = [lab.plan(batch_sizes=sizes) for sizes in ((4, 4, 4), (7, 3, 2))]
    first, second = (_augmented(replace(plan, task=TASK)) for plan in plans)
    return Finding(first == second and len(first) > 90, f"{len(first)} samples, equal: {first == second}")


class _Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Adds noise to a sample that it loads."""

    def __init__(self, seed: int, seen: dict[tuple[int, float], int]) -> None:
        self._columns = ScriptedTask(seed=seed).samples().columns
        self._seen = seen

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = (column[index] for column in self._columns)
        noise = torch.randn(()) + random.random()
        key = index, float(noise)
        self._seen[key] = self._seen.get(key, 0) + 1
        return inputs + noise, targets


def _augmented(plan: Plan) -> dict[tuple[int, float], int]:
    """How often each sample was loaded with each noise."""
    seen: dict[tuple[int, float], int] = {}

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(_Augmented(run.seed, seen), batch_size=12, shuffle=True)
        model, optimizer, loader = run.prepare(model, optimizer, loader)
        for _ in run.epochs(EPOCHS):
            for inputs, targets in loader:
                run.backward((model(inputs) - targets).square().mean())
                optimizer.step()

    run_script(plan, script)
    return seen


def t11_streams(lab: Lab) -> Finding:
    """Every worker reads its part of a stream in order, over several passes, and loads no record twice."""
    plan = replace(lab.plan(stragglers=RANDOM_SPEEDS, batch_sizes=(4,) * lab.plan().num_workers), task=TASK)
    used: dict[int, list[int]] = {}

    def script(run: Run) -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(_Numbers(60), batch_size=12)
        model, optimizer, loader = run.prepare(model, optimizer, loader)
        for _, numbers in zip(run.steps(plan.steps), loader, strict=False):
            used.setdefault(run.rank, []).extend(int(number) for number in numbers)
            run.backward(model(numbers[:, None].to(model.weight.dtype) / 60).square().mean())
            optimizer.step()

    run_script(plan, script)
    workers = plan.num_workers
    each = 4 * plan.steps
    wrong = [
        rank for rank in range(workers) if used[rank] != list(islice(cycle(range(rank, 60, workers)), each))
    ]
    return Finding(not wrong, f"{each} records of each of {workers} parts; wrong parts: {wrong or 'none'}")


class _Numbers(IterableDataset[int]):
    """0, 1, 2 and so on, with a state."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._at = 0

    def __iter__(self) -> Iterator[int]:
        while self._at < self._count:
            self._at += 1
            yield self._at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


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
    Law(
        "T6",
        "optimizers that step in turn are those of one process",
        MODES_IN_TURN,
        t6_optimizers_in_turn,
        per_mode=True,
    ),
    Law(
        "T7",
        "after the loop all workers hold the run's model",
        SCRIPTED,
        t7_all_hold_the_runs_model,
        per_mode=True,
    ),
    Law(
        "T8",
        "the learning rate at a step is that of one process",
        tuple(name for name in SCRIPTED if is_meeting_mode(MODES[name])),
        t8_the_rate_is_that_of_one_process,
        per_mode=True,
    ),
    Law("T9", "an infinity in one share makes all skip", ("ssgd",), t9_an_infinity_in_one_share),
    Law(
        "T10",
        "a sample's augmentation depends on its position alone",
        ("ssgd",),
        t10_augmentation_belongs_to_the_sample,
    ),
    Law(
        "T11",
        "a stream is read by parts without a gap or a double",
        STREAM_MODES,
        t11_streams,
        per_mode=True,
    ),
)

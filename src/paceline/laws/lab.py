"""Where laws are checked: plans for the strategy on trial, run in virtual time.

`Lab("ssp")` tries the built-in mode. `Lab("ssp", subject="my_code:MySsp")` tries
a user's class by the laws of ssp. Other modes that a law compares with always
are the built-in ones.
"""

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from paceline.events.read import History, read_history
from paceline.events.summary import summarise
from paceline.launchers.local import LocalLauncher
from paceline.plan.catalog import MODES, TRANSPORTS
from paceline.plan.codec import Json
from paceline.plan.plan import Dtype, OptimizerChoice, Plan, StrategyOptions
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.samples import SampleStream, slice_of
from paceline.training.progress import Progress, SilentWatcher
from paceline.training.run import load_resumable, train
from paceline.worker.entry.virtual import VirtualRun, run_virtual
from paceline.worker.participant import state_hash
from paceline.worker.wiring import build_task, set_up_torch

# The harness laws compare it with what happened. A harness is any function that
# runs a plan and tells; ours runs it in virtual time and reads its own log.


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessReport:
    gradients: int
    positions: tuple[int, ...]  # the shares of the work that were done
    bytes_out: int
    bytes_in: int
    staleness: tuple[int, ...]  # of every applied gradient, in order; empty without a server
    delays_ns: dict[tuple[int, int], int]  # how long each step was made to take, by (rank, step)
    slept_ns: int  # between steps, neither waiting for others nor working


Harness = Callable[..., HarnessReport]


def report_of(done: VirtualRun) -> HarnessReport:
    rows = [(rank, row) for rank, worker_rows in done.history.steps.items() for row in worker_rows]
    summary = summarise(done.history)
    return HarnessReport(
        gradients=summary.gradients,
        positions=tuple(sorted(row.position for _, row in rows)),
        bytes_out=summary.bytes_out,
        bytes_in=summary.bytes_in,
        staleness=tuple(r.staleness for r in done.history.server if r.op == "apply"),
        delays_ns={(rank, row.step): row.delay_ns for rank, row in rows},
        slept_ns=sum(row.comm_ns for _, row in rows),
    )


TINY = "paceline.laws.tasks:TinyTask"
LEDGER = "paceline.laws.tasks:LedgerTask"
QUADRATIC = "paceline.laws.tasks:QuadraticTask"
PASSING = "paceline.laws.tasks:PassingTask"
PACE_S = 0.01
_OPTIONS = {
    "backup": StrategyOptions(backup_workers=1),
    "ssp": StrategyOptions(staleness=1),
    "dssp": StrategyOptions(staleness=1, staleness_range=2),
    "easgd": StrategyOptions(sync_every=4),
    "localsgd": StrategyOptions(sync_every=4),
    "fedavg": StrategyOptions(sync_every=4),
    # An outer step that gives the plain mean, so that every gradient counts 1/N here as elsewhere.
    "diloco": StrategyOptions(sync_every=4, outer_lr=1.0, outer_momentum=0.0),
    "onebit": StrategyOptions(freeze_after=5),
    "adaptive": StrategyOptions(sync_every=4),
}
RANDOM_SPEEDS = (StragglerRule(probability=0.4, factor=4.0), StragglerRule(worker=1, factor=1.7))


@dataclass(frozen=True, slots=True)
class RealRun:
    history: History
    state_sha256: tuple[str, ...]  # of each participant that holds a model, the server or rank 0 first


@dataclass(frozen=True, slots=True)
class Lab:
    mode: str
    subject: str | None = None
    launcher: LocalLauncher | None = None  # for the laws that start processes
    harness: Harness | None = None  # who runs a plan and tells about it; None: we do

    def plan(self, **changes: object) -> Plan:
        """A small plan for the strategy on trial, with `changes`."""
        return _plan(self.mode, self.subject or self.mode, **changes)

    def other(self, mode: str, **changes: object) -> Plan:
        """The same for a built-in mode to compare with."""
        return _plan(mode, mode, **changes)

    def report(self, plan: Plan, **how: object) -> HarnessReport:
        """What the program on trial says about a run of this plan."""
        return report_run(plan, **how) if self.harness is None else self.harness(plan, **how)

    def really_run(self, plan: Plan, *, stops_at: int | None = None) -> RealRun:
        """The plan as a user would run it: worker processes, a run folder, an event log.

        With `stops_at` it is asked to stop at about that step, and then resumed.
        """
        plan = _for_processes(plan, self.mode)
        with tempfile.TemporaryDirectory() as folder:
            if stops_at is None:
                result = train(plan, Path(folder), SilentWatcher(), warm=self.launcher)
            else:
                result = _stopped_and_resumed(plan, Path(folder), stops_at, self.launcher)
            history = read_history(Path(folder) / "events.jsonl")
        hashes = result["state_sha256"]
        assert isinstance(hashes, dict), "a finished run names its participants' states"
        return RealRun(history, tuple(str(hashes[worker]) for worker in sorted(hashes)))


class _Stopping(SilentWatcher):
    def __init__(self, launcher: LocalLauncher, stops_at: int) -> None:
        self._launcher = launcher
        self._stops_at = stops_at
        self._has_asked = False

    def progress(self, progress: Progress) -> None:
        if progress.step >= self._stops_at and not self._has_asked:
            self._has_asked = True
            self._launcher.stop()


def _stopped_and_resumed(
    plan: Plan, folder: Path, stops_at: int, warm: LocalLauncher | None
) -> dict[str, Json]:
    slow = replace(plan, pace_s=0.005)  # so that there is something left to do when the stop request arrives
    with LocalLauncher() if warm is None else nullcontext(warm) as launcher:
        first = train(slow, folder, _Stopping(launcher, stops_at), warm=launcher)
        assert first["stopped_early"], "the run stopped before its end"
        _, checkpoint = load_resumable(folder)
        return train(slow, folder, SilentWatcher(), warm=launcher, resume_from=checkpoint)


def _for_processes(plan: Plan, family: str) -> Plan:
    family = plan.mode if plan.mode in MODES else family
    return replace(plan, pace_s=0.0, timeout_s=60.0, transport=TRANSPORTS[MODES[family].channel][0])


def _plan(family: str, mode: str, **changes: object) -> Plan:
    num_workers = 1 if family == "single" else 3
    base = Plan(
        run="law",
        task=TINY,
        mode=mode,
        num_workers=num_workers,
        steps=12,
        batch_sizes=(),
        seed=7,
        dtype=Dtype.FLOAT64,
        strategy=_OPTIONS.get(family, StrategyOptions()),
        pace_s=PACE_S,
        timeout_s=3600.0,
    )
    plan = replace(base, **changes)  # type: ignore[arg-type]  # the names are Plan's own
    if not plan.batch_sizes:
        plan = replace(plan, batch_sizes=(4,) * plan.num_workers)
    if MODES[family].sums_updates and "lr_scale" not in changes:
        plan = replace(plan, lr_scale=1 / plan.num_workers)
    if MODES[family].optimizers and plan.optimizer is None:
        plan = replace(plan, optimizer=OptimizerChoice(name=min(MODES[family].optimizers), lr=0.01))
    return plan


def run(plan: Plan, **how: object) -> VirtualRun:
    """Run to the end; an error of any worker is an error here."""
    done = run_virtual(plan, **how)  # type: ignore[arg-type]  # the names are run_virtual's own
    for error in done.errors:
        if error is not None:
            raise error
    return done


def report_run(plan: Plan, **how: object) -> HarnessReport:
    return report_of(run(plan, **how))


def final_hash(plan: Plan, **how: object) -> str:
    return state_hash(run(plan, **how).final_state())


def distance(first: VirtualRun, other: VirtualRun) -> float:
    """The largest difference between two final states."""
    state = first.final_state()
    theirs = other.final_state()
    return max(float((state[name] - theirs[name]).abs().max()) for name in state)


def ledger(plan: Plan) -> Plan:
    """The plan on the ledger task, each sample seen exactly once, so that its entry tells its fate."""
    batch = (1,) * plan.num_workers
    return replace(
        plan, task=LEDGER, task_options={"num_samples": plan.steps * plan.num_workers}, batch_sizes=batch
    )


def ledger_places(plan: Plan) -> dict[tuple[int, int], int]:
    """Which entry of the ledger belongs to (rank, step)."""
    stream = SampleStream(num_samples=plan.total_samples, seed=plan.seed)
    places = {}
    for rank in range(plan.num_workers):
        for step in range(plan.steps):
            places[rank, step] = int(stream.take(*slice_of(rank, step, plan.batch_sizes))[0])
    return places


def sequential(
    plan: Plan, kind: Callable[..., torch.optim.Optimizer], **settings: float
) -> dict[str, Tensor]:
    """What torch itself computes with one process: the reference that shares no code with strategies."""
    set_up_torch(plan)
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model = task.model()
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    optimizer = kind(model.parameters(), **settings)
    for step in range(plan.steps):
        batch = samples.batch(stream.take(step * plan.global_batch, plan.global_batch))
        optimizer.zero_grad()
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@dataclass(frozen=True, slots=True)
class Finding:
    ok: bool
    measured: str


@dataclass(frozen=True, slots=True)
class Law:
    id: str
    what: str
    modes: tuple[str, ...]  # the built-in modes it speaks of
    check: Callable[[Lab], Finding]
    per_mode: bool = False  # checked once for each of its modes, as `U3.asgd`
    starts_processes: bool = False  # checked on real worker processes, not in virtual time


def within(difference: float, limit: float) -> Finding:
    return Finding(difference <= limit, f"largest difference {difference:.2e}, limit {limit:.0e}")


def bit_equal(first: str, other: str, *, of: str) -> Finding:
    same = first == other
    return Finding(same, f"{of}: {first[:12]} {'=' if same else '≠'} {other[:12]}")


def equal_states(first: dict[str, Tensor], other: dict[str, Tensor], *, of: str) -> Finding:
    """Bit-equal; if not, also how far apart, because rounding is another matter than a mistake."""
    finding = bit_equal(state_hash(first), state_hash(other), of=of)
    if finding.ok:
        return finding
    difference = max(float((first[name] - other[name]).abs().max()) for name in first)
    return Finding(False, f"{finding.measured}; they differ by up to {difference:.1e}")

"""Checkpoint savers: when a participant saves, and what its snapshot contains.

Workers of synchronous modes save after steps at which all replicas agree, or have at least received the same
messages from each other. Workers that average in pairs save at the end of the run. Behind a parameter server
only the server saves, together with the number of gradients of each worker that it has applied. In every
case the snapshot names the next step of every worker, so a resumed run uses each sample exactly once.

The training thread only copies; the background thread of checkpoints/writer.py writes.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol

from torch import Tensor

from paceline.checkpoints.snapshot import Snapshot, join_tensors, split_tensors
from paceline.checkpoints.writer import Cataloguer, CheckpointWriter, Disk, SnapshotTarget
from paceline.core.ids import Clock, Version
from paceline.events.log import Log
from paceline.plan.plan import Launcher, Plan
from paceline.plan.schedule import commits_in
from paceline.strategies.port import Outcome, Settles, Strategy
from paceline.worker.replica import Replica
from paceline.worker.reporting import CheckpointReporter, Report, ignore_report


def writer_for(
    plan: Plan,
    root: Path,
    participant: str,
    cataloguer: Cataloguer | None = None,
    *,
    participants: int,
    disk: Disk | None = None,
) -> CheckpointWriter:
    place = SnapshotTarget(root=root, who=participant, participants=participants, keep=plan.keep_checkpoints)
    # Virtual workers take turns in one process: there is no training to overlap with writing.
    is_virtual = plan.launcher is Launcher.VIRTUAL
    in_background = not is_virtual
    return CheckpointWriter(
        place, cataloguer or Cataloguer(), is_in_background=in_background, disk=disk or Disk()
    )


class WorkerSaver:
    def __init__(
        self,
        plan: Plan,
        replica: Replica,
        strategy: Strategy | None,
        *,
        log: Log,
        writer: CheckpointWriter,
        report: Callable[[Report], None] = ignore_report,
    ) -> None:
        self._every = plan.checkpoint_every
        self._total = plan.steps
        self._num_workers = plan.num_workers
        self._replica = replica
        self._strategy = strategy
        self._log = log
        self._carried: dict[str, Tensor] = {}  # saved with the replica when there is no strategy
        self.also: Callable[[], Snapshot] = lambda: Snapshot({}, {})  # further state of the same step
        self._writer = writer
        self._reporter = CheckpointReporter(log, report)
        self.begin_at(Clock(0))

    def begin_at(self, clock: Clock) -> None:
        """Steps begin here; the first checkpoint is due a whole period later."""
        self._due = clock + self._every

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None:
        self.report_written()
        # All must save after the same sync and under one name, also where some have made more steps (fedavg).
        name = finished if outcome.shares_done is None else outcome.shares_done
        at = finished if outcome.shares_done is None else outcome.shares_done // self._num_workers
        is_last = outcome.stop or outcome.is_last or at == self._total
        if (outcome.synced or outcome.resumable) and (is_last or self._is_due(at)):
            self.begin_at(Clock(at))
            self.save(finished, name=name, at=at, must=is_last)

    def _is_due(self, at: int) -> bool:
        return self._every > 0 and at >= self._due

    def save(self, finished: Clock, *, name: int, at: int, must: bool = True) -> None:
        self._writer.save(name, finished, lambda: self._live(finished, at), must=must)

    def report_written(self) -> None:
        """Report the results of earlier checkpoints."""
        if reports := self._writer.take_reports():
            self._reporter.report(reports)

    def close(self) -> None:
        """Everything that was saved is written and reported when this returns."""
        self._writer.drain()
        self.report_written()

    def _live(self, finished: int, at: int) -> Snapshot:
        self._log.flush()  # first: a checkpoint must never be ahead of the log
        if isinstance(self._strategy, Settles):
            self._strategy.settle()
        own_state = self._carried if self._strategy is None else self._strategy.snapshot()
        both = with_strategy(self._replica.live(), own_state, copy=False)
        also = self.also()
        facts = {**both.facts, **also.facts, "clock": finished, "at": at}
        return Snapshot({**both.tensors, **also.tensors}, facts)


class SharedSaver(WorkerSaver):
    """Saves for all workers of an elastic run, because all replicas are equal after every step.

    The steps of its checkpoints do not depend on which worker saves, or how often that changes, and
    checkpoints of the same step have the same bytes.
    """

    def __init__(
        self,
        plan: Plan,
        replica: Replica,
        *,
        log: Log,
        writer: CheckpointWriter,
        report: Callable[[Report], None] = ignore_report,
    ) -> None:
        self._generation = 0
        self.takes_save: Callable[[], bool] = lambda: False  # whether an operator has requested one since
        super().__init__(plan, replica, None, log=log, writer=writer, report=report)
        self._every = commits_in(plan, plan.checkpoint_every)
        self.begin_at(Clock(0))

    def enter(self, generation: int, strategy: Strategy, committed: int) -> None:
        """This worker saves for all, from now on and in this generation."""
        self._generation = generation
        self._strategy = strategy
        self.begin_at(Clock(committed))

    def _is_due(self, at: int) -> bool:
        return super()._is_due(at) or self.takes_save()

    def begin_at(self, clock: Clock) -> None:
        self._due = (clock // self._every + 1) * self._every if self._every else int(clock)

    def save(self, finished: Clock, *, name: int, at: int, must: bool = True) -> None:
        def live() -> Snapshot:
            return self._live(
                at, at
            )  # `finished` is not stored: a worker's gradient count is not part of the state

        self._writer.save(name, at, live, must=must, generation=self._generation)

    def save_between(self, committed: int, carried: dict[str, Tensor]) -> None:
        """Save between generations, in the worker that was requested to; returns once it is on disk."""
        self._strategy = None
        self._carried = carried
        self.save(Clock(committed), name=committed * self._num_workers, at=committed)
        self.close()


class EndSaver(WorkerSaver):
    """Saver of workers without barriers: they have a common point only at the end."""

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None: ...

    def save_at_end(self, finished: Clock) -> None:
        """Named by the shares done: workers differ in their steps, and all must find the same folder."""
        assert self._strategy is not None, "a worker that saves has a strategy"
        done = int(self._strategy.snapshot()["done"])
        self.save(finished, name=done, at=done // self._num_workers)


class NoSaver:
    """Saves nothing, as in virtual time."""

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None: ...


class RowSaver:
    """Saver of a worker behind a parameter server, which has no state but its rows.

    The server's checkpoint counts a gradient as done. With checkpoints, its row is
    therefore written at once, so that it is not lost when all processes are killed.
    """

    def __init__(self, plan: Plan, log: Log) -> None:
        self._has_checkpoints = plan.checkpoint_every > 0
        self._log = log

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None:
        if self._has_checkpoints:
            self._log.flush()


def with_strategy(replica: Snapshot, strategy: dict[str, Tensor], *, copy: bool = True) -> Snapshot:
    """A replica's snapshot, and what its strategy needs beyond it."""
    skeleton, tensors = split_tensors(strategy, "strategy", copy=copy)
    return Snapshot({**replica.tensors, **tensors}, {**replica.facts, "strategy": skeleton})


def strategy_tensors(saved: Snapshot) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = join_tensors(saved.facts["strategy"], saved.tensors)
    return tensors


def restore_worker(replica: Replica, strategy: Strategy, saved: Snapshot) -> Clock:
    replica.restore(saved)
    return restore_strategy(strategy, saved)


def restore_strategy(strategy: Strategy, saved: Snapshot) -> Clock:
    """Its part, after the replica's; how many steps the worker had finished."""
    strategy.restore(strategy_tensors(saved))
    return Clock(saved.facts["clock"])


class CheckpointedServer(Protocol):
    """A parameter server, as far as a checkpoint needs it."""

    @property
    def version(self) -> Version: ...

    @property
    def applied(self) -> AbstractSet[int]: ...

    def live(self) -> Snapshot:
        """References to the live state; copy them before the next change."""
        ...


class ServerSaver:
    def __init__(
        self,
        plan: Plan,
        server: CheckpointedServer,
        *,
        root: Path,
        log: Log,
        report: Callable[[Report], None] = ignore_report,
        cataloguer: Cataloguer | None = None,
        writer: CheckpointWriter | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._every = plan.checkpoint_every * plan.num_workers
        self._server = server
        self._log = log
        self._writer = writer or writer_for(plan, root, "server-0", cataloguer, participants=1, disk=disk)
        self._reporter = CheckpointReporter(log, report)
        self._due = len(server.applied) + self._every

    def maybe_save(self) -> None:
        self.report_written()
        done = len(self._server.applied)  # counted in gradients: a version may hold many (ps, easgd)
        if self._every > 0 and done >= self._due:
            self._due = done + self._every
            self._save(must=False)

    def save(self) -> None:
        """The last checkpoint: on the disk and reported when this returns."""
        self._save(must=True)
        self._writer.drain()
        self.report_written()

    def report_written(self) -> None:
        if reports := self._writer.take_reports():
            self._reporter.report(reports)

    def _save(self, *, must: bool) -> None:
        version = self._server.version
        self._writer.save(version, version, self._live, must=must)

    def _live(self) -> Snapshot:
        self._log.flush()  # first: a checkpoint must never be ahead of the log
        return self._server.live()

"""When does a participant save itself, and what does it save?

Workers of synchronous modes save after steps at which all replicas agree, or at
least have all heard the same from each other; workers that never meet save when
all is over; behind a parameter server only the server saves, with the number of each
worker's gradients it has applied. Either way the snapshot names the next step
of every worker, so a resumed run uses each sample exactly once. The step only
copies; checkpoints/writer.py does the rest beside the training.
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
    who: str,
    cataloguer: Cataloguer | None = None,
    *,
    participants: int,
    disk: Disk | None = None,
) -> CheckpointWriter:
    place = SnapshotTarget(root=root, who=who, participants=participants, keep=plan.keep_checkpoints)
    # Virtual workers are many in one process and take turns: beside them there is nothing to write.
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
        self._every, self._total, self._num_workers = plan.checkpoint_every, plan.steps, plan.num_workers
        self._replica, self._strategy, self._log = replica, strategy, log
        self._carried: dict[str, Tensor] = {}  # what there is to save beside the replica without a strategy
        self.also: Callable[[], Snapshot] = lambda: Snapshot({}, {})  # what else belongs to the moment
        self._writer = writer
        self._teller = CheckpointReporter(log, report)
        self.begin_at(Clock(0))

    def begin_at(self, clock: Clock) -> None:
        """Steps begin here; the first checkpoint is due a whole period later."""
        self._due = clock + self._every

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None:
        self.tell()
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

    def tell(self) -> None:
        """Say what became of earlier checkpoints."""
        if news := self._writer.news():
            self._teller.tell(news)

    def close(self) -> None:
        """Everything that was saved is written and told when this returns."""
        self._writer.drain()
        self.tell()

    def _live(self, finished: int, at: int) -> Snapshot:
        self._log.flush()  # first: a checkpoint must never be ahead of the log
        if isinstance(self._strategy, Settles):
            self._strategy.settle()
        mine = self._carried if self._strategy is None else self._strategy.snapshot()
        both = with_strategy(self._replica.live(), mine, copy=False)
        also = self.also()
        facts = {**both.facts, **also.facts, "clock": finished, "at": at}
        return Snapshot({**both.tensors, **also.tensors}, facts)


class SharedSaver(WorkerSaver):
    """In an elastic run all replicas are equal after every step, so one worker saves for all.

    Its checkpoints fall on the same steps whoever saves and however often that changes, and those of
    the same step have the same bytes.
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
        self.takes_wish: Callable[[], bool] = lambda: False  # has an operator asked for one since?
        super().__init__(plan, replica, None, log=log, writer=writer, report=report)
        self._every = commits_in(plan, plan.checkpoint_every)
        self.begin_at(Clock(0))

    def enter(self, generation: int, strategy: Strategy, committed: int) -> None:
        """From now on this worker is the one that saves, in this generation."""
        self._generation, self._strategy = generation, strategy
        self.begin_at(Clock(committed))

    def _is_due(self, at: int) -> bool:
        return super()._is_due(at) or self.takes_wish()

    def begin_at(self, clock: Clock) -> None:
        self._due = (clock // self._every + 1) * self._every if self._every else int(clock)

    def save(self, finished: Clock, *, name: int, at: int, must: bool = True) -> None:
        def live() -> Snapshot:
            return self._live(at, at)  # how many gradients this worker has made is its own affair

        self._writer.save(name, at, live, must=must, generation=self._generation)

    def save_between(self, committed: int, carried: dict[str, Tensor]) -> None:
        """While nobody trains, by whoever was asked to; on the disk when this returns."""
        self._strategy, self._carried = None, carried
        self.save(Clock(committed), name=committed * self._num_workers, at=committed)
        self.close()


class EndSaver(WorkerSaver):
    """Workers that do not meet have a common point only at the end."""

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None: ...

    def save_at_end(self, finished: Clock) -> None:
        """Named by the shares done: workers differ in their steps, and all must find the same folder."""
        assert self._strategy is not None, "whoever saves trains by a strategy"
        done = int(self._strategy.snapshot()["done"])
        self.save(finished, name=done, at=done // self._num_workers)


class NoSaver:
    """Saves nothing, as in virtual time."""

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None: ...


class RowSaver:
    """Behind a parameter server a worker has nothing of its own to save but its rows.

    The server's checkpoint counts a gradient as done; so that its row is not lost
    when all are killed, it does not wait in memory if there are checkpoints.
    """

    def __init__(self, plan: Plan, log: Log) -> None:
        self._has_checkpoints, self._log = plan.checkpoint_every > 0, log

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None:
        if self._has_checkpoints:
            self._log.flush()


def with_strategy(replica: Snapshot, strategy: dict[str, Tensor], *, copy: bool = True) -> Snapshot:
    """A replica's snapshot, and what its strategy needs beyond it."""
    skeleton, tensors = split_tensors(strategy, "strategy", copy=copy)
    return Snapshot({**replica.tensors, **tensors}, {**replica.facts, "strategy": skeleton})


def strategy_tensors(saved: Snapshot) -> dict[str, Tensor]:
    found: dict[str, Tensor] = join_tensors(saved.facts["strategy"], saved.tensors)
    return found


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
        """To be copied before anything changes it."""
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
    ) -> None:
        self._every = plan.checkpoint_every * plan.num_workers
        self._server, self._log = server, log
        self._writer = writer or writer_for(plan, root, "server-0", cataloguer, participants=1)
        self._teller = CheckpointReporter(log, report)
        self._due = len(server.applied) + self._every

    def maybe_save(self) -> None:
        self.tell()
        done = len(self._server.applied)  # in gradients: a version may hold many (ps, easgd)
        if self._every > 0 and done >= self._due:
            self._due = done + self._every
            self._save(must=False)

    def save(self) -> None:
        """The last one: on the disk, and told, when this returns."""
        self._save(must=True)
        self._writer.drain()
        self.tell()

    def tell(self) -> None:
        if news := self._writer.news():
            self._teller.tell(news)

    def _save(self, *, must: bool) -> None:
        version = self._server.version
        self._writer.save(version, version, self._live, must=must)

    def _live(self) -> Snapshot:
        self._log.flush()  # first: a checkpoint must never be ahead of the log
        return self._server.live()

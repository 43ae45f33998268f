"""When does a participant save itself, and what does it save?

Workers of synchronous modes save after steps at which all replicas agree, or at
least have all heard the same from each other; workers that never meet save when
all is over; behind a parameter server only the server saves, with the number of each
worker's gradients it has applied. Either way the snapshot names the next step
of every worker, so a resumed run uses each sample exactly once.
"""

from pathlib import Path

from torch import Tensor

from paceline.checkpoints.catalog import folder_at
from paceline.checkpoints.nested import join, split
from paceline.checkpoints.store import Snapshot, remove_old, write_snapshot
from paceline.events.log import Log
from paceline.ids import Clock
from paceline.plan.plan import Plan
from paceline.strategies.port import Outcome, Strategy
from paceline.worker.replica import Replica
from paceline.worker.server import ParameterServer


class WorkerSaver:
    def __init__(
        self, plan: Plan, rank: int, replica: Replica, strategy: Strategy, *, root: Path, log: Log
    ) -> None:
        self._every, self._total, self._num_workers = plan.checkpoint_every, plan.steps, plan.num_workers
        self._participants = plan.num_workers
        self._who = f"worker-{rank}"
        self._replica, self._strategy, self._root, self._log = replica, strategy, root, log
        self.begin_at(Clock(0))

    def begin_at(self, clock: Clock) -> None:
        """Steps begin here; the first checkpoint is due a whole period later."""
        self._due = clock + self._every

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None:
        # All must save after the same sync and under one name, also where some have made more steps (fedavg).
        name = finished if outcome.shares_done is None else outcome.shares_done
        at = finished if outcome.shares_done is None else outcome.shares_done // self._num_workers
        is_due = self._every > 0 and at >= self._due
        is_last = outcome.stop or at == self._total
        if (outcome.synced or outcome.resumable) and (is_due or is_last):
            self.begin_at(Clock(at))
            self.save(finished, name=name, at=at)

    def save(self, finished: Clock, *, name: int, at: int) -> None:
        self._log.flush()  # first: a checkpoint must never be ahead of the log
        both = with_strategy(self._replica.snapshot(), self._strategy.snapshot())
        facts = {**both.facts, "clock": finished, "at": at}
        folder = folder_at(self._root, name)
        write_snapshot(folder, self._who, Snapshot(both.tensors, facts))
        self._log.write("checkpoint", path=folder.name, step=finished)
        remove_old(self._root, participants=self._participants)


class SharedSaver(WorkerSaver):
    """In an elastic run all replicas are equal after every step, so one worker saves for all."""

    def __init__(self, plan: Plan, replica: Replica, strategy: Strategy, *, root: Path, log: Log) -> None:
        super().__init__(plan, 0, replica, strategy, root=root, log=log)
        self._participants = 1


class EndSaver(WorkerSaver):
    """Workers that do not meet have a common point only at the end."""

    def maybe_save(self, finished: Clock, outcome: Outcome) -> None: ...

    def save_at_end(self, finished: Clock) -> None:
        """Named by the shares done: workers differ in their steps, and all must find the same folder."""
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


def with_strategy(replica: Snapshot, strategy: dict[str, Tensor]) -> Snapshot:
    """A replica's snapshot, and what its strategy needs beyond it."""
    skeleton, tensors = split(strategy, "strategy")
    return Snapshot({**replica.tensors, **tensors}, {**replica.facts, "strategy": skeleton})


def of_strategy(saved: Snapshot) -> dict[str, Tensor]:
    found: dict[str, Tensor] = join(saved.facts["strategy"], saved.tensors)
    return found


def restore_worker(replica: Replica, strategy: Strategy, saved: Snapshot) -> Clock:
    replica.restore(saved)
    strategy.restore(of_strategy(saved))
    return Clock(saved.facts["clock"])


class ServerSaver:
    def __init__(self, plan: Plan, server: ParameterServer, *, root: Path, log: Log) -> None:
        self._every = plan.checkpoint_every * plan.num_workers
        self._server, self._root, self._log = server, root, log
        self._due = len(server.applied) + self._every

    def maybe_save(self) -> None:
        done = len(self._server.applied)  # in gradients: a version may hold many (ps, easgd)
        if self._every > 0 and done >= self._due:
            self._due = done + self._every
            self.save()

    def save(self) -> None:
        self._log.flush()  # first: a checkpoint must never be ahead of the log
        folder = folder_at(self._root, self._server.version)
        write_snapshot(folder, "server-0", self._server.snapshot())
        self._log.write("checkpoint", path=folder.name, step=self._server.version)
        remove_old(self._root, participants=1)

"""Who tells the coordinator that a process is gone? A thread, so that a silent coordinator holds up nobody.

Losses are told in their order, each at once if the coordinator answers. When it
does not, that is said once, until it answers again; the lost worker's lease will
run out in any case.
"""

import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from paceline.coordinator.client import RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb

Reply = TypeVar("Reply", bound=Message)


class Asks(Protocol):
    """A client of the coordinator that waits for its answers."""

    def read(self, name: str, request: Message, reply: type[Reply]) -> Reply: ...

    def write(self, name: str, request: Message, reply: type[Reply]) -> Reply: ...


class Losses:
    def __init__(self, client: Asks, run: str, note: Callable[[str], None]) -> None:
        self._client, self._run, self._note = client, run, note
        self._told: queue.SimpleQueue[tuple[str, int, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # from the first loss on
        self._is_unheard = False

    def tell(self, who: str, pid: int, reason: str) -> None:
        """Returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._tell_all, name="losses", daemon=True)
            self._thread.start()
        self._told.put((who, pid, reason))

    def close(self) -> None:
        """Nobody is waited for any more but the one that is being told."""
        if self._thread is None:
            return
        while not self._told.empty():
            self._told.get()
        self._told.put(None)
        self._thread.join()

    def _tell_all(self) -> None:
        while (loss := self._told.get()) is not None:
            who, pid, reason = loss
            try:
                self._tell(who, pid, reason)
                self._is_unheard = False
            except (RefusedError, UnreachableError) as error:
                if not self._is_unheard:
                    self._note(f"the coordinator was not told that {who} was lost: {error.what}")
                self._is_unheard = True

    def _tell(self, who: str, pid: int, reason: str) -> None:
        workers = self._client.read("Members.List", pb.ListWorkers(run=self._run), pb.WorkerList)
        for worker in workers.workers:
            if worker.worker == who and worker.facts.get("pid") == str(pid):
                leaving = pb.LeaveRun(
                    run=self._run, worker=who, incarnation=worker.incarnation, reason=reason
                )
                self._client.write("Members.Leave", leaving, pb.Worker)

"""How do workers reach a parameter server on the same host? Through slots in shared memory.

Each worker has two vectors there: the server reads the pushed gradient where
the worker wrote it, and writes the parameters where the worker reads them, so
a step costs no copy beyond those two. A request is a few words and one
semaphore post; the answer is one post back. That a step is not wanted any more
is a word to look at, and a post on a semaphore of its own for who sleeps.
"""

from collections.abc import Sequence

import torch

from paceline.clock import Clock
from paceline.ids import Clock as StepClock
from paceline.ids import Rank, Version
from paceline.transport.ports import Answer, Obsolete, Pulled, Reply, Slots, StoreHandler, Traffic
from paceline.transport.requests import Request, dispatch
from paceline.transport.shm import SharedWorld

SEMAPHORES = 2
_CALLED, _REVOKED = range(SEMAPHORES)  # a worker is called by its answer, the server by a request
WORDS = 7
_ASKED, _SERVED, _REQUEST, _CLOCK, _VERSION, _POSITION, _WANTED_FROM = range(WORDS)
_NOTHING_LEFT = -1  # in a word of shared memory there is no None


def store_world(num_workers: int) -> SharedWorld:
    """Workers are parties 0 … N-1, the server is party N."""
    return SharedWorld(parties=num_workers + 1, semaphores_each=SEMAPHORES, words_each=WORDS)


def _slots(world: SharedWorld, numel: int, dtype: torch.dtype, push_bytes: int | None) -> list[Slots]:
    workers = world.parties - 1
    parameters = world.map_vectors(workers, numel, dtype)
    size, kind = (numel, dtype) if push_bytes is None else (push_bytes, torch.uint8)
    pushed = world.map_vectors(workers, size, kind)
    return [Slots(*own) for own in zip(parameters, pushed, strict=True)]


class ShmStore:
    """A worker's end."""

    def __init__(self, world: SharedWorld, rank: Rank, *, clock: Clock, timeout_s: float) -> None:
        self._world = world
        self._rank = rank
        self._server = world.parties - 1
        self._clock = clock
        self._timeout_s = timeout_s
        self._words = world.words[rank]
        self._push_bytes, self._pull_bytes = 0, 0

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        slots = _slots(self._world, numel, dtype, push_bytes)[self._rank]
        self._push_bytes, self._pull_bytes = slots.gradients.nbytes, slots.parameters.nbytes
        return slots

    def join(self, clock: StepClock) -> None:
        self._words[_CLOCK] = clock
        self._ask(Request.JOIN)

    def pull(self) -> Pulled:
        started_ns = self._clock.now_ns()
        self._world.wait(self._rank, _CALLED, self._timeout_s, what="the parameter server")
        wait_ns = self._clock.now_ns() - started_ns
        version, position = Version(int(self._words[_VERSION])), int(self._words[_POSITION])
        if position == _NOTHING_LEFT:
            return Pulled(version, None, Traffic(0, 0, wait_ns))
        return Pulled(version, position, Traffic(0, self._pull_bytes, wait_ns))

    def push(self, *, wants_stop: bool) -> Traffic:
        self._ask(Request.PUSH_AND_STOP if wants_stop else Request.PUSH)
        return Traffic(self._push_bytes, 0, 0)

    def is_obsolete(self) -> bool:
        # Whatever the server says next, it does not change the version that we were last given.
        return bool(self._words[_WANTED_FROM] > self._words[_VERSION])

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        now_ns = self._clock.now_ns
        end_ns = now_ns() + round(duration_s * 1e9)
        # A post for an earlier step, which we had pushed already, must not end this wait.
        while not self.is_obsolete() and (left_ns := end_ns - now_ns()) > 0:
            self._world.is_posted(self._rank, _REVOKED, left_ns / 1e9, what="the end of an injected delay")
        return self.is_obsolete()

    def again(self) -> None:
        self._ask(Request.AGAIN)

    def leave(self) -> None:
        self._ask(Request.LEAVE)

    def close(self) -> None: ...

    def _ask(self, request: Request) -> None:
        self._words[_REQUEST] = request
        self._words[_ASKED] += 1
        self._world.post(self._server, _CALLED)


class ShmStoreHost:
    """The server's end: takes requests one at a time until every worker has left."""

    def __init__(
        self, world: SharedWorld, *, numel: int, dtype: torch.dtype, push_bytes: int | None = None
    ) -> None:
        self._world = world
        self._num_workers = world.parties - 1
        self._numel, self._dtype, self._push_bytes = numel, dtype, push_bytes
        self._slots = self._new_slots()
        self._next = 0

    def serve(self, handler: StoreHandler) -> None:
        for rank, slots in enumerate(self._slots):
            handler.attach(Rank(rank), slots)
        left = 0
        while left < self._num_workers:
            # No timeout: a step may take long, and whoever supervises the workers aborts us if one dies.
            self._world.wait(self._num_workers, _CALLED, None, what="any worker")
            rank = self._find_request()
            words = self._world.words[rank]
            request = Request(int(words[_REQUEST]))
            words[_SERVED] = words[_ASKED]
            replies = dispatch(handler, rank, request, StepClock(int(words[_CLOCK])))
            left += (request is Request.LEAVE) + self._tell(replies)

    def _new_slots(self) -> list[Slots]:
        return _slots(self._world, self._numel, self._dtype, self._push_bytes)

    def _find_request(self) -> Rank:
        """The next worker with an open request, taken in turn so that nobody starves."""
        words = self._world.words
        for turn in range(self._num_workers):
            rank = (self._next + turn) % self._num_workers
            if words[rank, _ASKED] != words[rank, _SERVED]:
                self._next = rank + 1
                return Rank(rank)
        raise AssertionError("a post without a request")

    def _tell(self, replies: Sequence[Reply]) -> int:
        """Pass these on; how many workers are out with them."""
        out = 0
        for reply in replies:
            words = self._world.words[reply.rank]
            match reply:
                case Answer(rank, version, position):
                    words[_VERSION] = version
                    words[_POSITION] = _NOTHING_LEFT if position is None else position
                    out += position is None
                    self._world.post(rank, _CALLED)
                case Obsolete(rank, version):
                    words[_WANTED_FROM] = version
                    self._world.post(rank, _REVOKED)
        return out

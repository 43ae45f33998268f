"""Parameter store in shared memory, for a server on the same host; on a GPU by CUDA IPC.

Each worker has two vectors there: the server reads the pushed gradient where the
worker wrote it, and writes the parameters where the worker reads them, so a step
costs no copy beyond those two. A request is a few words and one semaphore post;
the answer is one post back. An obsolete step is signalled by a word, and by a post
on a separate semaphore for a worker that sleeps.

`CudaStore` uses the same words and semaphores; only the vectors lie on the GPU. The
server allocates all slots as one block and leaves its IPC handle in shared memory,
where workers open it. Work on a GPU is asynchronous, so each side synchronizes its
stream before it notifies the other.
"""

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.clock import Clock
from paceline.core.errors import NotReadyError, SilenceError
from paceline.core.ids import Clock as StepClock
from paceline.core.ids import Rank, Version
from paceline.transport.ports import (
    Answer,
    AtEnd,
    Obsolete,
    PullResult,
    Reply,
    Request,
    Slots,
    StoreHandler,
    Traffic,
    dispatch,
)
from paceline.transport.shm import SharedWorld

SEMAPHORES = 2
_CALLED, _REVOKED = range(
    SEMAPHORES
)  # _CALLED: posted to a worker with its answer, to the server per request
WORDS = 8
_ASKED, _SERVED, _REQUEST, _CLOCK, _VERSION, _POSITION, _WANTED_FROM, _AT_END = range(WORDS)
_NOTHING_LEFT = -1  # encodes None in a word of shared memory


def store_world(num_workers: int) -> SharedWorld:
    """Workers are parties 0 … N-1, the server is party N."""
    return SharedWorld(parties=num_workers + 1, semaphores_each=SEMAPHORES, words_each=WORDS)


def _slots(world: SharedWorld, numel: int, dtype: torch.dtype, push_bytes: int | None) -> list[Slots]:
    workers = world.parties - 1
    parameters = world.map_vectors(workers, numel, dtype)
    if push_bytes is None:
        pushed = world.map_vectors(workers, numel, dtype)
    else:
        pushed = world.map_vectors(workers, push_bytes, torch.uint8)
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
        self._push_bytes = 0
        self._pull_bytes = 0

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        slots = _slots(self._world, numel, dtype, push_bytes)[self._rank]
        self._push_bytes = slots.gradients.nbytes
        self._pull_bytes = slots.parameters.nbytes
        return slots

    def join(self, clock: StepClock) -> None:
        self._words[_CLOCK] = clock
        self._ask(Request.JOIN)

    def pull(self) -> PullResult:
        started_ns = self._clock.now_ns()
        self._await_answer()
        wait_ns = self._clock.now_ns() - started_ns
        version = Version(int(self._words[_VERSION]))
        position = int(self._words[_POSITION])
        if position == _NOTHING_LEFT:
            return PullResult(version, None, Traffic(0, 0, wait_ns))
        return PullResult(version, position, Traffic(0, self._pull_bytes, wait_ns))

    def _await_answer(self) -> None:
        awaited = "the parameter server"
        try:
            self._world.wait(self._rank, _CALLED, self._timeout_s, awaited=awaited)
        except SilenceError:
            if not self._words[_AT_END]:
                raise
            # At the end the other workers may take any time; a lost one aborts the run.
            self._world.wait(self._rank, _CALLED, None, awaited=awaited)

    def push(self, *, wants_stop: bool) -> Traffic:
        self._ask(Request.PUSH_AND_STOP if wants_stop else Request.PUSH)
        return Traffic(self._push_bytes, 0, 0)

    def is_obsolete(self) -> bool:
        # The server does not change the last version before this worker's next request.
        return bool(self._words[_WANTED_FROM] > self._words[_VERSION])

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        now_ns = self._clock.now_ns
        end_ns = now_ns() + round(duration_s * 1e9)
        # A post for an earlier step, which was pushed already, must not end this wait.
        while not self.is_obsolete() and (left_ns := end_ns - now_ns()) > 0:
            self._world.is_posted(self._rank, _REVOKED, left_ns / 1e9, awaited="the end of an injected delay")
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
        self._numel = numel
        self._dtype = dtype
        self._push_bytes = push_bytes
        self._slots = self._new_slots()
        self._next = 0

    def serve(self, handler: StoreHandler) -> None:
        for rank, slots in enumerate(self._slots):
            handler.attach(Rank(rank), slots)
        left = 0
        while left < self._num_workers:
            # No timeout: a step may take long, and the supervisor aborts the server if a worker dies.
            self._world.wait(self._num_workers, _CALLED, None, awaited="any worker")
            rank = self._find_request()
            words = self._world.words[rank]
            request = Request(int(words[_REQUEST]))
            words[_SERVED] = words[_ASKED]
            replies = dispatch(handler, rank, request, StepClock(int(words[_CLOCK])))
            left += (request is Request.LEAVE) + self._send(replies)

    def _new_slots(self) -> list[Slots]:
        return _slots(self._world, self._numel, self._dtype, self._push_bytes)

    def _find_request(self) -> Rank:
        """The next worker with an open request, in round-robin order so that none starves."""
        words = self._world.words
        for turn in range(self._num_workers):
            rank = (self._next + turn) % self._num_workers
            if words[rank, _ASKED] != words[rank, _SERVED]:
                self._next = rank + 1
                return Rank(rank)
        raise AssertionError("a post without a request")

    def _send(self, replies: Sequence[Reply]) -> int:
        """Send the replies; the number of workers that leave with them."""
        left = 0
        for reply in replies:
            words = self._world.words[reply.rank]
            match reply:
                case Answer(rank, version, position):
                    words[_VERSION] = version
                    words[_POSITION] = _NOTHING_LEFT if position is None else position
                    left += position is None
                    self._world.post(rank, _CALLED)
                case AtEnd():
                    words[_AT_END] = 1
                case Obsolete(rank, version):
                    words[_WANTED_FROM] = version
                    self._world.post(rank, _REVOKED)
        return left


_HANDLE_READY = SEMAPHORES  # one more semaphore than a store in shared memory
_MAILBOX_BYTES = 4096


def cuda_world(num_workers: int) -> SharedWorld:
    return SharedWorld(parties=num_workers + 1, semaphores_each=SEMAPHORES + 1, words_each=WORDS)


class CudaStore(ShmStore):
    """A worker's end."""

    def __init__(
        self, world: SharedWorld, rank: Rank, *, clock: Clock, timeout_s: float, device: torch.device
    ) -> None:
        super().__init__(world, rank, clock=clock, timeout_s=timeout_s)
        self._device = device

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        assert push_bytes is None, "within one GPU nothing is gained by fewer bytes, so nothing is compressed"
        mailbox = self._world.map_vectors(1, _MAILBOX_BYTES, torch.uint8)[0]
        self._world.wait(self._rank, _HANDLE_READY, self._timeout_s, awaited="the parameter server's memory")
        block = _open_handle(mailbox, dtype)
        slots = Slots(*block.view(self._server, 2, numel)[self._rank])
        self._push_bytes = slots.gradients.nbytes
        self._pull_bytes = slots.parameters.nbytes
        return slots

    def push(self, *, wants_stop: bool) -> Traffic:
        torch.cuda.current_stream(self._device).synchronize()  # the gradient is written
        return super().push(wants_stop=wants_stop)

    def again(self) -> None:
        # The abandoned step may still run, and write the buffers that the server is about to fill.
        torch.cuda.current_stream(self._device).synchronize()
        super().again()


class CudaStoreHost(ShmStoreHost):
    """The server's end."""

    def __init__(self, world: SharedWorld, *, numel: int, dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        super().__init__(world, numel=numel, dtype=dtype)

    def _new_slots(self) -> list[Slots]:
        workers = self._world.parties - 1
        mailbox = self._world.map_vectors(1, _MAILBOX_BYTES, torch.uint8)[0]
        self._block = torch.zeros((workers, 2, self._numel), dtype=self._dtype, device=self._device)
        torch.cuda.current_stream(self._device).synchronize()
        _write_handle(self._block, mailbox)
        for rank in range(workers):
            self._world.post(rank, _HANDLE_READY)
        return [Slots(parameters, gradients) for parameters, gradients in self._block]

    def serve(self, handler: StoreHandler) -> None:
        super().serve(handler)
        torch.cuda.current_stream(self._device).synchronize()

    def _send(self, replies: Sequence[Reply]) -> int:
        torch.cuda.current_stream(self._device).synchronize()  # the parameters are in their slots
        return super()._send(replies)


def _write_handle(block: Tensor, mailbox: Tensor) -> None:
    """Write the IPC handle as JSON: numbers unchanged, bytes in hexadecimal."""
    parts = block.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    encoded = [part.hex() if isinstance(part, bytes) else part for part in parts]
    text = json.dumps(encoded).encode()
    if len(text) >= _MAILBOX_BYTES:
        raise NotReadyError("the GPU's memory handle is longer than expected", "use --transport tcp")
    mailbox[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _open_handle(mailbox: Tensor, dtype: torch.dtype) -> Tensor:
    text = bytes(mailbox.numpy().tobytes()).rstrip(b"\0")
    parts = [bytes.fromhex(part) if isinstance(part, str) else part for part in json.loads(text)]
    storage = torch.UntypedStorage._new_shared_cuda(*parts)
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage)

"""How do workers reach a parameter server without leaving the GPU? Through slots in its memory, by CUDA IPC.

Requests and answers are the words and semaphores of shm_store.py; only the
vectors lie elsewhere. The server allocates all slots as one block and leaves
its IPC handle in a small piece of shared memory; workers open it there. Work on
a GPU is asynchronous, so each side waits for its own before it tells the other.
"""

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.clock import Clock
from paceline.errors import NotReadyError
from paceline.ids import Rank
from paceline.transport.ports import Reply, Slots, StoreHandler, Traffic
from paceline.transport.shm import SharedWorld
from paceline.transport.shm_store import SEMAPHORES, WORDS, ShmStore, ShmStoreHost

_HANDLE_IS_THERE = SEMAPHORES  # one more semaphore than a store in shared memory
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
        self._world.wait(self._rank, _HANDLE_IS_THERE, self._timeout_s, what="the parameter server's memory")
        block = _opened(mailbox, dtype)
        slots = Slots(*block.view(self._server, 2, numel)[self._rank])
        self._push_bytes, self._pull_bytes = slots.gradients.nbytes, slots.parameters.nbytes
        return slots

    def push(self, *, wants_stop: bool) -> Traffic:
        torch.cuda.current_stream(self._device).synchronize()  # the gradient is written
        return super().push(wants_stop=wants_stop)

    def again(self) -> None:
        # What was abandoned may still be running, and writes the buffers that the server is about to fill.
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
        _leave_handle(self._block, mailbox)
        for rank in range(workers):
            self._world.post(rank, _HANDLE_IS_THERE)
        return [Slots(parameters, gradients) for parameters, gradients in self._block]

    def serve(self, handler: StoreHandler) -> None:
        super().serve(handler)
        torch.cuda.current_stream(self._device).synchronize()

    def _tell(self, replies: Sequence[Reply]) -> int:
        torch.cuda.current_stream(self._device).synchronize()  # the parameters are in their slots
        return super()._tell(replies)


def _leave_handle(block: Tensor, mailbox: Tensor) -> None:
    """The IPC handle as text: numbers as they are, bytes in hexadecimal."""
    parts = block.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    shown = [part.hex() if isinstance(part, bytes) else part for part in parts]
    text = json.dumps(shown).encode()
    if len(text) >= _MAILBOX_BYTES:
        raise NotReadyError("the GPU's memory handle is longer than expected", "use --transport tcp")
    mailbox[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _opened(mailbox: Tensor, dtype: torch.dtype) -> Tensor:
    text = bytes(mailbox.numpy().tobytes()).rstrip(b"\0")
    parts = [bytes.fromhex(part) if isinstance(part, str) else part for part in json.loads(text)]
    storage = torch.UntypedStorage._new_shared_cuda(*parts)
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage)

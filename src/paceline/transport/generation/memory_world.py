"""World of a generation in the shared memory of one host, without copies between its members.

Rank 0 makes the memory and writes its location to a file of this generation; the others open it. Each member
has words of its own (`_WORDS`) and semaphores for three barriers: of the training, of the exchanges before
it, and of evaluations. They never wait for each other's posts.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.core.clock import Clock, SystemClock
from paceline.core.errors import PeerLostError, TrainingError
from paceline.core.ids import Rank
from paceline.transport.generation.memory import (
    BOARD_ROW_WORDS,
    GenerationBoard,
    GenerationWindow,
    GenerationWorld,
)
from paceline.transport.shm import BARRIER_SLOTS, Barrier
from paceline.transport.shm_collective import ShmCollective, ShmRounds, ShmShards
from paceline.transport.shm_ranks import ShmRanks

POLL_S = 0.002
EXCHANGED = 2  # numbers at most in an exchange
_BYTES, _HASH, _ROOM, _BOARD = range(EXCHANGED, EXCHANGED + 4)
_WORDS = _BOARD + BOARD_ROW_WORDS
_TRAINING, _EXCHANGING, _EVALUATING = (number * BARRIER_SLOTS for number in range(3))
_SEMAPHORES = 3 * BARRIER_SLOTS


class MemoryGeneration:
    """One member's end of the generation's shared memory."""

    lost = ""  # memory has no connections
    keeps_memories = True

    def __init__(
        self, fd: int, rank: int, *, parties: int, timeout_s: float, is_over: Callable[[], bool]
    ) -> None:
        self.rank = rank
        self.parties = parties
        self._timeout_s = timeout_s
        self._memory = GenerationWorld(
            fd, rank, parties=parties, semaphores_each=_SEMAPHORES, words_each=_WORDS, is_over=is_over
        )
        self._barrier = Barrier(
            self._memory, rank, clock=SystemClock(), timeout_s=timeout_s, first_semaphore=_EXCHANGING
        )

    def exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        assert len(numbers) <= EXCHANGED, "there are words for that many"
        words = self._memory.words
        words[self.rank, : len(numbers)] = numbers
        self._barrier.wait()
        rows: list[list[int]] = words[:, : len(numbers)].tolist()
        self._barrier.wait()  # only then may any member write the next ones
        return rows

    def copy_state(self, sources: Mapping[int, int], data: bytes) -> bytes:
        words = self._memory.words
        if self.rank in sources.values():
            words[self.rank, _BYTES] = len(data)
            words[self.rank, _HASH] = _hash_word(data)
        self._barrier.wait()
        buffers: dict[int, Tensor] = {}
        for source in sorted(set(sources.values())):  # in the same order on all
            (buffers[source],) = self._memory.map_vectors(1, int(words[source, _BYTES]), torch.uint8)
        if self.rank in buffers:
            buffers[self.rank].numpy()[:] = np.frombuffer(data, dtype=np.uint8)
        self._barrier.wait()
        if self.rank not in sources:
            return b""
        source = sources[self.rank]
        received: bytes = buffers[source].numpy().tobytes()
        if _hash_word(received) != int(words[source, _HASH]):
            raise TrainingError(
                "the state received from another worker does not match its hash",
                "this should never happen on one machine: check its memory",
            )
        return received

    def shards(self, count: int, clock: Clock) -> ShmShards:
        return ShmShards(self._memory, Rank(self.rank), shards=count, clock=clock, timeout_s=self._timeout_s)

    def rounds(self, count: int, clock: Clock) -> ShmRounds:
        return ShmRounds(
            self._memory, Rank(self.rank), shards=count, clock=clock, timeout_s=self._timeout_s, word=_ROOM
        )

    def ranked_rounds(self, count: int, clock: Clock, *, has_states: bool) -> tuple[ShmRounds, ShmRanks]:
        rounds = ShmRounds(
            self._memory,
            Rank(self.rank),
            shards=count,
            clock=clock,
            timeout_s=self._timeout_s,
            word=_ROOM,
            memories=range(count, 2 * count) if has_states else range(count),
        )
        return rounds, ShmRanks(self._memory, Rank(self.rank), rounds.barrier, ranks=count)

    def board(self) -> GenerationBoard:
        return GenerationBoard(self._memory, _BOARD)

    def window(self, kept: int) -> GenerationWindow:
        return GenerationWindow(self._memory, kept)

    def collective(self, clock: Clock) -> ShmCollective:
        return ShmCollective(
            self._memory,
            Rank(self.rank),
            clock=clock,
            timeout_s=self._timeout_s,
            first_semaphore=_EVALUATING,
        )

    def wake_all(self) -> None:
        self._memory.wake_all()

    def close(self) -> None:
        self._memory.close()


def enter_memory_world(
    folder: Path,
    number: int,
    *,
    rank: int,
    parties: int,
    timeout_s: float,
    is_over: Callable[[], bool],
) -> MemoryGeneration:
    """The world of generation `number`, whose members find each other in the folder."""
    path = folder / f"{number}.json"
    if rank == 0:
        fd = os.memfd_create(_memory_name(number))
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"pid": os.getpid(), "fd": fd}))
        draft.rename(path)
    else:
        fd = _open(path, number, is_over)
    return MemoryGeneration(fd, rank, parties=parties, timeout_s=timeout_s, is_over=is_over)


def _open(path: Path, number: int, is_over: Callable[[], bool]) -> int:
    while not is_over():
        try:
            location = json.loads(path.read_text())
            fd = os.open(f"/proc/{location['pid']}/fd/{location['fd']}", os.O_RDWR)
            # Rank 0 may be in a later generation by now, and that one's memory have the same number.
            if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(f"/memfd:{_memory_name(number)} "):
                return fd
            os.close(fd)
        except OSError:
            pass  # rank 0 is not there yet, or not any more: then the generation ends
        SystemClock().sleep(POLL_S)
    raise PeerLostError(f"generation {number} ended before it started", "the run continues in the next one")


def _memory_name(number: int) -> str:
    return f"paceline-{number}"


def _hash_word(data: bytes) -> int:
    return int.from_bytes(sha256(data).digest()[:7], "little")  # fits into a signed word

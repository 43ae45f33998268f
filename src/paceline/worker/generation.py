"""How do the workers of a new generation on one host find each other, and get the same state?

Rank 0 makes the shared memory and says where in a file that only this
generation uses. Everybody says how many steps it has committed; the most wins,
and whoever has fewer takes the whole state from the memory of one who has it,
checked by its hash.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from paceline.checkpoints.store import Snapshot, from_bytes, to_bytes
from paceline.clock import SystemClock
from paceline.errors import PeerLostError, TrainingError
from paceline.transport.generation_board import WORDS as BOARD_WORDS
from paceline.transport.generation_world import GenerationWorld
from paceline.transport.meeting import PLACES, Meeting

BOARD = 5  # where the words of every step begin
_COMMITTED, _EVALUATED, _BYTES, _HASH, ROOM_WORD = range(BOARD)  # the last is for the training
EVALUATING = 2 * PLACES  # the first place at which workers wait for each other while they evaluate
_PLACES = 3 * PLACES  # others are for the training, and for making the state equal
LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class Healed:
    """What it took until all had the same state."""

    committed: int
    source: int | None  # whose memory it came from; None: we had it
    nbytes: int
    behind: tuple[int, ...] = ()  # the ranks of all who had less than the newest


def enter(folder: Path, number: int, rank: int, parties: int, is_over: Callable[[], bool]) -> GenerationWorld:
    place = folder / f"{number}.json"
    if rank == 0:
        fd = os.memfd_create(_memory_name(number))
        folder.mkdir(parents=True, exist_ok=True)
        draft = place.with_suffix(".draft")
        draft.write_text(json.dumps({"pid": os.getpid(), "fd": fd}))
        draft.rename(place)
    else:
        fd = _open(place, number, is_over)
    return GenerationWorld(
        fd, rank, parties=parties, semaphores_each=_PLACES, words_each=BOARD + BOARD_WORDS, is_over=is_over
    )


def _open(place: Path, number: int, is_over: Callable[[], bool]) -> int:
    while not is_over():
        try:
            found = json.loads(place.read_text())
            fd = os.open(f"/proc/{found['pid']}/fd/{found['fd']}", os.O_RDWR)
            # Rank 0 may be in a later generation by now, and that one's memory have the same number.
            if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(f"/memfd:{_memory_name(number)} "):
                return fd
            os.close(fd)
        except OSError:
            pass  # rank 0 is not there yet, or not any more: then the generation ends
        SystemClock().sleep(LOOK_S)
    raise PeerLostError(f"generation {number} ended before it began", "the run goes on in the next one")


def _memory_name(number: int) -> str:
    return f"paceline-{number}"


def make_equal(
    world: GenerationWorld,
    committed: int,
    evaluated: int,
    snapshot: Callable[[], Snapshot],
    restore: Callable[[Snapshot], None],
    timeout_s: float,
) -> Healed:
    """Every worker has the newest committed state when this returns.

    Of equally many committed steps, the state with more evaluations is newer.
    """
    meeting = Meeting(world, world.rank, clock=SystemClock(), timeout_s=timeout_s, first_place=PLACES)
    world.words[world.rank, _COMMITTED] = committed
    world.words[world.rank, _EVALUATED] = evaluated
    meeting.meet()
    known = [(int(mine[_COMMITTED]), int(mine[_EVALUATED])) for mine in world.words]
    newest = max(known)
    source = known.index(newest)
    if min(known) == newest:
        return Healed(newest[0], None, 0)
    behind = tuple(rank for rank, progress in enumerate(known) if progress < newest)
    data = to_bytes(snapshot()) if world.rank == source else b""
    if world.rank == source:
        world.words[source, _BYTES], world.words[source, _HASH] = len(data), _hash_word(data)
    meeting.meet()
    size = int(world.words[source, _BYTES])
    (room,) = world.map_vectors(1, size, torch.uint8)
    if world.rank == source:
        room.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
    meeting.meet()
    if known[world.rank] == newest:
        return Healed(newest[0], None, 0, behind)
    received = room.numpy().tobytes()
    if _hash_word(received) != int(world.words[source, _HASH]):
        raise TrainingError(
            "the state that another worker sent does not have the hash that it said",
            "this should never happen on one machine: check its memory",
        )
    restore(from_bytes(received))
    return Healed(newest[0], source, size, behind)


def _hash_word(data: bytes) -> int:
    return int.from_bytes(sha256(data).digest()[:7], "little")  # fits into a signed word

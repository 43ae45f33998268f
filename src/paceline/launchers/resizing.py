"""An operator wants more or fewer workers: who is started, who is asked to leave, or why not? Pure."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asked of the run."""

    number: int
    kind: str  # add, remove, checkpoint
    count: int = 1
    worker: str = ""  # remove: this one; empty: whoever is newest


@dataclass(frozen=True, slots=True)
class Granted:
    number: int
    start: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    reason: str = ""
    is_saving: bool = False  # nobody comes or goes: the run's log will say that it was saved


@dataclass(frozen=True, slots=True)
class Refused:
    number: int
    reason: str


Answer = Granted | Refused


@dataclass(frozen=True, slots=True)
class Crew:
    """Who is there, and how many there may be."""

    here: Collection[str]  # who lives or is about to be replaced
    leaving: Collection[str]  # who was asked to leave and still lives
    fewest: int
    most: int
    names: int  # shards of the run: there is a name for each


def answer(wish: Wish, crew: Crew) -> Answer:
    if wish.count < 1:
        return Refused(wish.number, f"{wish.count} workers were named, but it takes 1 or more")
    match wish.kind:
        case "add":
            return _add(wish, crew)
        case "remove":
            return _remove(wish, crew)
        case "checkpoint":
            return Granted(wish.number, reason="a checkpoint is written after the next step", is_saving=True)
        case _:
            return Refused(wish.number, f"this run knows no action {wish.kind!r}")


def _add(wish: Wish, crew: Crew) -> Answer:
    after = len(crew.here) + wish.count
    if after > crew.most:
        cause = "it has no more shards" if crew.most == crew.names else "as --max-workers says"
        return Refused(wish.number, f"it would have {after} workers, and takes {crew.most} at most: {cause}")
    taken = {*crew.here, *crew.leaving}
    free = [name for index in range(crew.names) if (name := f"worker-{index}") not in taken]
    if len(free) < wish.count:
        return Refused(wish.number, f"{len(crew.leaving)} workers are still leaving; ask again in a moment")
    start = tuple(free[: wish.count])
    return Granted(wish.number, start=start, reason=f"{', '.join(start)} added: {after} workers are wanted")


def _remove(wish: Wish, crew: Crew) -> Answer:
    if wish.worker and wish.worker not in crew.here:
        return Refused(wish.number, f"{wish.worker} is not there")
    newest = sorted(crew.here, key=_index, reverse=True)
    leave = (wish.worker,) if wish.worker else tuple(newest[: wish.count])
    after = len(crew.here) - max(len(leave), wish.count)
    if after < crew.fewest:
        return Refused(
            wish.number,
            f"it would have {max(after, 0)} workers, and needs {crew.fewest}, as --min-workers says",
        )
    return Granted(wish.number, leave=leave, reason=f"{', '.join(leave)} removed: {after} workers are wanted")


def _index(name: str) -> int:
    return int(name.removeprefix("worker-"))

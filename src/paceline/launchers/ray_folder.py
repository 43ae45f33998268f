"""How does what actors say become a run folder? The launcher writes it, as the workers would have."""

import json
from pathlib import Path

from paceline.checkpoints.catalog import DAMAGED, Checkpoint, facts_of, folder_at, newest_complete, number_of
from paceline.checkpoints.catalog import verified as verified_snapshot
from paceline.checkpoints.packed import packed
from paceline.checkpoints.retention import is_complete, remove_old, set_aside
from paceline.checkpoints.sealed import seal
from paceline.clock import SystemClock
from paceline.disk import make_folder, write_durably
from paceline.events.log import EventLog
from paceline.launchers.local import Message
from paceline.launchers.ray_needs import has_server
from paceline.plan.catalog import is_split
from paceline.plan.plan import Plan

_NO_TENSORS = (2).to_bytes(8, "little") + b"{}"  # an empty safetensors file


class WrittenFolder:
    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan, self._run_dir, self._root = plan, run_dir, run_dir / "checkpoints"
        self._participants = 1 if has_server(plan) else plan.num_workers
        self._events = EventLog(run_dir / "events.jsonl", who="launcher", clock=SystemClock())

    def events(self, lines: str) -> None:
        if lines:
            self._events.append_lines(lines.encode())

    def log(self, who: str, text: str) -> None:
        if text:
            path = self._run_dir / "logs" / f"{who}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(text)

    def image(self, message: Message, tensors: bytes) -> Message:
        """Write a snapshot; what its participant is answered."""
        folder, who = folder_at(self._root, int(str(message["at"]))), str(message["who"])
        facts = message["facts"]
        assert isinstance(facts, dict), "a snapshot's facts are an object"
        answer: Message = {
            "number": message["number"],
            "failure": "",
            "bytes": 0,
            "sha256": "",
            "removed": [],
        }
        try:
            make_folder(folder)
            sealed, sha256 = seal(facts, tensors)
            if not _is_there(folder, who):
                write_durably(folder / f"{who}.safetensors", [tensors])
                write_durably(folder / f"{who}.json", [sealed])
            removed: list[int] = []
            if is_complete(folder, self._participants):
                removed = remove_old(
                    self._root, participants=self._participants, keep=self._plan.keep_checkpoints
                )
        except OSError as error:
            return {**answer, "failure": f"{error.strerror or error} ({error.filename or folder})"}
        return {**answer, "bytes": len(tensors) + len(sealed), "sha256": sha256, "removed": list(removed)}

    def saved(self, folder: Path, who: str) -> bytes:
        """What a participant needs to go on, in one piece; behind a server a worker needs no tensors."""
        if is_split(self._plan.mode):
            return packed(folder)  # there may be another number of workers now, with other parts
        if has_server(self._plan):
            found = verified_snapshot(folder, "server-0")
            tensors = found.tensors if who == "server-0" else _NO_TENSORS
        else:
            found = verified_snapshot(folder, who)
            tensors = found.tensors
        facts = json.dumps(found.facts).encode()
        return len(facts).to_bytes(8, "little") + facts + tensors

    def go_back(self, cause: str) -> Checkpoint | None:
        """To the newest checkpoint, after a loss; None: to the beginning. What came later never happened."""
        found = newest_complete(self._root, self._plan.num_workers)
        set_aside(self._root, after=-1 if found is None else number_of(found.folder))
        clocks = (0,) * self._plan.num_workers if found is None else found.clocks
        log = EventLog(self._run_dir / "events.jsonl", who="launcher", clock=SystemClock())
        log.write("worker_lost", cause=cause)
        version = 0 if found is None else found.version
        log.write("run_resumed", version=version, clocks=",".join(map(str, clocks)))
        log.close()
        return found


def _is_there(folder: Path, who: str) -> bool:
    """Of the same step of the same history, so it is the same."""
    try:
        facts_of(folder, who)
    except DAMAGED:
        return False
    return True

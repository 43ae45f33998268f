"""The run folder over a connection: `RunFolder` at the command, `Scratch` at an agent.

An agent sends events before the checkpoint that follows them, so a checkpoint is never ahead of the log. A
file gets its name when it is whole. Only names that participants of a run write are accepted.
"""

import os
import re
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from paceline.checkpoints.catalog import (
    DAMAGED,
    facts_of,
    folder_at,
    is_complete,
    newest_complete,
    newest_shared,
    remove_old,
    return_to_newest,
)
from paceline.core.clock import SystemClock, unix_now_s
from paceline.core.disk import make_folder, sync_folder
from paceline.core.errors import ProtocolError
from paceline.events import segments
from paceline.events.log import EventLog, write_header
from paceline.launchers.agents.wire import MAX_BLOB_BYTES, Message
from paceline.plan.catalog import server_names
from paceline.plan.plan import EventDetail, Plan

_CHECKPOINT = re.compile(r"checkpoints/at-\d{1,18}/[a-z]+-\d{1,6}\.(safetensors|json)")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_LOG = re.compile(r"[a-z]+-\d{1,6}(-[a-z])?")
_OWN = frozenset({"plan.json", "result.json", "elastic.json"})  # that the command writes itself
CHUNK_BYTES = MAX_BLOB_BYTES


def is_result_file(name: str) -> bool:
    """Whether a file of this name in the folder may come from a participant, such as a task's results."""
    return bool(_PLAIN.fullmatch(name)) and name not in _OWN and not name.startswith(("events.", "watch."))


def is_checkpoint_file(name: str) -> bool:
    """Whether the command may send a file of this name to a host."""
    folder, *names = name.split("/")
    return folder == "checkpoints" and len(names) == 2 and all(map(_PLAIN.fullmatch, names))


class RunFolder:
    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan = plan
        self._run_dir = run_dir
        path = None if plan.events is EventDetail.OFF else run_dir / "events.jsonl"
        self._events = EventLog(path, who="launcher", clock=SystemClock())
        self._drafts: dict[tuple[str, str], FileIO] = {}  # by host and path
        self._begun_lines: dict[str, bytes] = {}  # by host: what came of its next line of the event log

    def append_events(self, host: str, data: bytes) -> None:
        """A line may come in two messages; other hosts' lines may arrive between them."""
        lines, newline, rest = (self._begun_lines.get(host, b"") + data).rpartition(b"\n")
        self._begun_lines[host] = rest
        self._events.append_lines(lines + newline)

    def append_log(self, participant: str, text: bytes) -> None:
        if not _LOG.fullmatch(participant):
            raise ProtocolError(f"{participant!r} is not a participant", "upgrade paceline on that host")
        path = self._run_dir / "logs" / f"{participant}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text)

    def receive(self, host: str, message: Message, data: bytes) -> None:
        """One part of a file; OSError when it cannot be written, and then its other parts are ignored."""
        name = str(message["path"])
        if not (_CHECKPOINT.fullmatch(name) or is_result_file(name)):
            raise ProtocolError(f"{name!r} is not a file of a run", "upgrade paceline on that host")
        path = self._run_dir / name
        draft = path.with_name(f".{path.name}.{host}.part")
        key = (host, name)
        if message["is_first"]:
            make_folder(path.parent)
            self._drop(key)
            self._drafts[key] = draft.open("wb", buffering=0)
        file = self._drafts.get(key)
        if file is None:
            return
        try:
            _write_all(file, data)
            if message["is_last"]:
                os.fsync(file.fileno())
                draft.rename(path)
                del self._drafts[key]
                file.close()
                sync_folder(path.parent)
        except OSError:
            self._drop(key)
            raise

    def forget(self, host: str) -> None:
        """Its connection has ended: remove what was not whole."""
        self._begun_lines.pop(host, None)
        for key in [key for key in self._drafts if key[0] == host]:
            self._drop(key)

    def stored(self, message: Message) -> Message:
        """The answer to a participant that saves: its snapshot is here, and which older ones were removed."""
        at = int(str(message["at"]))
        root = self._run_dir / "checkpoints"
        folder = folder_at(root, at)
        try:
            facts_of(folder, str(message["who"]))
        except DAMAGED as error:
            return {"failure": str(error) or type(error).__name__, "removed": []}
        participants = int(str(message["participants"]))
        removed: list[int] = []
        if is_complete(folder, participants):
            removed = remove_old(root, participants=participants, keep=self._plan.keep_checkpoints)
        return {"failure": "", "removed": list(removed)}

    def return_to_newest(self) -> int:
        """The number of the newest checkpoint with the parts of all workers; newer ones are set aside."""
        return return_to_newest(self._run_dir / "checkpoints", self._plan.num_workers)

    def newest(self) -> Path | None:
        """The newest complete checkpoint that one participant wrote for all."""
        newest = newest_complete if server_names(self._plan) else newest_shared
        found = newest(self._run_dir / "checkpoints", self._plan.num_workers)
        return None if found is None else found.folder

    def close(self) -> None:
        for key in list(self._drafts):
            self._drop(key)
        self._events.close()

    def _drop(self, key: tuple[str, str]) -> None:
        file = self._drafts.pop(key, None)
        if file is not None:
            file.close()
            Path(str(file.name)).unlink(missing_ok=True)


def _write_all(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def parts_of(path: Path, name: str) -> Iterator[tuple[Message, bytes]]:
    """A file as messages that `receive` takes, under this name."""
    with path.open("rb") as file:
        yield from parts_of_open(file, name)


def parts_of_open(file: BinaryIO, name: str) -> Iterator[tuple[Message, bytes]]:
    """The same of a file that is open, also when it was removed since."""
    size = os.fstat(file.fileno()).st_size
    sent = 0
    while True:
        data = file.read(CHUNK_BYTES)
        is_first = sent == 0
        sent += len(data)
        is_last = sent >= size or not data
        yield {"path": name, "is_first": is_first, "is_last": is_last}, data
        if is_last:
            return


# Participants write into a scratch folder of their host as they do on one machine, so what a killed process
# had written is not lost. The event log is read up to its last whole line, through rotations of its segments.


class Scratch:
    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        make_folder(folder)
        self._events = folder / "events.jsonl"
        now_ns = SystemClock().now_ns()
        write_header(self._events, run=run, plan="", t0_ns=now_ns, started_unix_s=unix_now_s())
        self._sent_events = segments.end_of_lines(self._events)
        self._sent_logs: dict[str, int] = {}  # bytes of each log
        self._sent_files: dict[str, tuple[int, int]] = {}  # size and time of each result file

    def take_text(self) -> Iterator[tuple[Message, bytes]]:
        """New lines of the event log and of the participants' logs, as messages."""
        end = segments.end_of_lines(self._events)
        for data in segments.chunks(self._events, self._sent_events, end=end):
            self._sent_events += len(data)
            yield {"ev": "events"}, data
        for path in sorted((self.folder / "logs").glob("*.log")):
            if not _LOG.fullmatch(path.stem):
                continue  # a task's own file
            with path.open("rb") as file:
                file.seek(self._sent_logs.get(path.stem, 0))
                while data := file.read(MAX_BLOB_BYTES):
                    self._sent_logs[path.stem] = file.tell()
                    yield {"ev": "log", "who": path.stem}, data

    def take_results(self) -> list[Path]:
        """Files that tasks left in the folder since the last call."""
        new = []
        for path in sorted(self.folder.iterdir()):
            if not path.is_file() or not is_result_file(path.name):
                continue
            status = path.stat()
            state = (status.st_size, status.st_mtime_ns)
            if self._sent_files.get(path.name) != state:
                self._sent_files[path.name] = state
                new.append(path)
        return new

"""Runs in a store as local folders, for commands that read a run folder from anywhere.

A mirror is a run folder in this user's cache that is brought up to date from the store: new bytes of the
event log are appended, files replaced, and complete checkpoints fetched for readers that need them. When
another command continued the run from an earlier line than the mirror has, the log is fetched again.
"""

import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path

from paceline.checkpoints.catalog import DAMAGED, folder_at, folders, number_of
from paceline.core import environ
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.disk import exclusive, write_durably
from paceline.core.errors import DamagedRecordError, FolderInUseError, PacelineError
from paceline.plan.codec import COPY
from paceline.plan.plan import Plan
from paceline.storage.run_store import PLAN, RESULT, RULES, RunSession, RunStore
from paceline.training.resume import CHECKPOINT_DIR
from paceline.training.run_sessions import stored_run

UPDATE_S = 2.0
IN_USE_S = 60.0  # for another command that brings the same mirror up to date
POLL_S = 0.1
LOG = "events.jsonl"
_STATE = "mirror.json"


class Contents(Enum):
    """What a reader of a run needs."""

    RECORD = "record"  # plan, event log and result
    ALL = "all"  # and the checkpoints


class RunMirror:
    def __init__(self, url: str) -> None:
        store, plan = stored_run(url)
        self._store: RunStore = store
        self._plan: Plan = plan
        digest = hashlib.sha256(f"{environ.s3_endpoint()} {store.url}".encode()).hexdigest()[:16]
        self._root = environ.mirrors_folder() / digest
        self.folder = self._root / plan.run

    def update(self, contents: Contents) -> None:
        """Bring the folder up to date; StoreError if the store does not answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            _enter_exclusive(self._root, stack)
            sessions = self._store.sessions()
            self._update_log(sessions)
            for name in (PLAN, RULES):
                self._replace(name, self._store.read_file(name))
            self._replace(COPY, self._store.plan())
            self._replace(RESULT, self._store.result())
            if contents is Contents.ALL:
                self._update_checkpoints()

    def follow(self, contents: Contents, note: Callable[[str], None]) -> None:
        """Keep the folder up to date while this process runs; a failure is reported once."""

        def run() -> None:
            has_failed = False
            while True:
                SystemClock().sleep(UPDATE_S)
                try:
                    self.update(contents)
                    has_failed = False
                except (PacelineError, OSError) as error:
                    if not has_failed:
                        note(f"warning: {self._store.url} cannot be read now: {error}")
                    has_failed = True

        threading.Thread(target=run, name="run-mirror", daemon=True).start()

    def _update_log(self, sessions: list[RunSession]) -> None:
        path = self.folder / LOG
        have, at = self._state(sessions[0].token)
        if any(later.log_from < at for later in sessions[have:]):
            at = 0  # lines of a command that was replaced; what replaced it began before them
        size = path.stat().st_size if path.exists() else 0
        if size < at:
            at = 0
        with path.open("r+b" if at else "wb") as file:
            file.truncate(at)
            file.seek(at)
            for data in self._store.read_log(at):
                file.write(data)
                file.flush()
                at += len(data)
        state = {"run": sessions[0].token, "sessions": len(sessions), "log_bytes": at}
        write_durably(self.folder / _STATE, [json.dumps(state).encode()])

    def _state(self, run: str) -> tuple[int, int]:
        """(sessions, bytes of the log) that were taken before; nothing if the store held another run then."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            state = json.loads((self.folder / _STATE).read_bytes())
            if state["run"] == run:
                return int(state["sessions"]), int(state["log_bytes"])
            shutil.rmtree(self.folder / CHECKPOINT_DIR, ignore_errors=True)
        return 0, 0

    def _replace(self, name: str, data: bytes | None) -> None:
        path = self.folder / name
        if data is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_bytes() != data:
            write_durably(path, [data])

    def _update_checkpoints(self) -> None:
        root = self.folder / CHECKPOINT_DIR
        stored = self._store.checkpoints()
        for folder in folders(root):
            if number_of(folder) not in stored:
                shutil.rmtree(folder)
        for number, checkpoints in stored.items():
            if folder_at(root, number).exists():
                continue
            try:
                checkpoints.download(number, root)
            except FileNotFoundError:
                continue  # a newer one replaced it meanwhile
            except DAMAGED as error:
                raise DamagedRecordError(
                    f"checkpoint at-{number:08d} in {self._store.url} is damaged: {error}",
                    f"a run that resumes uses the one before; remove {checkpoints.name(number)}",
                ) from error


def _enter_exclusive(folder: Path, stack: ExitStack) -> None:
    """Wait for another command that holds the mirror."""
    until_s = monotonic_s() + IN_USE_S
    while True:
        try:
            stack.enter_context(exclusive(folder))
            return
        except FolderInUseError:
            if monotonic_s() > until_s:
                raise
            SystemClock().sleep(POLL_S)


def open_mirror(url: str, contents: Contents, note: Callable[[str], None] | None = None) -> Path:
    """The folder of the run in this store, up to date; with `note` it is kept so while this process runs."""
    mirror = RunMirror(url)
    mirror.update(contents)
    if note is not None:
        mirror.follow(contents, note)
    return mirror.folder

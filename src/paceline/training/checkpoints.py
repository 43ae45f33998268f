"""Checkpoints of a run: list, verify and export them, and upload new ones to the object store.

The uploader is a thread of the launching process. Workers report each new checkpoint; the thread copies the
newest complete one and skips those in between when it falls behind. A failed upload is reported once and
retried with the next checkpoint; training never waits for it.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.checkpoints.catalog import (
    DAMAGED,
    folders,
    newest_complete,
    newest_shared,
    number_of,
    read_complete,
    read_shared,
    verified,
)
from paceline.core.errors import AlreadyThereError, NoCheckpointError
from paceline.events.read import read_history
from paceline.launchers.json_subprocess import json_lines
from paceline.plan.codec import Json, read
from paceline.plan.plan import Plan
from paceline.storage.checkpoint_store import ObjectStore, StoreError
from paceline.training.resume import CHECKPOINT_DIR, has_shared_snapshot

FORMATS = ("safetensors", "dcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One checkpoint in the run folder."""

    at: int  # its number: shares of the work or updates, by mode; what --at takes
    steps: int | None  # of the run that it holds; None when it cannot be read
    bytes: int
    valid: bool
    why_not: str
    pinned_by: str  # who counts on it: `resume` would take it, the coordinator's `catalogue` has it


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFinding:
    file: str
    ok: bool
    seen: str


def list_checkpoints(run_dir: Path) -> list[Row]:
    """Oldest first."""
    plan = read(run_dir / "plan.json")
    found = folders(run_dir / CHECKPOINT_DIR)
    noted = _catalogued_names(run_dir)
    rows: list[Row] = []
    is_newest = True
    for folder in reversed(found):
        steps, why_not = _read(plan, folder)
        pins = ["resume"] if is_newest and steps is not None else []
        is_newest = is_newest and steps is None
        if folder.name in noted:
            pins.append("catalogue")
        rows.append(
            Row(
                at=number_of(folder),
                steps=steps,
                bytes=sum(path.stat().st_size for path in folder.iterdir()),
                valid=steps is not None,
                why_not=why_not,
                pinned_by=", ".join(pins),
            )
        )
    return rows[::-1]


def verify_checkpoints(run_dir: Path) -> list[FileFinding]:
    """Every snapshot of every checkpoint, read and hashed."""
    read(run_dir / "plan.json")  # is it a run at all?
    findings = []
    for folder in folders(run_dir / CHECKPOINT_DIR):
        for who in sorted({path.stem for path in folder.glob("*-*.*") if path.suffix != ".part"}):
            name = f"{folder.name}/{who}"
            try:
                sha256 = verified(folder, who).sha256
                findings.append(FileFinding(file=name, ok=True, seen=sha256))
            except DAMAGED as error:
                findings.append(FileFinding(file=name, ok=False, seen=str(error)))
    return findings


def export_weights(run_dir: Path, *, at: int | None, worker: int, kind: str, out: Path) -> dict[str, Json]:
    """Plain weights under the module's own names, from the newest valid checkpoint or the one `at`."""
    folder = _chosen(run_dir, at)
    who = "server-0" if (folder / "server-0.json").exists() else f"worker-{worker}"
    if out.exists():
        raise AlreadyThereError(f"{out} exists already", "name a new file or folder with --out")
    answer: dict[str, Json] = {}
    for message in json_lines("paceline.worker.entry.export_weights", [str(folder), who, kind, str(out)]):
        answer = message
    return {"checkpoint": folder.name, "who": who, "format": kind, "out": str(out), **answer}


def to_rows(found: Sequence[Row] | Sequence[FileFinding]) -> list[Json]:
    return [dict(asdict(one)) for one in found]


def _chosen(run_dir: Path, at: int | None) -> Path:
    rows = list_checkpoints(run_dir)
    valid = [row.at for row in rows if row.valid]
    if at is None and valid:
        return run_dir / CHECKPOINT_DIR / f"at-{valid[-1]:08d}"
    if at is not None and at in valid:
        return run_dir / CHECKPOINT_DIR / f"at-{at:08d}"
    what = "no checkpoint" if at is None else f"no checkpoint at {at}"
    there = ", ".join(map(str, valid)) or "none"
    raise NoCheckpointError(
        f"{run_dir} has {what} that can be read; there are: {there}",
        f"look at them with  paceline checkpoint list {run_dir}",
    )


def _read(plan: Plan, folder: Path) -> tuple[int | None, str]:
    reader = read_shared if has_shared_snapshot(plan) else read_complete
    try:
        checkpoint = reader(folder, plan.num_workers)
    except DAMAGED as error:
        return None, f"incomplete or damaged: {error}"
    return sum(checkpoint.clocks) // plan.num_workers, ""


def _catalogued_names(run_dir: Path) -> set[str]:
    """What the coordinator has noted, by the run's own log."""
    log = run_dir / "events.jsonl"
    if not log.exists():
        return set()
    events = (event for event in read_history(log).plain if event.kind == "checkpoint")
    return {str(event.fields["path"]) for event in events if event.fields.get("catalogued")}


# It copies the newest whole one into the object store, and tells the coordinator
# which ones are gone. Workers say when there is something new. If it falls
# behind, it takes the newest and leaves out those between. What fails is said
# once and tried again with the next one; training does not notice.


class CheckpointUploader:
    def __init__(
        self, plan: Plan, run_dir: Path, store: ObjectStore | None, note: Callable[[str], None]
    ) -> None:
        self._drop: Callable[[int], None] | None = None
        self._dropping = threading.Lock()
        self.uploaded: list[str] = []
        self._plan = plan
        self._root = run_dir / CHECKPOINT_DIR
        self._store = store
        self._note = note
        self._changed = threading.Condition()
        self._removed: deque[int] = deque()
        self._has_news = self._is_closing = self._is_failing = False
        self._sent = -1  # the newest that the store has from us
        self._thread: threading.Thread | None = None  # from the first checkpoint on

    def heard(self, message: dict[str, Json]) -> None:
        """A worker's message that a checkpoint was written."""
        with self._changed:
            self._removed.extend(int(number) for number in str(message["removed"]).split(",") if number)
            self._has_news = True
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="checkpoint-keeper", daemon=True)
            self._thread.start()

    @contextmanager
    def telling(self, drop: Callable[[int], None]) -> Iterator[None]:
        """While this lasts, `drop` tells the catalogue after which step a checkpoint is gone."""
        self._drop = drop
        try:
            yield
        finally:
            with self._dropping:
                self._drop = None

    def close(self, *, wait: bool) -> None:
        """With `wait` the newest checkpoint is in the store when this returns, or it was said why not."""
        with self._changed:
            self._is_closing = True
            self._has_news |= wait
            self._changed.notify_all()
        if wait and self._thread is not None:
            self._thread.join()

    def _keep(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_news or self._is_closing)
                if not self._has_news:
                    return
                self._has_news = False
            self._drop_removed()
            if self._store is not None:
                self._copy_newest(self._store)

    def _drop_removed(self) -> None:
        while self._removed:
            number = self._removed.popleft()
            with self._dropping:
                if self._drop is not None:  # workers name them by shares, servers by versions
                    shares = self._plan.num_workers if has_shared_snapshot(self._plan) else 1
                    self._drop(number // shares)

    def _copy_newest(self, store: ObjectStore) -> None:
        newest = newest_shared if has_shared_snapshot(self._plan) else newest_complete
        found = newest(self._root, self._plan.num_workers)
        if found is None or number_of(found.folder) <= self._sent:
            return
        try:
            store.upload(found.folder)
            self._sent = number_of(found.folder)
            self.uploaded.append(found.folder.name)
            for number in store.numbers()[: -self._plan.keep_checkpoints]:
                store.remove(number)
        except (StoreError, FileNotFoundError) as error:  # or it was removed meanwhile, for newer ones
            if not self._is_failing:
                self._note(f"warning: checkpoint {found.folder.name} is not in {store.url}: {error}")
            self._is_failing = True
            return
        self._is_failing = False

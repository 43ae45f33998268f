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
    steps: int | None  # steps of the run in it; None if it cannot be read
    bytes: int
    valid: bool
    why_not: str
    pinned_by: str  # `resume` would use it, the coordinator's `catalogue` lists it


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFinding:
    file: str
    ok: bool
    seen: str


def list_checkpoints(run_dir: Path) -> list[Row]:
    """Oldest first."""
    plan = read(run_dir / "plan.json")
    checkpoint_dirs = folders(run_dir / CHECKPOINT_DIR)
    catalogued = _catalogued_names(run_dir)
    rows: list[Row] = []
    is_newest = True
    for folder in reversed(checkpoint_dirs):
        steps, why_not = _read(plan, folder)
        pins = ["resume"] if is_newest and steps is not None else []
        is_newest = is_newest and steps is None
        if folder.name in catalogued:
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
    read(run_dir / "plan.json")  # raises if it is not a run
    findings = []
    for folder in folders(run_dir / CHECKPOINT_DIR):
        for participant in sorted({path.stem for path in folder.glob("*-*.*") if path.suffix != ".part"}):
            name = f"{folder.name}/{participant}"
            try:
                sha256 = verified(folder, participant).sha256
                findings.append(FileFinding(file=name, ok=True, seen=sha256))
            except DAMAGED as error:
                findings.append(FileFinding(file=name, ok=False, seen=str(error)))
    return findings


def export_weights(run_dir: Path, *, at: int | None, worker: int, kind: str, out: Path) -> dict[str, Json]:
    """Plain weights under the module's own names, from the newest valid checkpoint or the one `at`."""
    folder = _chosen(run_dir, at)
    participant = "server-0" if (folder / "server-0.json").exists() else f"worker-{worker}"
    if out.exists():
        raise AlreadyThereError(f"{out} exists already", "name a new file or folder with --out")
    answer: dict[str, Json] = {}
    for message in json_lines(
        "paceline.worker.entry.export_weights", [str(folder), participant, kind, str(out)]
    ):
        answer = message
    return {"checkpoint": folder.name, "who": participant, "format": kind, "out": str(out), **answer}


def to_rows(records: Sequence[Row] | Sequence[FileFinding]) -> list[Json]:
    return [dict(asdict(record)) for record in records]


def _chosen(run_dir: Path, at: int | None) -> Path:
    rows = list_checkpoints(run_dir)
    valid = [row.at for row in rows if row.valid]
    if at is None and valid:
        return run_dir / CHECKPOINT_DIR / f"at-{valid[-1]:08d}"
    if at is not None and at in valid:
        return run_dir / CHECKPOINT_DIR / f"at-{at:08d}"
    missing = "no checkpoint" if at is None else f"no checkpoint at {at}"
    available = ", ".join(map(str, valid)) or "none"
    raise NoCheckpointError(
        f"{run_dir} has {missing} that can be read; there are: {available}",
        f"list them:  paceline checkpoint list {run_dir}",
    )


def _read(plan: Plan, folder: Path) -> tuple[int | None, str]:
    reader = read_shared if has_shared_snapshot(plan) else read_complete
    try:
        checkpoint = reader(folder, plan.num_workers)
    except DAMAGED as error:
        return None, f"incomplete or damaged: {error}"
    return sum(checkpoint.clocks) // plan.num_workers, ""


def _catalogued_names(run_dir: Path) -> set[str]:
    """Checkpoints in the coordinator's catalogue, according to the run's log."""
    log = run_dir / "events.jsonl"
    if not log.exists():
        return set()
    events = (event for event in read_history(log).plain if event.kind == "checkpoint")
    return {str(event.fields["path"]) for event in events if event.fields.get("catalogued")}


class CheckpointUploader:
    """Thread that uploads new checkpoints and reports removed ones to the coordinator."""

    def __init__(
        self, plan: Plan, run_dir: Path, store: ObjectStore | None, note: Callable[[str], None]
    ) -> None:
        self._drop: Callable[[int], None] | None = None
        self._drop_lock = threading.Lock()
        self.uploaded: list[str] = []
        self._plan = plan
        self._root = run_dir / CHECKPOINT_DIR
        self._store = store
        self._note = note
        self._changed = threading.Condition()
        self._removed: deque[int] = deque()
        self._is_pending = self._is_closing = self._is_failing = False
        self._last_uploaded = -1  # number of the newest uploaded checkpoint
        self._thread: threading.Thread | None = None  # started by the first checkpoint

    def on_checkpoint(self, message: dict[str, Json]) -> None:
        """Handle a worker's message that it wrote a checkpoint."""
        with self._changed:
            self._removed.extend(int(number) for number in str(message["removed"]).split(",") if number)
            self._is_pending = True
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint-keeper", daemon=True)
            self._thread.start()

    @contextmanager
    def reporting_removals(self, drop: Callable[[int], None]) -> Iterator[None]:
        """Within this context, `drop(step)` is called for each checkpoint that was removed."""
        self._drop = drop
        try:
            yield
        finally:
            with self._drop_lock:
                self._drop = None

    def close(self, *, wait: bool) -> None:
        """End the thread. With `wait`, first upload the newest checkpoint, or note why that failed."""
        with self._changed:
            self._is_closing = True
            self._is_pending |= wait
            self._changed.notify_all()
        if wait and self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_pending or self._is_closing)
                if not self._is_pending:
                    return
                self._is_pending = False
            self._drop_removed()
            if self._store is not None:
                self._upload_newest(self._store)

    def _drop_removed(self) -> None:
        while self._removed:
            number = self._removed.popleft()
            with self._drop_lock:
                if self._drop is not None:  # workers number them by shares, servers by versions
                    shares = self._plan.num_workers if has_shared_snapshot(self._plan) else 1
                    self._drop(number // shares)

    def _upload_newest(self, store: ObjectStore) -> None:
        newest = newest_shared if has_shared_snapshot(self._plan) else newest_complete
        checkpoint = newest(self._root, self._plan.num_workers)
        if checkpoint is None or number_of(checkpoint.folder) <= self._last_uploaded:
            return
        try:
            store.upload(checkpoint.folder)
            self._last_uploaded = number_of(checkpoint.folder)
            self.uploaded.append(checkpoint.folder.name)
            for number in store.numbers()[: -self._plan.keep_checkpoints]:
                store.remove(number)
        except (StoreError, FileNotFoundError) as error:  # or a newer checkpoint replaced it meanwhile
            if not self._is_failing:
                self._note(f"warning: checkpoint {checkpoint.folder.name} is not in {store.url}: {error}")
            self._is_failing = True
            return
        self._is_failing = False

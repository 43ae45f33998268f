"""Checkpoints of a run: list, verify and export them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.checkpoints.catalog import (
    DAMAGED,
    folders,
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

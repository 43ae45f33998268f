"""Installs and removes skills in an agent's folder, with a record of what was installed.

The record `paceline-skills.json` lies beside `skills/` and `commands/`, so that a project's record can be
committed with them. It holds the digest of every installed file, and the folders that were created.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline import __version__
from paceline.core.disk import write_durably
from paceline.core.errors import CannotWriteError, UnreadableFileError
from paceline.skills.bundle import FilePath, Unit, is_script
from paceline.skills.changes import (
    Action,
    Change,
    Digest,
    ShippedUnit,
    digest,
    plan_install,
    plan_uninstall,
    updated_record,
)
from paceline.skills.places import Place

RECORD_NAME = "paceline-skills.json"
_SCHEMA = "paceline.skills-record/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    files: Mapping[FilePath, Digest]
    folders: Sequence[FilePath]  # created by an installation, outermost first


def install(place: Place, units: Sequence[Unit], shipped: Sequence[Unit], *, dry_run: bool) -> list[Change]:
    """Install `units`; `shipped` are all of this version, of which some may not be wanted."""
    record = read_record(place.folder)
    known = {path for unit in shipped for path in unit.files}
    retired = [path for path in record.files if path not in known]
    contents = {path: data for unit in units for path, data in unit.files.items()}
    present = _present(place.folder, [*contents, *retired])
    wanted = [
        ShippedUnit(entry=unit.entry, digests={path: digest(data) for path, data in unit.files.items()})
        for unit in units
    ]
    changes = plan_install(wanted, retired, present, record.files)
    if not dry_run:
        digests = {path: digest(data) for path, data in contents.items()}
        with _write_errors(place.folder):
            _apply(place.folder, changes, contents, digests, record)
    return changes


def uninstall(place: Place, names: Iterable[FilePath] | None, *, dry_run: bool) -> list[Change]:
    """Remove recorded files; only those of these paths, if some are given."""
    record = read_record(place.folder)
    paths = [path for path in record.files if names is None or path in set(names)]
    changes = plan_uninstall(paths, _present(place.folder, paths), record.files)
    if not dry_run:
        with _write_errors(place.folder):
            _apply(place.folder, changes, {}, {}, record)
    return changes


def read_record(folder: Path) -> Record:
    path = folder / RECORD_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Record(files={}, folders=())
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    try:
        data = json.loads(text)
        files = {FilePath(str(name)): Digest(str(value)) for name, value in data["files"].items()}
        folders = [FilePath(str(name)) for name in data["folders"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, f"no record of {_SCHEMA}") from error
    # A record comes with a project's repository: its names must not lead out of the folder.
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in (*files, *folders)):
        raise _unreadable(path, "it names a file outside of its folder")
    return Record(files=files, folders=folders)


def file_digest(path: Path) -> Digest | None:
    """None: nothing is there. A link or a folder is a user's, whatever it leads to."""
    if path.is_symlink():
        return Digest("a symbolic link")
    if not path.exists():
        return None
    return digest(path.read_bytes()) if path.is_file() else Digest("no regular file")


def _present(folder: Path, paths: Iterable[FilePath]) -> dict[FilePath, Digest]:
    seen = {path: file_digest(folder / path) for path in paths}
    return {path: value for path, value in seen.items() if value is not None}


def _apply(
    folder: Path,
    changes: Sequence[Change],
    contents: Mapping[FilePath, bytes],
    digests: Mapping[FilePath, Digest],
    record: Record,
) -> None:
    folders = list(record.folders)
    for change in changes:
        target = folder / change.path
        match change.action:
            case Action.CREATED | Action.UPDATED:
                folders += _create_folders(folder, target.parent, folders)
                mode = 0o777 if is_script(change.path) else 0o666
                write_durably(target, [contents[change.path]], mode=mode)
            case Action.REMOVED:
                target.unlink()
            case Action.UNCHANGED | Action.KEPT:
                pass
    files = updated_record(changes, digests, record.files)
    kept_folders = _remove_empty(folder, folders)
    _write_record(folder, Record(files=files, folders=kept_folders))


def _create_folders(root: Path, folder: Path, known: Sequence[FilePath]) -> list[FilePath]:
    """The created ones below `root`, outermost first."""
    missing = [path for path in (folder, *folder.parents) if path.is_relative_to(root) and not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    names = [FilePath(path.relative_to(root).as_posix()) for path in reversed(missing)]
    return [name for name in names if name not in known]


def _remove_empty(root: Path, folders: Sequence[FilePath]) -> list[FilePath]:
    """Of the folders that were created here, those that stay because something is in them."""
    for name in sorted(folders, key=len, reverse=True):
        path = root / name
        if name != "." and path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
    return [name for name in folders if (root / name).is_dir()]


def _write_record(folder: Path, record: Record) -> None:
    path = folder / RECORD_NAME
    if not record.files:
        path.unlink(missing_ok=True)
        if "." in record.folders and not any(folder.iterdir()):
            folder.rmdir()
        return
    data = {
        "schema": _SCHEMA,
        "paceline": __version__,
        "files": dict(sorted(record.files.items())),
        "folders": list(record.folders),
    }
    text = json.dumps(data, indent=2) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_durably(path, [text.encode()])


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"cannot write {error.filename or folder}: {error.strerror}"
        raise CannotWriteError(
            what, "choose another folder with --scope, or change its permissions"
        ) from error


def _unreadable(path: Path, reason: str) -> UnreadableFileError:
    hint = f"remove {path}; files that are there are then treated as yours, and kept"
    return UnreadableFileError(f"cannot read {path}: {reason}", hint)

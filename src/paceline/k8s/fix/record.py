"""Record of a fix, and its undo: a folder for each run with `record.json`, before and after as YAML.

A step is recorded before it is done, so that an interrupted fix can still be undone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import CannotWriteError, ConfigError, Problem
from paceline.core.redaction import redact
from paceline.k8s.fix.actions import without_secrets
from paceline.k8s.objects import mappings
from paceline.k8s.render.pod import Object
from paceline.k8s.render.targets import to_yaml

SCHEMA = "paceline.cluster-fix/1"
FILE = "record.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change. `state`: doing, done, undone, or kept (undo leaves it, and reports why)."""

    name: str
    verb: str  # create, remove, install, addon
    kind: str = ""
    api_version: str = ""
    object: str = ""
    namespace: str = ""
    revision: int | None = None  # previous revision of the release
    made: int | None = None  # its revision after; None: not known
    cluster: str = ""  # EKS cluster of the add-on
    region: str = ""
    version: str = ""  # previous version of the add-on
    wanted: str = ""  # new version of the add-on
    state: str = "doing"


class Record:
    """`folder` is that of one run; its name is the id that `undo` takes."""

    def __init__(self, folder: Path, server: str, steps: list[Step]) -> None:
        self.folder = folder
        self.server = server
        self.steps = steps

    @property
    def id(self) -> str:
        return self.folder.name

    def begin(self, step: Step, before: Mapping[str, object] | None) -> int:
        self.steps.append(step)
        number = len(self.steps)
        self._keep(number, "before", before)
        self.save()
        return number

    def end(self, number: int, step: Step, after: Mapping[str, object] | None) -> None:
        self._keep(number, "after", after)
        self.steps[number - 1] = step
        self.save()

    def save(self) -> None:
        rows = [
            {name: getattr(step, name) for name in Step.__dataclass_fields__ if getattr(step, name) != ""}
            for step in self.steps
        ]
        value = {"schema": SCHEMA, "server": self.server, "steps": rows}
        self._write(self.folder / FILE, json.dumps(value, indent=1) + "\n")

    def _keep(self, number: int, when: str, manifest: Mapping[str, object] | None) -> None:
        step = self.steps[number - 1]
        path = self.folder / f"{number:02d}-{step.name}.{when}.yaml"
        if manifest is None:
            self._write(path, "# nothing: it did not exist\n")
            return
        plain: Object = json.loads(json.dumps(manifest))  # plain, and no part of anybody else's object
        self._write(path, redact(to_yaml([without_secrets(plain)])))

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.new")
            new.write_text(text, encoding="utf-8")
            new.replace(path)
        except OSError as error:
            hint = "run it in a writable folder: without a record nothing is changed"
            raise CannotWriteError(f"cannot write {path}: {error.strerror}", hint) from error


def new_record(folder: Path, stamp: str, server: str) -> Record:
    """`folder` holds all of them; `stamp` is the time, and two in one second get different names."""
    number = 1
    while (path := folder / (stamp if number == 1 else f"{stamp}-{number}")).exists():
        number += 1
    return Record(path, server, [])


def read_record(folder: Path, name: str) -> Record:
    """Raises ConfigError."""
    path = folder / name / FILE
    known = sorted(file.parent.name for file in folder.glob(f"*/{FILE}"))
    hint = f"there are: {', '.join(known)}" if known else f"no fix was applied from here ({folder} is empty)"
    if name not in known:
        raise ConfigError([Problem(f"there is no fix {name!r}", hint, "--undo")])
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        assert value["schema"] == SCHEMA
        steps = [Step(**row) for row in mappings(value, "steps")]  # type: ignore[arg-type]  # as it was written
        return Record(path.parent, str(value["server"]), steps)
    except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        raise ConfigError([Problem(f"{path} is not a record of a fix: {error!r}", hint, "--undo")]) from error

"""What lies in a comparison's folder, and may this comparison go on with it?

`compare.json` says which runs belong to it, by the hashes of their plans, and on
which machine each session ran something. More repeats or more modes may be added; a run
that is there with another plan, or that is none of ours, is refused.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.app.compare_plan import Layout, Turn
from paceline.disk import LOCK_NAME, exclusive, write_durably
from paceline.errors import DamagedRecordError, Problem, RunFolderError
from paceline.plan.codec import decode, plan_hash, to_json
from paceline.report.comparison import Comparison, Machine

SCHEMA = "paceline.compared-runs/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    plans: dict[str, str]  # by name of the run, the hash of its plan
    machines: tuple[Machine, ...]  # of each session
    schema: str = SCHEMA


class CompareFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, turn: Turn) -> Path:
        return self.path / "runs" / turn.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """FolderInUseError while another command works on this comparison."""
        if self.path.exists() and not self.path.is_dir():
            raise self._taken()
        self.path.mkdir(parents=True, exist_ok=True)
        with exclusive(self.path):
            yield

    def begin(self, layout: Layout) -> None:
        """Raises ConfigError if the folder holds something else."""
        plans = {turn.name: plan_hash(turn.plan) for turn in layout.turns}
        before = self._record()
        if before is not None:
            changed = [name for name, known in before.plans.items() if plans.get(name) != known]
            if changed:
                what = f"{self.path} holds another comparison: {_listed(changed)} differ from what is asked"
                hint = "ask for the same again to go on with it, or name another folder with --out"
                raise RunFolderError([Problem(what, hint, "--out")])
        elif self.path.exists() and any(path.name != LOCK_NAME for path in self.path.iterdir()):
            raise self._taken()
        (self.path / "runs").mkdir(parents=True, exist_ok=True)
        self._write(_Record(plans=plans, machines=() if before is None else before.machines))

    def note_machine(self, machine: Machine) -> None:
        """On which runs are made from here on; who only looks at finished runs changes nothing."""
        record = self._begun()
        self._write(replace(record, machines=(*record.machines, machine)))

    def machines(self) -> tuple[Machine, ...]:
        return self._begun().machines

    def write(self, comparison: Comparison) -> None:
        from paceline.report.files import write_all

        write_all(comparison, self.path)

    def _taken(self) -> RunFolderError:
        what = f"{self.path} is not empty, and holds no comparison to go on with"
        return RunFolderError([Problem(what, "name a new folder with --out", "--out")])

    def _begun(self) -> _Record:
        record = self._record()
        assert record is not None, "a comparison begins with its record"
        return record

    def _write(self, record: _Record) -> None:
        write_durably(self.path / "compare.json", [(json.dumps(to_json(record), indent=2) + "\n").encode()])

    def _record(self) -> _Record | None:
        path = self.path / "compare.json"
        try:
            found = decode(_Record, path.read_text(encoding="utf-8"), schema=SCHEMA)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise DamagedRecordError(
                f"{path} cannot be read: {error}", "name another folder with --out"
            ) from error
        assert isinstance(found, _Record), "decode(_Record, …) builds one"
        return found


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"

"""How is an event log read back? Whole, with rows rebuilt from columns.

A last line without its end (the writer was killed while writing) is left out;
any other line that cannot be read is an error.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import DamagedRecordError, NoSuchRunError
from paceline.events.sample_rows import SAMPLE_KINDS
from paceline.events.schema import SCHEMA, AbandonedRow, PartRow, ServerRow, StepRow


@dataclass(frozen=True, slots=True)
class PlainEvent:
    kind: str
    who: str
    at_ns: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Updates that were applied, and discarded when a server began again with an older version."""

    to_version: int
    last_version: int
    updates: int


@dataclass(slots=True)
class History:
    """Everything a run's log says, by participant."""

    run: str = ""
    plan: str = ""
    t0_ns: int = 0
    started_unix_s: float = 0.0
    steps: dict[int, list[StepRow]] = field(default_factory=dict)  # by rank
    abandoned: dict[int, list[AbandonedRow]] = field(default_factory=dict)  # by rank
    server: list[ServerRow] = field(default_factory=list)
    parts: list[PartRow] = field(default_factory=list)  # of the other parts, where there are several
    plain: list[PlainEvent] = field(default_factory=list)
    sessions: list[dict[int, int]] = field(default_factory=list)  # rows per rank when each resume began
    rolled_back: list[RolledBack] = field(default_factory=list)

    @property
    def has_elastic_servers(self) -> bool:
        return any(event.kind in ("server_started", "server_promoted") for event in self.plain)

    def resume(self, version: int, clocks: Sequence[int]) -> None:
        """The run went on from a checkpoint: what came after that checkpoint never happened."""
        for rank in {*range(len(clocks)), *self.steps}:  # there may have been more workers before
            clock = clocks[rank] if rank < len(clocks) else max(clocks)
            self.steps[rank] = [row for row in self.steps.get(rank, []) if row.step < clock]
        # What was abandoned by then stays so, although the step's number is still to come.
        kept = [
            r for r in self.server if r.version <= version and (r.step < clocks[r.rank] or r.op == "abandon")
        ]
        self.keep(kept, version)
        self.abandoned = {k: [r for r in rows if r.version < version] for k, rows in self.abandoned.items()}
        whole_steps = sum(clocks) // max(1, len(clocks))
        self.plain = [e for e in self.plain if e.kind != "adapted" or _int(e.fields["step"]) <= whole_steps]
        self.sessions.append({rank: len(rows) for rank, rows in self.steps.items()})

    def keep(self, kept: list[ServerRow], to_version: int) -> None:
        """These of the servers' rows count; which updates do not any more is remembered."""
        before = {row.version for row in self.server if row.op == "apply"}
        gone = before - {row.version for row in kept if row.op == "apply"}
        if gone:
            self.rolled_back.append(RolledBack(to_version, max(gone), len(gone)))
        self.server = kept


def _rank(who: str) -> int:
    return int(who.rpartition("-")[2])


def _int(value: object) -> int:
    return int(str(value))


def read_history(path: Path) -> History:
    try:
        text = path.read_text()
    except OSError as error:
        raise NoSuchRunError(
            f"cannot read the event log {path}: {error.strerror}", "name the folder of a run"
        ) from error
    lines = text.split("\n")[:-1]  # what follows the last newline is empty or torn
    history = History()
    for number, line in enumerate(lines, start=1):
        try:
            _take(history, json.loads(line), is_header=number == 1)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRecordError(
                f"{path}:{number}: this line of the event log cannot be read: {error}",
                "the log was damaged or written by another version; make the run again",
            ) from error
    put_in_order(history)
    return history


def put_in_order(history: History) -> None:
    """Servers that took over from each other make one history: in the order of time, each row once.

    A backup that takes over writes what the lost primary may have written already, and a
    primary that was frozen may write late. What came after a version that a server went back
    to never counted.
    """
    if not history.has_elastic_servers:
        return
    history.server = list(dict.fromkeys(sorted(history.server, key=lambda row: row.at_ns)))
    history.parts = list(dict.fromkeys(sorted(history.parts, key=lambda row: row.at_ns)))
    for event in history.plain:
        if event.kind == "server_restored":
            back, at_ns, part = _int(event.fields["version"]), event.at_ns, _int(event.fields["part"])
            history.parts = [
                r for r in history.parts if r.part != part or r.at_ns > at_ns or r.version <= back
            ]
            if part != 0:
                continue
            before = [r for r in history.server if r.at_ns <= at_ns]
            after = [r for r in history.server if r.at_ns > at_ns]
            history.server = before
            history.keep([r for r in before if r.version <= back], back)
            history.server += after
            for rank, rows in history.steps.items():
                history.steps[rank] = [r for r in rows if r.start_ns > at_ns or r.version < back]


def take(history: History, line: str, *, is_header: bool) -> None:
    """One whole line of a log that is still being written."""
    _take(history, json.loads(line), is_header=is_header)


def _take(history: History, event: dict[str, object], *, is_header: bool) -> None:
    if is_header:
        if event["schema"] != SCHEMA:
            raise ValueError(f"schema is {event['schema']!r}, this version reads {SCHEMA!r}")
        history.run, history.plan = str(event["run"]), str(event["plan"])
        history.t0_ns = int(str(event["t0_ns"]))
        history.started_unix_s = float(str(event["started_unix_s"]))
        return
    kind, who = str(event["kind"]), str(event["who"])
    columns = event.get("columns")
    if kind in SAMPLE_KINDS:  # paceline.watch reads them; nothing that was trained depends on them
        return
    if isinstance(columns, dict):
        count = int(str(event["rows"]))
        full = {name: c if isinstance(c, list) else [c] * count for name, c in columns.items()}
        rows = zip(*full.values(), strict=True)
        if kind == "steps":
            mine = history.steps.setdefault(_rank(who), [])
            mine.extend(StepRow(**dict(zip(full, row, strict=True))) for row in rows)
        elif kind == "abandoned":
            given_up = history.abandoned.setdefault(_rank(who), [])
            given_up.extend(AbandonedRow(**dict(zip(full, row, strict=True))) for row in rows)
        elif kind == "part":
            history.parts.extend(PartRow(**dict(zip(full, row, strict=True))) for row in rows)
        else:
            history.server.extend(ServerRow(**dict(zip(full, row, strict=True))) for row in rows)
        return
    if kind == "run_resumed" and event["clocks"]:
        clocks = [int(clock) for clock in str(event["clocks"]).split(",")]
        history.resume(int(str(event["version"])), clocks)
    rest = {k: v for k, v in event.items() if k not in ("kind", "who", "at_ns")}
    history.plain.append(PlainEvent(kind, who, int(str(event["at_ns"])), rest))

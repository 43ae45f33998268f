"""Everything that was written is read back, with any number of writing processes."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.processes.forks import in_processes, values
from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock
from paceline.core.errors import PacelineError
from paceline.events.log import FLUSH_NS, FLUSH_ROWS, EventLog, write_header
from paceline.events.read import read_history
from paceline.events.schema import SCHEMA, AbandonedRow, ServerRow, StepRow

_numbers = st.integers(0, 2**62)
_steps = st.builds(
    StepRow,
    *[_numbers] * 10,
    st.floats(),
    *[_numbers] * 4,
    st.booleans(),
)
_acts = st.sampled_from(["read", "push", "apply", "discard"])
_server = st.builds(ServerRow, _acts, *[_numbers] * 9, st.floats(allow_nan=False))


class StoppedClock:
    """Time stands still unless it is moved."""

    now = 0

    def now_ns(self) -> int:
        return self.now

    def sleep(self, duration_s: float) -> None: ...


def step(number: int, **changes: object) -> StepRow:
    row = StepRow(number, number, 10 * number, 1, 2, 3, 0, 0, 0, 0, 0, 0.5, 4, 64, 64, 0, True)
    return row._replace(**changes)  # type: ignore[arg-type]  # the names are StepRow's own


def started_log(folder: Path) -> Path:
    path = folder / "events.jsonl"
    write_header(path, run="r", plan="p", t0_ns=5, started_unix_s=1.5)
    return path


def same(step_rows: list[StepRow], other: list[StepRow]) -> bool:
    """As bits: a loss that is not a number is still the same loss."""
    return repr(step_rows) == repr(other)


@settings(max_examples=40)
@given(parts=st.lists(st.lists(_steps, max_size=6), max_size=4), server=st.lists(_server, max_size=6))
def test_rows_come_back_as_they_were_in_the_order_they_were_written(
    parts: list[list[StepRow]], server: list[ServerRow], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = started_log(tmp_path_factory.mktemp("log"))
    log = EventLog(path, who="worker-3", clock=StoppedClock())
    for part in parts:
        for row in part:
            log.add_step(row)
        log.flush()
    for act in server:
        log.add_server(act)
    log.close()
    history = read_history(path)
    assert same(history.steps.get(3, []), [row for part in parts for row in part])
    assert history.server == server


def test_the_header_names_the_owner_of_the_log(tmp_path: Path) -> None:
    history = read_history(started_log(tmp_path))
    assert (history.run, history.plan, history.t0_ns, history.started_unix_s) == ("r", "p", 5, 1.5)
    write_header(tmp_path / "events.jsonl", run="other", plan="x", t0_ns=0, started_unix_s=0)
    assert read_history(tmp_path / "events.jsonl").run == "r"  # a resumed run goes on with its log


def test_a_column_whose_values_are_all_the_same_is_written_once(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    log = EventLog(path, who="worker-0", clock=StoppedClock())
    rows = [step(n) for n in range(100)]
    for row in rows:
        log.add_step(row)
    log.close()
    columns = json.loads(path.read_text().splitlines()[1])["columns"]
    assert columns["samples"] == 4
    assert columns["synced"] is True
    assert columns["step"] == list(range(100))
    assert read_history(path).steps[0] == rows


def test_plain_events_keep_their_fields_and_their_place_among_the_rows(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    log = EventLog(path, who="worker-0", clock=StoppedClock())
    log.add_step(step(0))
    log.write("checkpoint", path="at-1", step=1)
    log.close()
    kinds = [json.loads(line).get("kind") for line in path.read_text().splitlines()]
    assert kinds == [None, "steps", "checkpoint"]  # what came before it is on disk before it
    (event,) = read_history(path).plain
    assert (event.kind, event.who, event.fields) == ("checkpoint", "worker-0", {"path": "at-1", "step": 1})


def test_rows_are_written_when_there_are_many_or_when_time_has_passed(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    log = EventLog(path, who="worker-0", clock=StoppedClock())
    for n in range(FLUSH_ROWS - 1):
        log.add_step(step(n, start_ns=0))
    assert read_history(path).steps == {}
    log.add_step(step(FLUSH_ROWS, start_ns=0))
    assert len(read_history(path).steps[0]) == FLUSH_ROWS
    log.add_step(step(FLUSH_ROWS + 1, start_ns=FLUSH_NS + 1))
    assert len(read_history(path).steps[0]) == FLUSH_ROWS + 1
    log.close()


def test_with_events_off_nothing_is_written(tmp_path: Path) -> None:
    log = EventLog(None, who="worker-0", clock=StoppedClock())
    assert not log.is_on
    log.add_step(step(0))
    log.write("worker_started", clock=0)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    log = EventLog(path, who="worker-0", clock=StoppedClock())
    log.add_step(step(0))
    log.flush()
    log.add_step(step(1))
    log.close()
    whole = path.read_bytes()
    for cut in (1, 20, 200):
        path.write_bytes(whole[:-cut])
        assert read_history(path).steps[0] == [step(0)]


def test_a_resumed_run_continues_after_the_last_complete_line(tmp_path: Path) -> None:
    path = started_log(tmp_path)
    with path.open("a") as file:
        file.write('{"kind":"steps","who":"wor')
    started_log(tmp_path)
    log = EventLog(path, who="worker-0", clock=StoppedClock())
    log.add_step(step(0))
    log.close()
    assert read_history(path).steps[0] == [step(0)]
    path.write_text('{"schema":')
    assert read_history(started_log(tmp_path)).run == "r"


@pytest.mark.parametrize(
    "line", ["{", "[]", "3", '{"kind":"steps","who":"worker-0","rows":2,"columns":{"step":[1]}}', "\x00"]
)
def test_a_damaged_line_in_the_middle_is_skipped_and_named(tmp_path: Path, line: str) -> None:
    path = started_log(tmp_path)
    with path.open("a") as file:
        file.write(line + "\n")
    log = EventLog(path, who="worker-0", clock=StoppedClock())
    log.add_step(step(0))
    log.close()
    history = read_history(path)
    assert history.steps[0] == [step(0)]
    assert (history.torn.count, history.torn.first) == (1, [2])


def test_a_log_of_another_schema_or_none_at_all_is_an_error(tmp_path: Path, wording: Wording) -> None:
    path = started_log(tmp_path)
    path.write_text(path.read_text().replace(SCHEMA, "paceline.events/99"))
    with wording.raises(PacelineError):
        read_history(path)
    with wording.raises(PacelineError):
        read_history(tmp_path / "nothing.jsonl")


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path, rounds = started_log(tmp_path), 300

    def body(rank: int) -> bytes:
        log = EventLog(path, who=f"worker-{rank}", clock=SystemClock())
        for n in range(rounds):
            for row in range(20):
                log.add_step(step(20 * n + row, loss=float(rank), bytes_out=os.getpid()))
            log.flush()
            log.write("note", text="x" * (n * 7 % 5000))
        log.close()
        return b"done"

    values(in_processes(4, body))
    history = read_history(path)
    for rank in range(4):
        assert [row.step for row in history.steps[rank]] == list(range(20 * rounds))
        assert {row.loss for row in history.steps[rank]} == {float(rank)}
    assert len(history.plain) == 4 * rounds


def test_abandoned_steps_are_kept_by_worker_and_those_after_a_checkpoint_never_happened(
    tmp_path: Path,
) -> None:
    path = started_log(tmp_path)
    log = EventLog(path, who="worker-2", clock=StoppedClock())
    rows = [AbandonedRow(0, 7 + n, 10 * n, 9, 1, 64, n) for n in range(5)]
    for row in rows:
        log.add_abandoned(row)
    log.close()
    history = read_history(path)
    assert history.abandoned == {2: rows}
    history.resume(3, [0, 0, 0])
    assert history.abandoned == {2: rows[:3]}

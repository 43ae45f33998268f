"""Rows of servers that took over from each other merge into one history."""

from pathlib import Path

from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock
from paceline.events.log import EventLog, write_header
from paceline.events.read import History, read_history
from paceline.events.schema import ServerRow, StepRow
from paceline.training.verify import verify_servers


def applied(at_ns: int, position: int, version: int, rank: int = 0, read: int = 0) -> ServerRow:
    return ServerRow("apply", at_ns, rank, 0, position, version, read, 0, 0, 0, 1.0)


def made(position: int, version: int, start_ns: int) -> StepRow:
    return StepRow(0, position, start_ns, 0, 0, 0, 0, 0, 0, 0, 0, 0.5, 8, 0, 0, version, False)


def written(path: Path, parts: dict[str, list[ServerRow]]) -> History:
    """Each participant's rows, in the order in which they reach the file."""
    write_header(path, run="r", plan="p", t0_ns=0, started_unix_s=0.0)
    for who, rows in parts.items():
        log = EventLog(path, who=who, clock=SystemClock())
        log.write("server_promoted", pid=1, part=0, epoch=1, version=0, instead_of="")
        for row in rows:
            log.add_server(row)
        log.close()
    return read_history(path)


def test_a_row_that_both_servers_wrote_counts_once_and_a_late_writer_changes_no_order(tmp_path: Path) -> None:
    one, two, three = applied(10, 0, 1), applied(20, 1, 2), applied(30, 2, 3)
    history = written(tmp_path / "events.jsonl", {"server-0-b": [two, three], "server-0-a": [one, two]})
    assert history.server == [one, two, three]
    assert all(finding.ok for finding in verify_servers(history, {}))


def test_a_share_that_was_applied_twice_is_found(tmp_path: Path) -> None:
    history = written(tmp_path / "events.jsonl", {"server-0-a": [applied(10, 0, 1), applied(20, 0, 2)]})
    findings = verify_servers(history, {"server-0-a": "x", "server-0-b": "y"})
    assert [finding.ok for finding in findings] == [False, True, False]
    assert "1 duplicated" in findings[0].seen


def test_a_missing_version_is_found(tmp_path: Path) -> None:
    history = written(tmp_path / "events.jsonl", {"server-0-a": [applied(10, 0, 1), applied(20, 1, 3)]})
    assert not verify_servers(history, {})[0].ok


def test_an_answer_whose_update_is_not_there_is_found(tmp_path: Path, wording: Wording) -> None:
    history = written(tmp_path / "events.jsonl", {"server-0-a": [applied(10, 0, 1), applied(20, 2, 2)]})
    history.steps = {0: [made(0, 0, 1), made(1, 0, 2), made(2, 0, 3)]}
    finding = verify_servers(history, {})[1]
    assert not finding.ok
    wording(finding.seen)


def test_what_came_after_the_version_that_a_server_went_back_to_does_not_count(
    tmp_path: Path, wording: Wording
) -> None:
    path = tmp_path / "events.jsonl"
    write_header(path, run="r", plan="p", t0_ns=0, started_unix_s=0.0)
    log = EventLog(path, who="server-0-a", clock=SystemClock())
    log.write("server_started", pid=1, part=0, epoch=1, version=0, role="primary")
    for row in (applied(10, 0, 1), applied(20, 1, 2)):
        log.add_server(row)
    log.write("server_restored", part=0, version=1, pid=2)
    later = SystemClock().now_ns()
    log.add_server(applied(later, 1, 2))
    log.close()
    history = read_history(path)
    assert [(row.at_ns, row.version) for row in history.server] == [(10, 1), (later, 2)]
    (back,) = history.rolled_back
    assert (back.to_version, back.last_version, back.updates) == (1, 2, 1)
    finding = verify_servers(history, {})[1]
    wording(finding.seen)  # counted, and not passed over in silence
    assert finding.what != verify_servers(History(), {})[1].what

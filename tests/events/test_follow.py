"""A growing log is read as it grows, each line once."""

from pathlib import Path

from paceline.core.clock import SystemClock
from paceline.events.follow import LogFollower
from paceline.events.log import EventLog, write_header
from paceline.events.schema import StepRow


def step(number: int) -> StepRow:
    return StepRow(number, number, 10 * number, 1, 2, 3, 0, 0, 0, 0, 0, 0.5, 4, 64, 64, 0, True)


def test_each_poll_adds_what_is_new_and_keeps_the_newest_steps(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    following = LogFollower(path, rows=3)
    assert following.read().plain == []  # there is no log yet
    write_header(path, run="r", plan="p", t0_ns=5, started_unix_s=1.5)
    log = EventLog(path, who="worker-1", clock=SystemClock())
    log.write("worker_started", pid=7)
    for number in range(5):
        log.add_step(step(number))
    log.flush()
    history = following.read()
    assert history.run == "r"
    assert [event.kind for event in history.plain] == ["worker_started"]
    assert [row.step for row in history.steps[1]] == [2, 3, 4]
    log.write("worker_finished", steps=5, reason="done")
    log.close()
    assert [event.kind for event in following.read().plain] == ["worker_started", "worker_finished"]
    assert len(following.read().plain) == 2


def test_half_a_line_is_left_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_header(path, run="r", plan="p", t0_ns=5, started_unix_s=1.5)
    following = LogFollower(path, rows=3)
    line = '{"kind":"stop_requested","who":"launcher","at_ns":1,"by":"SIGINT"}\n'
    with path.open("a") as file:
        file.write(line[:20])
        file.flush()
        assert following.read().plain == []
        file.write(line[20:])
    assert [event.kind for event in following.read().plain] == ["stop_requested"]

"""Hostile conditions: vanished folders, restarted logs, huge bodies, invalid numbers, many viewers."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.asgi import FROM_PAGE, OURS, send_request, settings
from tests.dashboard.made import MadeRun
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.core.processes import command_line
from paceline.dashboard.run_index import NoRunError, RunIndex
from paceline.dashboard.state import MAX_WATCHED, AppState, Experiment, _message
from paceline.dashboard.stream import DashboardStats, Kind, LiveRun
from paceline.events.follow import NewLines
from paceline.faults.actions import queue as desks
from paceline.faults.actions.queue import ActionQueue, BusyError, QueuedAction
from paceline.faults.actions.request import ActionKind, ActionRequest
from paceline.faults.actions.run_state import RunState, now_ns
from paceline.faults.scenarios.expectations import ScenarioReporter, State, Tick, at_most, merge_ticks


def made(folder: Path, steps: int = 3) -> None:
    run = MadeRun(folder)
    run.train(steps)
    run.close()


def test_a_log_that_was_rewritten_is_shown_from_its_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made(folder, 40)

    async def watch() -> tuple[list[Kind], int]:
        watched = LiveRun(folder, None, DashboardStats())
        await watched.snapshot()
        async with watched.viewer(None) as (mailbox, bell):
            mailbox.take()
            shutil.rmtree(folder)
            made(folder, 2)
            bell.clear()
            watched.start()
            await asyncio.wait_for(bell.wait(), 60)
            kinds = [message.kind for message in mailbox.take()]
        view = await watched.snapshot()
        await watched.close()
        progress = view["progress"]
        assert isinstance(progress, dict)
        return kinds, int(str(progress["step"]))

    kinds, step = asyncio.run(watch())
    assert kinds[0] is Kind.RESET
    assert step == 2


def test_a_folder_that_vanishes_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made(folder)

    async def watch() -> None:
        watched = LiveRun(folder, None, DashboardStats())
        await watched.snapshot()
        shutil.rmtree(folder)
        with pytest.raises(NoRunError, match="removed"):
            await watched.snapshot()
        async with watched.viewer(5) as (mailbox, _):
            raise AssertionError(f"nothing is there to be watched: {mailbox}")

    with pytest.raises(NoRunError):
        asyncio.run(watch())


@pytest.mark.parametrize(
    "name", ["../run", "/etc", "a/../../run", ".", "", "a//b", "a/b/c/d", "run\0", "other"]
)
def test_no_name_is_a_way_out(tmp_path: Path, name: str) -> None:
    made(tmp_path / "runs" / "run")
    made(tmp_path / "run")
    result = RunIndex.at(tmp_path / "runs")
    assert result.folder("run") == (tmp_path / "runs").resolve() / "run"
    with pytest.raises(NoRunError):
        result.folder(name)


def test_runs_without_viewers_are_forgotten(tmp_path: Path) -> None:
    for number in range(MAX_WATCHED + 4):
        made(tmp_path / "runs" / f"run-{number:02}", 1)

    async def look() -> tuple[int, bool]:
        state = AppState(settings(tmp_path / "runs", tmp_path / "page"))
        first = await state.live_run("run-00")
        async with first.viewer(None):
            for name in state.runs.names():
                await (await state.live_run(name)).snapshot()
            kept = len(state._live_runs), state._live_runs["run-00"] is first
        await state.close()
        return kept

    assert asyncio.run(look()) == (MAX_WATCHED, True)


def test_a_body_is_not_read_beyond_what_is_allowed(tmp_path: Path) -> None:
    made(tmp_path / "runs" / "run")
    given = settings(tmp_path / "runs", tmp_path / "page")
    for road in ("/api/v1/actions", "/api/v1/silences"):
        answer = send_request(given, "POST", road, FROM_PAGE, b" " * 20_000)
        assert (answer.status, "more than" in answer.json()["error"]) == (400, True)
    nan = json.dumps({"rule": "WorkerDown", "for_s": float("nan")}).encode()
    assert send_request(given, "POST", "/api/v1/silences", FROM_PAGE, nan).status == 400
    huge = b'{"rule": "WorkerDown", "for_s": 1' + b"0" * 400 + b"}"
    for body in (b'["rule"]', b"[" * 9_000, huge):
        assert send_request(given, "POST", "/api/v1/silences", FROM_PAGE, body).status == 400


def test_links_and_pipes_in_a_run_folder_are_not_followed(tmp_path: Path) -> None:
    run, secret = tmp_path / "runs" / "run", tmp_path / "secret.log"
    made(run)
    made(tmp_path / "elsewhere")
    secret.write_text("a secret\n")
    logs = run / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "worker-0.log").write_bytes(b"hello \xff\n")
    (logs / "worker-1.log").symlink_to(secret)
    os.mkfifo(logs / "worker-2.log")
    (run / "result.json").symlink_to(secret)
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    where = settings(tmp_path / "runs", tmp_path / "page")

    def lines(worker: str) -> list[str]:
        answer = send_request(where, "GET", "/api/v1/logs", OURS, query=f"run=run&worker={worker}")
        assert answer.status == 200
        lines: list[str] = answer.json()["lines"]
        return lines

    assert lines("worker-0") == ["hello \ufffd"]
    assert lines("worker-1") == []
    assert lines("worker-2") == []
    assert RunIndex.at(tmp_path / "runs").names() == ["run"]
    (logs / "worker-0.log").unlink()
    (logs / "worker-1.log").unlink()
    (logs / "worker-2.log").unlink()
    logs.rmdir()
    logs.symlink_to(tmp_path)
    assert lines("secret") == []


def test_a_workers_log_is_shown_without_its_secrets(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    made(run)
    (run / "logs").mkdir(exist_ok=True)
    token = "hf_aB3dEfGhIjKlMnOpQrStUvWxYz012345678"
    key = ("-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQEF", "-----END PRIVATE KEY-----")
    (run / "logs" / "worker-0.log").write_text("\n".join([f"login with {token}", *key, "step 1"]))
    where = settings(tmp_path / "runs", tmp_path / "page")
    answer = send_request(where, "GET", "/api/v1/logs", OURS, query="run=run&worker=worker-0")
    assert answer.json()["lines"] == ["login with ***", "***", "***", "***", "step 1"]


def test_a_damaged_log_keeps_the_dashboard_up(tmp_path: Path) -> None:
    run = tmp_path / "run"
    made(run, 20)
    log = run / "events.jsonl"
    whole = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([*whole[:2], b"\xff\xfe", b"{", *whole[2:]]))
    answer = send_request(settings(run, tmp_path / "page"), "GET", "/api/v1/snapshot", OURS)
    assert answer.status == 200
    assert answer.json()["view"]["progress"]["step"] > 0


def test_a_result_without_numbers_is_shown(tmp_path: Path) -> None:
    made(tmp_path / "runs" / "run")
    (tmp_path / "runs" / "run" / "result.json").write_text('{"loss": NaN, "training_s": 0.0}')
    given = settings(tmp_path / "runs", tmp_path / "page")
    (row,) = send_request(given, "GET", "/api/v1/runs", OURS).json()["runs"]
    assert row["loss"] is None
    (row,) = send_request(given, "GET", "/api/v1/compare", OURS, query="runs=run").json()["runs"]
    assert row["training_s"] == 0.0


@pytest.mark.parametrize("at_s", ["-5", "0", "-1e300", "1e300", "1e-320"])
def test_any_moment_of_a_recording_can_be_requested(tmp_path: Path, at_s: str) -> None:
    made(tmp_path / "runs" / "run")
    given = settings(tmp_path / "runs", tmp_path / "page", is_replay=True)
    for road in ("snapshot", "timeline", "series"):
        assert send_request(given, "GET", f"/api/v1/{road}", OURS, query=f"at_s={at_s}").status == 200, road
    assert (
        b"event: end"
        in send_request(given, "GET", "/api/v1/stream", OURS, query=f"at_s={at_s}&speed=100").body
    )


def test_a_folder_that_goes_while_runs_are_listed_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "runs" / "run")
    (tmp_path / "runs" / "run" / "draft").mkdir()
    real = os.scandir

    def scandir(folder: Path) -> Any:  # Any: what os.scandir gives
        if folder.name == "draft":
            folder.rmdir()
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert RunIndex.at(tmp_path / "runs").names() == ["run"]


def test_a_key_belongs_to_one_request() -> None:
    action_request = ActionRequest(id="the-key", kind=ActionKind.KILL, worker="worker-0")
    queued_action = QueuedAction("run", action_request)
    assert queued_action.is_for("run", replace(action_request, by="another user"))
    assert not queued_action.is_for("other", action_request)
    assert not queued_action.is_for("run", replace(action_request, worker="worker-1"))
    assert not queued_action.is_for("run", replace(action_request, kind=ActionKind.PAUSE))


def test_a_reused_process_id_is_not_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "paceline"]) as other:
        look = RunState(tmp_path)
        try:
            # A process has no words for a moment after it was started.
            until(lambda: look.is_still(other.pid, now_ns()), "it can be seen")
            assert not look.is_still(other.pid, now_ns() - 3600 * 10**9)  # said by one that is gone
            assert not look.is_still(os.getpid(), now_ns()) or "paceline" in command_line(os.getpid())
        finally:
            other.kill()


def test_a_long_log_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{{{'x' * number}}}\n" for number in (1, 50, 3, 120, 2)) + "half")
    lines, result = NewLines(path, 16), []
    while part := lines.read():
        result += part
    assert [len(line) for line in result] == [3, 52, 5, 122, 4]


def test_too_many_requests_at_once_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr(desks, "MAX_CONCURRENT", 0)
    with wording.raises(BusyError):
        ActionQueue().submit("run", tmp_path, ActionRequest(id="a", kind=ActionKind.STOP))


def test_what_a_library_prints_is_no_news_of_an_experiment() -> None:
    assert _message("a warning\n") == {"said": "a warning"}
    assert _message('["no object"]\n') == {"said": '["no object"]'}
    assert _message('{"said": "x"}\n') == {"said": "x"}


def test_guarantees_are_ticked_off_while_an_experiment_runs() -> None:
    ticks: list[Tick] = []
    telling = ScenarioReporter(on_tick=ticks.append)
    late, soon = (
        at_most("it is back, maximum", 9.0, 3.0, "s"),
        at_most("it is back, maximum", 1.0, 3.0, "s"),
    )
    telling.so_far([late])
    telling.so_far([soon])
    telling.so_far([soon])  # nothing new
    telling.settled([soon])
    assert [tick.state for tick in ticks] == [State.OPEN, State.SO_FAR, State.HELD]
    experiment = Experiment("key", "freeze-worker", "run", 1)
    words = [tick["what"] for tick in as_read(experiment)]
    experiment.ticks["it is back after it resumes, maximum"] = Tick(
        "it is back after it resumes, maximum", "at most 3 s", "1 s", State.SO_FAR
    )
    reported = as_read(experiment)
    assert [tick["what"] for tick in reported] == words
    assert [tick["state"] for tick in reported].count("so_far") == 1


def as_read(experiment: Experiment) -> Any:  # Any: JSON, as a page reads it
    return json.loads(json.dumps(experiment.json()["ticks"]))


def test_a_guarantee_may_become_more_precise_and_others_follow() -> None:
    precise = Tick("the bits are the same (behind servers: of the order)", "", "equal", State.HELD)
    more = Tick("something else", "", "1", State.BROKEN)
    ticks = merge_ticks(["nothing is lost", "the bits are the same"], [precise, more])
    assert [tick.state for tick in ticks] == [State.OPEN, State.HELD, State.BROKEN]

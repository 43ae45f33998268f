"""Viewers that connect late, disconnect or stall receive what they missed, or a request to reload."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.dashboard.asgi import FROM_PAGE, OURS, send_request, settings
from tests.dashboard.made import MadeRun

from paceline.dashboard.replay import RecordedRun
from paceline.dashboard.stream import CAPACITY, DashboardStats, Kind, LiveRun, Message


@pytest.fixture
def run(tmp_path: Path) -> Iterator[MadeRun]:
    made = MadeRun(tmp_path / "runs" / "made")
    yield made
    made.close()


async def _taken(watched: LiveRun, last_seq: int | None, act: object = None) -> list[Message]:
    async with watched.viewer(last_seq) as (mailbox, _):
        if callable(act):
            act()
            for _ in range(200):
                await asyncio.sleep(0.02)
                if any(m.kind is Kind.EVENT for m in list(mailbox._queue)):
                    break
        return mailbox.take()


def test_a_viewer_that_reconnects_gets_exactly_what_it_missed(run: MadeRun) -> None:
    run.train(10)

    async def watch() -> list[Message]:
        watched = LiveRun(run.folder, None, DashboardStats())
        seq = int(str((await watched.snapshot())["seq"]))
        run.happen("something")
        run.train(5)
        run.happen("something else")
        return await _taken(watched, seq)

    messages = asyncio.run(watch())
    events = [json.loads(m.data)["text"] for m in messages if m.kind is Kind.EVENT]
    assert events == ["something", "something else"]
    (frame,) = (json.loads(m.data) for m in messages if m.kind is Kind.FRAME)
    assert sorted(row[0] for batch in frame["steps"] for row in batch["rows"]) == sorted([*range(10, 15)] * 2)


def test_a_viewer_without_a_matching_position_reloads(run: MadeRun) -> None:
    run.train(3)

    async def watch(seq: int | None) -> list[Kind]:
        watched = LiveRun(run.folder, None, DashboardStats())
        return [m.kind for m in await _taken(watched, seq)]

    assert asyncio.run(watch(None)) == [Kind.RESET]
    assert asyncio.run(watch(10_000)) == [Kind.RESET]


def test_events_are_sent_to_viewers_and_built_for_no_one_else(run: MadeRun) -> None:
    run.train(3)
    counted = DashboardStats()

    async def watch() -> tuple[int, list[Message]]:
        watched = LiveRun(run.folder, None, counted)
        watched.start()
        await asyncio.sleep(0.1)
        alone = counted.frames
        messages = await _taken(watched, None, act=lambda: run.happen("now"))
        await watched.close()
        return alone, messages

    alone, messages = asyncio.run(watch())
    assert alone == 0
    assert "now" in [json.loads(m.data)["text"] for m in messages if m.kind is Kind.EVENT]


def test_a_viewer_that_stalls_costs_a_bounded_queue(run: MadeRun) -> None:
    async def watch() -> int:
        watched = LiveRun(run.folder, None, DashboardStats())
        async with watched.viewer(None) as (mailbox, _):
            mailbox.take()
            for _ in range(3 * CAPACITY):
                run.train(1)
                for message in watched._tick():
                    mailbox.put(message)
            return len(mailbox.take())

    assert asyncio.run(watch()) <= CAPACITY


def test_live_and_recorded_views_of_a_finished_run_are_equal(run: MadeRun) -> None:
    run.train(50)
    run.happen("something")
    run.close("finished")

    async def both() -> tuple[object, object]:
        live = await LiveRun(run.folder, None, DashboardStats()).snapshot()
        return live, await RecordedRun(run.folder, None).snapshot(None)

    live, recorded = asyncio.run(both())
    assert json.dumps(live) == json.dumps(recorded)


def test_a_damaged_line_is_skipped_and_counted(run: MadeRun, tmp_path: Path) -> None:
    run.train(3)
    with (run.folder / "events.jsonl").open("a") as log:
        log.write("no json at all\n")
    answer = send_request(settings(tmp_path / "runs", tmp_path / "page"), "GET", "/api/v1/snapshot", OURS)
    assert answer.status == 200
    assert answer.json()["server"]["torn_lines"] == 1


def test_every_route_answers(run: MadeRun, tmp_path: Path) -> None:
    run.train(50)
    run.close("finished")
    given = settings(tmp_path / "runs", tmp_path / "page")
    assert send_request(given, "GET", "/api/v1/snapshot", OURS).json()["view"]["state"] == "finished"
    assert (
        send_request(given, "GET", "/api/v1/snapshot", OURS, query="at_s=0.2").json()["view"]["now_s"] == 0.2
    )
    assert len(send_request(given, "GET", "/api/v1/timeline", OURS).json()["lanes"]) == 2
    assert send_request(given, "GET", "/api/v1/series", OURS, query="names=loss").json()["data"]["loss"]
    assert send_request(given, "GET", "/api/v1/runs", OURS).json()["usual"] == "made"
    compared = send_request(given, "GET", "/api/v1/compare", OURS, query="runs=made,made").json()
    assert compared["differs"] == []
    assert send_request(given, "GET", "/api/v1/trace", OURS).json()["traceEvents"]
    assert b"paceline_dashboard_viewers" in send_request(given, "GET", "/metrics", OURS).body
    assert send_request(given, "GET", "/api/v1/logs", OURS, query="worker=../plan").json()["lines"] == []
    names = [s["name"] for s in send_request(given, "GET", "/api/v1/scenarios", OURS).json()["scenarios"]]
    assert "kill-leader" in names


def test_a_rule_is_silenced_in_the_log_of_the_run(run: MadeRun, tmp_path: Path) -> None:
    given = settings(tmp_path / "runs", tmp_path / "page")
    body = json.dumps({"rule": "WorkerDown", "for_s": 600}).encode()
    assert send_request(given, "POST", "/api/v1/silences", FROM_PAGE, body).status == 202
    assert '"rule":"WorkerDown"' in (run.folder / "events.jsonl").read_text()
    assert send_request(given, "POST", "/api/v1/silences", FROM_PAGE, b"{}").status == 400


def test_what_cannot_be_done_is_refused_with_the_reason(run: MadeRun, tmp_path: Path) -> None:
    run.train(5)
    given = settings(tmp_path / "runs", tmp_path / "page")

    def post(**body: object) -> tuple[int, str]:
        answer = send_request(
            given, "POST", "/api/v1/actions", FROM_PAGE, json.dumps({"key": "a-key-of-ours", **body}).encode()
        )
        document = answer.json()
        return answer.status, document.get("error") or document["steps"][-1]["note"]

    status, why = post(action="dance")
    assert (status, "'dance'" in why) == (400, True)
    assert post(action="kill", worker="worker-9")[0] == 409
    status, why = post(action="kill", worker="worker-1", key="another-key")
    assert (status, "not elastic" in why) == (409, True)
    status, why = post(action="partition", worker="worker-1", key="a-third-key")
    assert (status, "not elastic" in why) == (409, True)
    assert post(action="kill", worker="worker-1", key="short")[0] == 400
    assert post(action="lab", scenario="none", key="a-fourth-key")[0] == 400
    safe = settings(tmp_path / "runs", tmp_path / "page", allows_faults=False)
    body = json.dumps({"key": "a-fifth-key", "action": "kill", "worker": "worker-1"}).encode()
    assert send_request(safe, "POST", "/api/v1/actions", FROM_PAGE, body).status == 403

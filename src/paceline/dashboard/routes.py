"""HTTP routes: handlers and the table of routes, from which the reference page is generated."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from paceline.core.clock import monotonic_s
from paceline.core.redaction import redact_lines
from paceline.dashboard import comparison
from paceline.dashboard.replay import SPEEDS
from paceline.dashboard.requests import (
    MAX_RUN_S,
    BadRequestError,
    body_of,
    integer,
    moment,
    number,
    read_action,
    read_silence,
)
from paceline.dashboard.run_index import tail_of
from paceline.dashboard.state import AppState
from paceline.faults.actions.queue import QueuedAction
from paceline.faults.actions.request import Phase
from paceline.plan.codec import Json

HEARTBEAT_S = 15.0
MAX_TRACED = 20_000  # steps, each of up to eight phases
POLL_S = 0.02
DECISION_TIMEOUT_S = 10.0  # for an action to be accepted or refused
MAX_LOG_BYTES = 60_000
MAX_SILENCE_S = 86_400
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def get_state(request: Request) -> AppState:
    state = request.app.state.dashboard
    assert isinstance(state, AppState), "the app was built with one"
    return state


def json_response(value: Json, status: int = 200) -> Response:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text, status_code=status, media_type="application/json")


async def healthz(_request: Request) -> Response:
    """Liveness probe without a token; reveals nothing else."""
    return json_response({"ok": True})


async def page(request: Request) -> Response:
    folder = get_state(request).settings.page
    return FileResponse(folder / "index.html", media_type="text/html")


async def asset(request: Request) -> Response:
    folder = get_state(request).settings.page
    name = request.path_params["name"]
    if name not in {path.name for path in folder.iterdir()}:
        return json_response({"error": f"{name} does not exist", "hint": "reload the page"}, 404)
    return FileResponse(folder / name, media_type=TYPES.get(Path(name).suffix, "application/octet-stream"))


async def snapshot(request: Request) -> Response:
    state = get_state(request)
    run = request.query_params.get("run")
    at_s = moment(request.query_params, "at_s")
    about = state.about(run)
    if state.settings.is_replay or at_s is not None:
        recorded = state.recorded_run(run)
        view = await recorded.snapshot(at_s)
        about["duration_s"] = await recorded.duration_s()
    else:
        live = await state.live_run(run)
        view = await live.snapshot()
        about["torn_lines"] = live.feed.torn.count  # of the event log, which are not shown
    return json_response({"schema": "paceline.dashboard/1", "server": about, "view": view})


async def stream(request: Request) -> Response:
    state = get_state(request)
    query = request.query_params
    run = query.get("run")
    at_s = moment(query, "at_s")
    headers = {"X-Accel-Buffering": "no"}
    if state.settings.is_replay or at_s is not None:
        speed = min(SPEEDS[1], max(SPEEDS[0], number(query, "speed") or 1.0))
        body = _play(state, run, at_s or 0.0, speed)
    else:
        state.folder(run)  # raises before the response starts, if there is no such run
        seq = request.headers.get("last-event-id") or query.get("seq") or ""
        # A longer number is not a sequence number of this server.
        body = _follow(state, run, int(seq) if seq.isdecimal() and len(seq) < 19 else None)
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _follow(state: AppState, run: str | None, last_seq: int | None) -> AsyncIterator[bytes]:
    live = await state.live_run(run)
    state.stats.viewers += 1
    wakeups: list[asyncio.Event] = []
    try:
        async with live.viewer(last_seq) as (mailbox, wakeup):
            live.start()  # again, if it was dropped as idle in the meantime
            wakeups.append(wakeup)
            state.wakeups.add(wakeup)
            yield b"retry: 1000\n\n"  # after registering: else the run could be dropped as idle
            while not state.closing.is_set():
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await wakeup.wait()
                except TimeoutError:
                    yield b": keep-alive\n\n"
                    continue
                wakeup.clear()
                if taken := mailbox.take():
                    yield b"".join(message.wire() for message in taken)
    finally:
        state.stats.viewers -= 1
        state.wakeups -= set(wakeups)


async def _play(state: AppState, run: str | None, at_s: float, speed: float) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    async for message in state.recorded_run(run).play(at_s, speed):
        if state.closing.is_set():
            return
        yield message.wire()
    yield b"event: end\ndata: {}\n\n"


async def timeline(request: Request) -> Response:
    state = get_state(request)
    query = request.query_params
    at_s = moment(query, "at_s")
    to_s = moment(query, "to_s") or MAX_RUN_S
    from_s = moment(query, "from_s") or 0.0
    max_rows = integer(query, "most", 4000, maximum=20_000)
    if state.settings.is_replay or at_s is not None:
        return json_response(
            await state.recorded_run(query.get("run")).timeline(at_s, from_s, to_s, max_rows)
        )
    return json_response(await (await state.live_run(query.get("run"))).timeline(from_s, to_s, max_rows))


async def series(request: Request) -> Response:
    state = get_state(request)
    query = request.query_params
    at_s, from_s, to_s = (moment(query, name) for name in ("at_s", "from_s", "to_s"))
    names = [name for name in query.get("names", "").split(",") if name] or None
    points = integer(query, "points", 600, maximum=4000)
    if state.settings.is_replay or at_s is not None:
        return json_response(
            await state.recorded_run(query.get("run")).series(at_s, names, from_s, to_s, points)
        )
    live = await state.live_run(query.get("run"))
    return json_response(await live.series(names, from_s, to_s, points))


async def runs(request: Request) -> Response:
    state = get_state(request)
    rows = await asyncio.to_thread(state.runs.rows)
    return json_response({"runs": rows, "usual": state.runs.default()})


async def compare(request: Request) -> Response:
    state = get_state(request)
    names = [name for name in request.query_params.get("runs", "").split(",") if name]
    if not 1 <= len(names) <= comparison.MAX_RUNS:
        raise BadRequestError(
            f"{len(names)} runs were given", f"use runs=A,B with up to {comparison.MAX_RUNS}"
        )
    rows: list[dict[str, Json]] = []
    for name in names:
        # A recording is read once; a live run is followed.
        is_replay = state.settings.is_replay
        view = await (
            state.recorded_run(name).snapshot(None) if is_replay else (await state.live_run(name)).snapshot()
        )
        rows.append(await asyncio.to_thread(comparison.row_of, name, state.folder(name)[1], view))
    return json_response(await asyncio.to_thread(comparison.compared, rows, state.runs))


async def logs(request: Request) -> Response:
    state = get_state(request)
    _, folder = state.folder(request.query_params.get("run"))
    worker = request.query_params.get("worker", "")
    known = {path.stem for path in (folder / "logs").glob("*.log")}
    lines: list[Json] = []
    if worker in known:
        text = await asyncio.to_thread(tail_of, folder, f"logs/{worker}.log", MAX_LOG_BYTES)
        lines.extend([*redact_lines(text.decode(errors="replace").splitlines())][-200:])
    return json_response({"worker": worker, "lines": lines})


async def scenarios(request: Request) -> Response:
    lab = get_state(request).lab
    return json_response({"scenarios": lab.scenarios(), "experiments": lab.list()})


async def actions(request: Request) -> Response:
    state = get_state(request)
    name, _ = state.folder(request.query_params.get("run"))
    return json_response({"actions": state.actions.list(name)})


async def act(request: Request) -> Response:
    state = get_state(request)
    from_browser = (
        request.headers.get("sec-fetch-site") is not None or request.headers.get("origin") is not None
    )
    by = f"viewer at {request.client.host if request.client else 'nowhere'}"
    posted = read_action(await body_of(request), by=by, source="ui" if from_browser else "api")
    if posted.request is None:
        return _start_scenario(state, posted.scenario or "", posted.times, posted.key)
    name, folder = state.folder(posted.run)
    if why_not := state.why_not(posted.run, posted.request.kind):
        return json_response({"error": why_not, "hint": "see docs/guides/dashboard.md"}, 403)
    action, is_new = state.actions.submit(name, folder, posted.request)
    if not action.is_for(name, posted.request):
        raise BadRequestError("this key was used for another request", "use a new key for each request")
    await _wait_until_decided(action)
    if action.steps and action.steps[-1].phase is Phase.REFUSED:
        return json_response(action.json(), 409)
    return json_response(action.json(), 202 if is_new else 200)


async def _wait_until_decided(action: QueuedAction) -> None:
    """Polls instead of blocking a thread: waiting requests would exhaust the thread pool."""
    until_s = monotonic_s() + DECISION_TIMEOUT_S
    while not action.is_decided.is_set() and monotonic_s() < until_s:
        await asyncio.sleep(POLL_S)


def _start_scenario(state: AppState, name: str, times: int, key: str) -> Response:
    settings = state.settings
    if settings.is_replay or settings.allows_faults is False:
        return json_response(
            {"error": "fault injection is disabled", "hint": "start the dashboard with --allow-faults"}, 403
        )
    known = [str(s["name"]) for s in state.lab.scenarios() if isinstance(s, dict)]
    if name not in known:
        raise BadRequestError(f"unknown experiment {name!r}", f"experiments are {', '.join(known)}")
    if (busy := state.lab.busy()) and not state.lab.knows(key):
        return json_response({"error": f"{busy} is still running", "hint": "wait until it ends"}, 409)
    return json_response(state.lab.start(key, name, max(1, min(100, times))).json(), 202)


async def silence(request: Request) -> Response:
    from paceline.monitoring.alerts.delivery import silence_alerts as append

    state = get_state(request)
    rule, for_s, run = read_silence(await body_of(request))
    if state.settings.is_replay:
        raise BadRequestError("alerts of a recording cannot be silenced", "open the live run")
    if not 0 < for_s <= MAX_SILENCE_S:
        raise BadRequestError(
            f"for_s is {for_s:g}, but it must be above 0 and at most {MAX_SILENCE_S}", "use for_s 600"
        )
    _, folder = state.folder(run)
    await asyncio.to_thread(append, folder, for_s=for_s, rule=rule, by="viewer", comment="in the dashboard")
    return json_response({"rule": rule, "for_s": for_s}, 202)


async def metrics(request: Request) -> Response:
    from paceline.monitoring.metrics.prometheus import CONTENT_TYPE

    state = get_state(request)
    live = await state.live_run(request.query_params.get("run"))
    text = await live.metrics() + state.stats.exposition()
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def trace(request: Request) -> Response:
    """Trace for Perfetto and chrome://tracing."""
    state = get_state(request)
    query = request.query_params
    if state.settings.is_replay:
        view = await state.recorded_run(query.get("run")).timeline(None, 0.0, MAX_RUN_S, MAX_TRACED)
    else:
        view = await (await state.live_run(query.get("run"))).timeline(0.0, MAX_RUN_S, MAX_TRACED)
    return await asyncio.to_thread(lambda: json_response({"traceEvents": trace_events(view)}))


def trace_events(timeline: dict[str, Json]) -> list[Json]:
    phases = timeline["phases"]
    lanes = timeline["lanes"]
    events: list[Json] = []
    assert isinstance(phases, list), "as RunView.timeline returns it"
    assert isinstance(lanes, list), "as RunView.timeline returns it"
    for lane_number, lane in enumerate(lanes):
        assert isinstance(lane, dict), "as RunView.timeline returns it"
        rows = lane["rows"]
        assert isinstance(rows, list), "as RunView.timeline returns it"
        events.append(
            {"ph": "M", "pid": 1, "tid": lane_number, "name": "thread_name", "args": {"name": lane["worker"]}}
        )
        for row in rows:
            assert isinstance(row, list), "as RunView.timeline returns it"
            at_us = float(str(row[1])) * 1e6
            for phase, duration in zip(phases, row[2:10], strict=True):
                lasts_us = float(str(duration)) * 1e6
                if lasts_us > 0:
                    event: dict[str, Json] = {
                        "ph": "X",
                        "pid": 1,
                        "tid": lane_number,
                        "name": phase,
                        "ts": at_us,
                    }
                    events.append({**event, "dur": lasts_us, "args": {"step": row[0]}})
                at_us += lasts_us
    with suppress(KeyError):
        events.sort(key=lambda event: float(str(event.get("ts", 0))) if isinstance(event, dict) else 0.0)
    return events


Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    what: str
    takes: str = ""  # parameters of the query or the body
    is_open: bool = False  # needs no token; reveals nothing about any run


_RUN = "run (default: the run that was given, else the newest)"
_AT = "at_s (time in a recording)"
ROUTES = (
    Route("GET", "/", page, "the page; with ?token=… it sets the cookie", "token"),
    Route("GET", "/assets/{name}", asset, "script and style sheet of the page"),
    Route(
        "GET",
        "/api/v1/snapshot",
        snapshot,
        "the whole view of a run, and its `seq`",
        f"{_RUN}; {_AT}",
    ),
    Route(
        "GET",
        "/api/v1/stream",
        stream,
        "server-sent events: `frame` (new steps), `event` (an event of the run), `view` (twice a second), "
        "`reset` (take a new snapshot); `id` is the `seq`, and Last-Event-ID resumes after it",
        f"{_RUN}; seq; in a recording {_AT}, speed",
    ),
    Route(
        "GET",
        "/api/v1/timeline",
        timeline,
        "the phases of each worker's steps",
        f"{_RUN}; from_s, to_s, most; {_AT}",
    ),
    Route(
        "GET",
        "/api/v1/series",
        series,
        "collected series as [t_s, min, max, last], downsampled",
        f"{_RUN}; names (comma-separated), from_s, to_s, points; {_AT}",
    ),
    Route(
        "GET", "/api/v1/runs", runs, "the runs of this folder, newest first, and the default one (`usual`)"
    ),
    Route(
        "GET",
        "/api/v1/compare",
        compare,
        "runs side by side: the result of each, with `metrics`, `evaluations`, `repeats`, `throughput`, "
        "`speedup` and `efficiency` (value, and low and high with three or more rounds) relative to the "
        "`base`, `target_s` to the `target_loss` that every run reached, `cost_worker_s`; `scaling` "
        "(Amdahl's law by mode), conclusions in `words`, and the settings that differ (`differs`)",
        "runs (up to six, comma-separated)",
    ),
    Route("GET", "/api/v1/logs", logs, "the last 200 lines of a worker's log", f"{_RUN}; worker"),
    Route("GET", "/api/v1/trace", trace, "the timeline as a Chrome trace, for Perfetto", _RUN),
    Route(
        "GET",
        "/api/v1/scenarios",
        scenarios,
        "the scenarios of the lab, and the progress of those started here",
    ),
    Route(
        "GET",
        "/api/v1/actions",
        actions,
        "the actions on a run, and the progress of each",
        _RUN,
    ),
    Route(
        "POST",
        "/api/v1/actions",
        act,
        "request an action; 202 accepted, 409 refused with the reason, 403 not allowed",
        "key (idempotency key), run, action (pause, resume, slow, kill, partition, heal, checkpoint, "
        "stop, lab), worker (partition: nodes and workers, as node-1,worker-0), factor, for_s, force; lab: "
        "scenario, times",
    ),
    Route("POST", "/api/v1/silences", silence, "silence an alert's rule for a while", "rule, for_s, run"),
    Route("GET", "/healthz", healthz, "liveness probe; needs no token", is_open=True),
    Route("GET", "/metrics", metrics, "all metrics in the Prometheus text format", _RUN),
)

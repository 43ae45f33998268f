"""Which requests are answered? One row each; the reference page is made from this, and a test walks it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from paceline.dashboard import answers

Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Road:
    method: str
    path: str
    answer: Answer
    what: str
    takes: str = ""  # of its query or its body
    is_open: bool = False  # needs no token, and says nothing about any run


_RUN = "run (default: the one that was named, else the newest)"
_AT = "at_s (as it was then, of a recording)"
ROADS = (
    Road("GET", "/", answers.page, "the page; with ?token=… it sets the cookie", "token"),
    Road("GET", "/assets/{name}", answers.asset, "its script and its style"),
    Road(
        "GET",
        "/api/v1/snapshot",
        answers.snapshot,
        "the whole view of a run, and its `seq`",
        f"{_RUN}; {_AT}",
    ),
    Road(
        "GET",
        "/api/v1/stream",
        answers.stream,
        "server-sent events: `frame` (new steps), `event` (something happened), `view` (twice a second), "
        "`reset` (take a new snapshot); `id` is the `seq`, and Last-Event-ID goes on behind it",
        f"{_RUN}; seq; of a recording {_AT}, speed",
    ),
    Road(
        "GET",
        "/api/v1/timeline",
        answers.timeline,
        "the phases of each worker's steps",
        f"{_RUN}; from_s, to_s, most; {_AT}",
    ),
    Road(
        "GET",
        "/api/v1/series",
        answers.series,
        "what was measured, as [t_s, min, max, last], thinned",
        f"{_RUN}; names (with commas), from_s, to_s, points; {_AT}",
    ),
    Road("GET", "/api/v1/runs", answers.runs, "the runs in this folder, newest first, and the `usual` one"),
    Road(
        "GET",
        "/api/v1/compare",
        answers.compare,
        "runs side by side: what each came to, with `repeats`, `throughput`, `speedup` and `efficiency` "
        "(value, and low and high with three rounds or more) against the `base`, `target_s` to the "
        "`target_loss` that all came to, `cost_worker_s`; `scaling` (Amdahl's law by mode), what may be said "
        "in `words`, and the settings that `differs`",
        "runs (two to six, with commas)",
    ),
    Road("GET", "/api/v1/logs", answers.logs, "the last 200 lines that a worker printed", f"{_RUN}; worker"),
    Road("GET", "/api/v1/trace", answers.trace, "the timeline as a Chrome trace, for Perfetto", _RUN),
    Road(
        "GET",
        "/api/v1/scenarios",
        answers.scenarios,
        "the experiments of the lab, and how those begun here go",
    ),
    Road(
        "GET",
        "/api/v1/actions",
        answers.actions,
        "what was asked of a run, and how far it has come",
        _RUN,
    ),
    Road(
        "POST",
        "/api/v1/actions",
        answers.act,
        "ask something of a run; 202 accepted, 409 refused with the reason, 403 not allowed here",
        "key (done once for each), run, action (pause, resume, slow, kill, partition, heal, checkpoint, "
        "stop, lab), worker (partition: nodes and workers, as node-1,worker-0), factor, for_s, force; lab: "
        "scenario, times",
    ),
    Road(
        "POST", "/api/v1/silences", answers.silence, "silence an alert's rule for a while", "rule, for_s, run"
    ),
    Road("GET", "/healthz", answers.healthz, "that it lives; needs no token, and says no more", is_open=True),
    Road("GET", "/metrics", answers.metrics, "everything measured, in Prometheus' format", _RUN),
)

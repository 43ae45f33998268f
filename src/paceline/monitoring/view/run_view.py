"""View of a run: state, series, alerts and health, built line by line from its event log.

Live and replayed displays use the same view: it reads no file and no clock, so the same lines and
the same moment give the same bytes. Alerts are evaluated where the log shows that a second has
passed (the launcher's lines of kind `hosts`), or after a silence so long that time must have
passed (`advance`). Pure.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile

from paceline.events.schema import PHASES
from paceline.monitoring.alerts.engine import AlertEngine, State, Transition
from paceline.monitoring.alerts.rule_file import default_rules
from paceline.monitoring.alerts.rules import Rules
from paceline.monitoring.alerts.status import Health, alerts_to_dicts, compute_health, summary_of
from paceline.monitoring.metrics.catalog import Sample
from paceline.monitoring.metrics.samples import Metrics
from paceline.monitoring.metrics.series import SeriesTable, record_rows, record_second
from paceline.monitoring.metrics.statistics import describe_trend, fit_trend
from paceline.monitoring.view.figures import Figures, build_snapshot
from paceline.monitoring.view.run_track import RunTrack
from paceline.monitoring.view.worker_track import LaneRow
from paceline.plan.codec import Json
from paceline.plan.plan import Plan

TICK_NS = 1_000_000_000
SILENT_NS = 2_500_000_000  # without a line of kind `hosts` for this long, time advances without it
MAX_SILENCE_NS = 3_600_000_000_000  # longest silence that is evaluated second by second
SCHEMA = "paceline.snapshot/1"
TREND_S = 300.0
TREND_SERIES = ("throughput", "loss")


class RunView:
    def __init__(self, plan: Plan, rules: Rules | None = None, *, quiet_until_ns: int = 0) -> None:
        """`quiet_until_ns`: skip alert evaluation before it, to read the end of a long run quickly."""
        self.rules = default_rules() if rules is None else rules
        self.track = RunTrack(plan)
        self._engine = AlertEngine(self.rules)
        self._series = SeriesTable()
        self._needed = self.rules.metrics()
        self._ticked_ns = 0
        self._quiet_until_ns = quiet_until_ns
        self.transitions: deque[Transition] = deque(maxlen=1000)  # the newest, in order

    @property
    def seq(self) -> int:
        return self.track.seq

    @property
    def t0_ns(self) -> int:
        return self.track.t0_ns

    @property
    def last_ns(self) -> int:
        """The newest time in the log."""
        return self.track.last_ns

    @property
    def engine(self) -> AlertEngine:
        return self._engine

    def take(self, line: str) -> None:
        """Each whole line of the log once, the header first."""
        was_over = self.track.is_over
        kind = self.track.take(line)
        if was_over and not self.track.is_over:
            self._ticked_ns = self.track.last_ns  # no evaluation between two sessions
        match kind:
            case "header":
                self._ticked_ns = self.track.t0_ns
            case "steps":
                record_rows(self._series, self.track.newest_rows)
            case "tick":
                self._tick(self.track.last_ns)
            case "run_finished":
                self.end()
            case _:
                self.advance(self.track.last_ns)

    def parts(self) -> dict[str, object]:
        """The state that a snapshot depends on, except plan and rules."""
        return {
            "track": self.track,
            "engine": self._engine,
            "series": self._series.only(TREND_SERIES),
            "ticked_ns": self._ticked_ns,
        }

    def restore(self, parts: Mapping[str, object]) -> None:
        """Restore the state that `parts` returned."""
        track = parts["track"]
        engine = parts["engine"]
        series = parts["series"]
        ticked_ns = parts["ticked_ns"]
        assert isinstance(track, RunTrack), "the track of a view"
        assert isinstance(engine, AlertEngine), "the alerts of a view"
        assert isinstance(series, SeriesTable), "the series of a view"
        assert isinstance(ticked_ns, int), "a moment"
        self.track = track
        self._engine = engine
        self._series = series
        self._ticked_ns = ticked_ns

    def advance(self, now_ns: int) -> None:
        """Evaluate the seconds that passed without a line."""
        if self.track.seq == 0 or self.track.is_over:
            return
        if now_ns - self._ticked_ns > MAX_SILENCE_NS:
            self._tick(now_ns - MAX_SILENCE_NS)
        while now_ns - self._ticked_ns >= SILENT_NS:
            self._tick(self._ticked_ns + TICK_NS)

    def snapshot(self, now_ns: int | None = None) -> dict[str, Json]:
        """Everything, as plain JSON, at this moment of the run's clock; without one, where the log ends."""
        figures = self._figures(self.track.last_ns if now_ns is None else now_ns)
        return {
            "schema": SCHEMA,
            **build_snapshot(figures),
            "health": self._health().to_dict(),
            "trends": self._trends(figures),
            "alerts": [*alerts_to_dicts(self._engine, self.rules, figures)],
            "events": [*list(self.track.events)[-200:]],
        }

    def alerts(self, now_ns: int, *, with_ended: bool) -> list[dict[str, Json]]:
        """`with_ended`: also all resolved ones, for notifiers that have sent their firing."""
        max_resolved = None if with_ended else 0
        return alerts_to_dicts(self._engine, self.rules, self._figures(now_ns), max_resolved=max_resolved)

    def samples(self, now_ns: int | None = None) -> list[Sample]:
        """Every exported metric but the histograms."""
        return list(self.metrics(now_ns).all(self._engine, self._health()))

    def metrics(self, now_ns: int | None = None) -> Metrics:
        return Metrics(self._figures(self.track.last_ns if now_ns is None else now_ns))

    def events_since(self, seq: int) -> list[dict[str, Json]]:
        return [event for event in self.track.events if int(str(event["seq"])) > seq]

    def steps_since(self, seq: int) -> list[dict[str, Json]]:
        newer = list(takewhile(lambda batch: batch.seq > seq, reversed(self.track.batches)))
        return [
            {"seq": b.seq, "worker": b.worker, "rows": [list(map(_finite_or_nan, row)) for row in b.rows()]}
            for b in reversed(newer)
        ]

    def timeline(self, from_s: float, to_s: float, *, most: int = 4000) -> dict[str, Json]:
        """The steps of each worker that touch this time; of more than `most`, the newest."""
        lanes: list[Json] = []
        for worker in sorted(self.track.workers.values(), key=lambda w: (len(w.name), w.name)):
            share = max(1, most // max(1, len(self.track.workers)))
            rows = worker.lane.between(from_s, to_s, share)
            lanes.append({"worker": worker.name, "rows": [list(map(_finite_or_nan, row)) for row in rows]})
        return {"phases": list(PHASES), "lanes": lanes}

    def series(
        self,
        names: Sequence[str] | None = None,
        *,
        from_s: float | None = None,
        to_s: float | None = None,
        points: int = 600,
    ) -> dict[str, Json]:
        end_s = self.track.seconds_of_last() if to_s is None else to_s
        return self._series.to_dict(names, 0.0 if from_s is None else from_s, end_s, points)

    def _figures(self, now_ns: int) -> Figures:
        return Figures(self.track, (now_ns - self.track.t0_ns) / 1e9)

    def _tick(self, at_ns: int) -> None:
        if at_ns <= self._ticked_ns:
            return  # each moment is evaluated once
        self._ticked_ns = at_ns
        if at_ns < self._quiet_until_ns or self.track.is_over:
            return
        figures = self._figures(at_ns)
        needed = Metrics(figures, self._needed).all()
        self.transitions += self._engine.evaluate(self.track.started_unix_s + figures.now_s, needed)
        record_second(self._series, figures, self._health().score)

    def end(self) -> None:
        """The run is over, or its monitoring ends: resolve all alerts."""
        ended_s = self.track.started_unix_s + self.track.seconds_of_last()
        self.transitions += self._engine.end(ended_s)

    def _health(self) -> Health:
        active = self._engine.active
        summaries = {a.fingerprint: summary_of(a) for a in active if a.state is State.FIRING}
        return compute_health(active, has_data=self.track.last_step_s is not None, summaries=summaries)

    def _trends(self, figures: Figures) -> list[Json]:
        """Descriptions of the trends of the last five minutes."""
        trends: list[Json] = []
        for name in TREND_SERIES:
            series = self._series.get(name)
            now_s = figures.end_s
            points = (
                []
                if series is None
                else [(t, last) for t, _, _, last in series.read(now_s - TREND_S, now_s, 300)]
            )
            trend = fit_trend(points)
            if trend is None:
                continue
            if name == "loss" and (trend.change_share or 0.0) <= 0:
                # A loss falls because the model learns: do not attribute that to an event.
                trend = replace(trend, change_s=None, change_share=None)
            cause = None if trend.change_s is None else self._cause(trend.change_s)
            clock = (
                None if trend.change_s is None else _format_clock(self.track.started_unix_s + trend.change_s)
            )
            trends.append(
                {
                    "series": name,
                    "slope_per_min": trend.slope_per_s * 60,
                    "change_s": trend.change_s,
                    "change_share": trend.change_share,
                    "words": describe_trend(name, trend, clock, cause),
                }
            )
        return trends

    def _cause(self, at_s: float) -> str | None:
        """The event in the log that changed the pace: the nearest one within five seconds."""
        kinds = (
            "supervision",
            "slow_worker",
            "generation_entered",
            "adapted",
            "fault_injected",
            "shards_dealt",
        )
        near = [
            event
            for event in self.track.events
            if event["kind"] in kinds and abs(float(str(event["t_s"])) - at_s) <= 5
        ]
        if not near:
            return None
        return str(min(near, key=lambda event: abs(float(str(event["t_s"])) - at_s))["text"])


def _format_clock(unix_s: float) -> str:
    """Time of day in UTC, so that a replay elsewhere shows the same."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S UTC")


def _finite_or_nan(value: float) -> Json:
    return value if value == value and abs(value) != float("inf") else "nan"


__all__ = ["LaneRow", "RunView"]

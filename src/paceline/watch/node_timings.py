"""How long do the coordinator's nodes take? What each counted since it started, and of late. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.events.sample_rows import CoordinatorRow
from paceline.events.timings import Timings
from paceline.plan.codec import Json

LATE_S = 300.0
APART_S = 10.0  # between two that are remembered


@dataclass(slots=True)
class NodeTimings:
    """Of one node."""

    commits: Timings | None = None
    fsyncs: Timings | None = None
    round_trips: Mapping[str, Timings] = field(default_factory=dict)  # by the other node's number
    _earlier: deque[tuple[float, Timings]] = field(
        default_factory=lambda: deque(maxlen=round(LATE_S / APART_S) + 1)
    )

    def take(self, row: CoordinatorRow, at_s: float) -> None:
        self.commits = None if row.commits is None else Timings.read(row.commits)
        self.fsyncs = None if row.fsyncs is None else Timings.read(row.fsyncs)
        words = (row.round_trips or "").split(";")
        pairs = [word.partition("=") for word in words if word]
        self.round_trips = {node: Timings.read(word) for node, _, word in pairs}
        if self.commits is not None and (not self._earlier or at_s - self._earlier[-1][0] >= APART_S):
            self._earlier.append((at_s, self.commits))

    def commit_quantile(self, share: float, now_s: float) -> float | None:
        """Of the last five minutes; None where nothing was committed in them."""
        if self.commits is None:
            return None
        before = next((known for at_s, known in self._earlier if now_s - at_s <= LATE_S), Timings())
        return self.commits.since(before).quantile(share)

    def told(self, now_s: float) -> dict[str, Json]:
        return {
            "commit_p50_s": self.commit_quantile(0.5, now_s),
            "commit_p99_s": self.commit_quantile(0.99, now_s),
            "fsync_p50_s": None if self.fsyncs is None else self.fsyncs.quantile(0.5),
            "fsync_p99_s": None if self.fsyncs is None else self.fsyncs.quantile(0.99),
            "peer_round_trips_s": {node: one.quantile(0.5) for node, one in self.round_trips.items()},
        }

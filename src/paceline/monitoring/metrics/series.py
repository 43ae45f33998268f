"""Time series in bounded memory: rings of ever wider buckets, for two days.

Each bucket keeps the minimum, the maximum and the last value of its time, so that no peak is lost,
however coarse it gets. Ten values a second for ten minutes (only for fast series), one a second
for two hours, one in ten seconds for 48 hours. A series with one value a second has one value in a
one-second bucket: only that one is stored, in a third of the memory.
Pure; a bucket without values is NaN inside, and left out of the output.
"""

import math
from array import array
from collections.abc import Sequence

from paceline.monitoring.view.figures import COMM, Figures
from paceline.monitoring.view.worker_track import LaneRow
from paceline.plan.codec import Json

FINE = (0.1, 6_000)
MEDIUM = (1.0, 7_200)
COARSE = (10.0, 17_280)
Bucket = tuple[float, float, float, float]  # start in seconds, minimum, maximum, last


class Ring:
    """Contiguous buckets of one width; the oldest are dropped."""

    def __init__(self, width_s: float, most: int, *, has_range: bool = True) -> None:
        """`has_range`: a bucket may get more than one value."""
        self.width_s = width_s
        self._most = most
        self._first = 0  # number of the oldest bucket that is kept
        self._last = array("f")
        self._low, self._high = (array("f"), array("f")) if has_range else (self._last, self._last)
        self._sides = (self._low, self._high, self._last) if has_range else (self._last,)

    def __len__(self) -> int:
        return len(self._last)

    @property
    def begins_s(self) -> float:
        return self._first * self.width_s

    def add(self, at_s: float, value: float) -> None:
        number = math.floor(at_s / self.width_s + 1e-9)
        if not self._last or number - self._first >= len(self) + self._most:
            self._first = number
            self._cut(len(self))
        place = number - self._first
        if place < 0:
            return  # too late: its bucket was dropped
        missing = place + 1 - len(self)
        if missing > 0:
            for side in self._sides:
                side.extend([math.nan] * missing)
        if math.isnan(self._last[place]):
            self._low[place] = self._high[place] = value
        else:
            self._low[place] = min(self._low[place], value)
            self._high[place] = max(self._high[place], value)
        self._last[place] = value
        # Drop the oldest in batches.
        if len(self) > self._most * 17 // 16:
            cut = len(self) - self._most
            self._first += cut
            self._cut(cut)

    def _cut(self, count: int) -> None:
        for side in self._sides:
            del side[:count]

    def between(self, from_s: float, to_s: float) -> list[Bucket]:
        first = max(0, math.floor(from_s / self.width_s) - self._first)
        end = min(len(self), math.floor(to_s / self.width_s) - self._first + 1)
        return [
            ((self._first + i) * self.width_s, self._low[i], self._high[i], self._last[i])
            for i in range(first, end)
            if not math.isnan(self._last[i])
        ]


class Series:
    """One number over time."""

    def __init__(self, *, unit: str, group: str, is_fast: bool = False) -> None:
        self.unit = unit
        self.group = group
        tiers = (FINE, MEDIUM, COARSE) if is_fast else (MEDIUM, COARSE)
        self._rings = [Ring(*tier, has_range=is_fast or tier is COARSE) for tier in tiers]
        self.last: float | None = None

    def add(self, at_s: float, value: float) -> None:
        if math.isfinite(value):
            self.last = value
            for ring in self._rings:
                ring.add(at_s, value)

    def read(self, from_s: float, to_s: float, points: int) -> list[Bucket]:
        """At most `points` buckets, from the finest ring that still covers `from_s`."""
        # A ring that reaches into the oldest coarse bucket covers everything.
        oldest_s = self._rings[-1].begins_s + self._rings[-1].width_s
        for ring in self._rings:
            if len(ring) and (ring.begins_s <= max(from_s, oldest_s) + ring.width_s):
                return downsample(ring.between(from_s, to_s), points)
        return downsample(self._rings[-1].between(from_s, to_s), points)


def downsample(buckets: Sequence[Bucket], points: int) -> list[Bucket]:
    """Merge neighbours: minimum of the minima, maximum of the maxima, last value."""
    if len(buckets) <= points:
        return list(buckets)
    merged = []
    for i in range(points):
        part = buckets[i * len(buckets) // points : (i + 1) * len(buckets) // points]
        merged.append((part[0][0], min(b[1] for b in part), max(b[2] for b in part), part[-1][3]))
    return merged


class SeriesTable:
    """All series of a run, by name."""

    def __init__(self) -> None:
        self._all: dict[str, Series] = {}

    def add(
        self, name: str, at_s: float, value: float | None, *, unit: str, group: str, is_fast: bool = False
    ) -> None:
        if value is None:
            return
        if name not in self._all:
            self._all[name] = Series(unit=unit, group=group, is_fast=is_fast)
        self._all[name].add(at_s, value)

    def only(self, names: Sequence[str]) -> "SeriesTable":
        """A table of these series alone, which are not copied."""
        table = SeriesTable()
        table._all = {name: series for name, series in self._all.items() if name in names}
        return table

    def get(self, name: str) -> Series | None:
        return self._all.get(name)

    def to_dict(
        self, names: Sequence[str] | None, from_s: float, to_s: float, points: int
    ) -> dict[str, Json]:
        selected = list(self._all) if names is None else [n for n in names if n in self._all]
        listed: list[Json] = [
            {"name": name, "unit": series.unit, "group": series.group} for name, series in self._all.items()
        ]
        data: dict[str, Json] = {
            name: [
                [round(t, 3), *map(_short, rest)] for t, *rest in self._all[name].read(from_s, to_s, points)
            ]
            for name in selected
        }
        return {"names": listed, "data": data}


def _short(value: float) -> float:
    """The digits of single precision."""
    return float(f"{value:.7g}")


_HOST = {
    "cpu": ("cpu_share", "share"),
    "memory_bytes": ("memory_used_bytes", "B"),
    "disk_free_bytes": ("disk_free_bytes", "B"),
}
_HOST_RATES = {
    "net_in": ("net_in_bytes", "B/s"),
    "net_out": ("net_out_bytes", "B/s"),
    "loopback": ("loopback_bytes", "B/s"),
    "disk_read": ("disk_read_bytes", "B/s"),
    "disk_written": ("disk_written_bytes", "B/s"),
    "retransmits": ("tcp_retransmitted", "1/s"),
}
_GPU = {
    "utilization": ("utilization", "share"),
    "memory_bytes": ("memory_used_bytes", "B"),
    "temperature": ("temperature_c", "°C"),
    "power": ("power_w", "W"),
}

_WORKER_GROUPS = {"memory_bytes": "system", "cpu": "system", "bandwidth": "network", "round_trip": "network"}


def record_rows(table: SeriesTable, rows: Sequence[LaneRow]) -> None:
    """Add the values of each step."""
    for row in rows:
        lasted_s = sum(row[2:10])
        table.add("loss", row[1] + lasted_s, row[10], unit="loss", group="training", is_fast=True)
        table.add("step_s", row[1] + lasted_s, lasted_s, unit="s", group="training", is_fast=True)


def record_second(table: SeriesTable, figures: Figures, score: int | None) -> None:
    """Add the values of one second."""
    now_s = figures.now_s
    track = figures.track
    if track.last_step_s is not None:
        table.add("throughput", now_s, figures.rates().samples_per_s, unit="samples/s", group="training")
        table.add("bytes", now_s, figures.rates().bytes_per_s, unit="B/s", group="network")
    table.add("health", now_s, score, unit="points", group="training")
    table.add("workers", now_s, figures.alive, unit="workers", group="training")
    for w in figures.workers:
        _record_worker(table, figures, w.name)
    for (name, worker), row in track.custom.items():
        table.add(f"custom.{name}.{worker}", now_s, row.value, unit="", group="custom")
    _record_machines(table, figures)


def _record_worker(table: SeriesTable, figures: Figures, name: str) -> None:
    worker = figures.track.workers[name]
    now_s = figures.now_s
    shares = worker.phase_shares(10)
    recent = list(worker.seconds)[-10:]
    comm = sum(s.phases_s[COMM] for s in recent)
    for kind, value, unit in (
        ("speed", figures.relative_speed(worker), "ratio"),
        ("staleness", worker.staleness_p95, "updates"),
        ("comm_share", shares.get("comm"), "share"),
        ("wait_share", shares.get("wait"), "share"),
        ("step_s", worker.step_p50_s, "s"),
        ("gradient_norm", worker.norm, "norm"),
        ("lag", float(figures.foremost - worker.steps), "steps"),
        ("memory_bytes", worker.memory_bytes, "B"),
        ("cpu", worker.cpu_share, "cores"),
        ("round_trip", None if worker.link is None else worker.link.round_trip_s, "s"),
        ("bandwidth", sum(s.bytes_out + s.bytes_in for s in recent) / comm if comm else None, "B/s"),
    ):
        table.add(
            f"worker.{name}.{kind}", now_s, value, unit=unit, group=_WORKER_GROUPS.get(kind, "training")
        )


def _record_machines(table: SeriesTable, figures: Figures) -> None:
    machines = figures.track.machines
    now_s = figures.now_s
    for node, rows in machines.hosts.items():
        for kind, (attribute, unit) in _HOST.items():
            table.add(f"host.{node}.{kind}", now_s, getattr(rows[-1], attribute), unit=unit, group="system")
        for kind, (attribute, unit) in _HOST_RATES.items():
            group = "system" if kind.startswith("disk") else "network"
            table.add(f"host.{node}.{kind}", now_s, machines.rate(node, attribute), unit=unit, group=group)
    for (node, number), gpu in machines.gpus.items():
        for kind, (attribute, unit) in _GPU.items():
            table.add(f"gpu.{node}.{number}.{kind}", now_s, getattr(gpu, attribute), unit=unit, group="gpu")
    round_trip_s = figures.track.coordinator.round_trip_s
    table.add("coordinator.round_trip", now_s, round_trip_s, unit="s", group="network")

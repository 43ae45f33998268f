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
Bucket = tuple[float, float, float, float]  # its beginning in seconds, least, greatest, last


class Ring:
    """Buckets of one width, one after the other without gaps; the oldest go."""

    def __init__(self, width_s: float, most: int, *, has_range: bool = True) -> None:
        """`has_range`: more than one value comes in a bucket's time."""
        self.width_s, self._most = width_s, most
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
            return  # so late that its time is no longer kept
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
        # Some more than is kept, so that the front is cut off now and then only.
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
        self.unit, self.group = unit, group
        tiers = (FINE, MEDIUM, COARSE) if is_fast else (MEDIUM, COARSE)
        self._rings = [Ring(*tier, has_range=is_fast or tier is COARSE) for tier in tiers]
        self.last: float | None = None

    def add(self, at_s: float, value: float) -> None:
        if math.isfinite(value):
            self.last = value
            for ring in self._rings:
                ring.add(at_s, value)

    def read(self, from_s: float, to_s: float, points: int) -> list[Bucket]:
        """At most so many buckets, from the finest ring that still knows the beginning."""
        # What was there within the first wide bucket was there from the beginning.
        oldest_s = self._rings[-1].begins_s + self._rings[-1].width_s
        for ring in self._rings:
            if len(ring) and (ring.begins_s <= max(from_s, oldest_s) + ring.width_s):
                return downsample(ring.between(from_s, to_s), points)
        return downsample(self._rings[-1].between(from_s, to_s), points)


def downsample(buckets: Sequence[Bucket], points: int) -> list[Bucket]:
    """Neighbours become one, with the least of the least and the greatest of the greatest."""
    if len(buckets) <= points:
        return list(buckets)
    made = []
    for i in range(points):
        part = buckets[i * len(buckets) // points : (i + 1) * len(buckets) // points]
        made.append((part[0][0], min(b[1] for b in part), max(b[2] for b in part), part[-1][3]))
    return made


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
        table._all = {name: one for name, one in self._all.items() if name in names}
        return table

    def get(self, name: str) -> Series | None:
        return self._all.get(name)

    def told(self, names: Sequence[str] | None, from_s: float, to_s: float, points: int) -> dict[str, Json]:
        wanted = list(self._all) if names is None else [n for n in names if n in self._all]
        listed: list[Json] = [
            {"name": name, "unit": one.unit, "group": one.group} for name, one in self._all.items()
        ]
        data: dict[str, Json] = {
            name: [
                [round(t, 3), *map(_short, rest)] for t, *rest in self._all[name].read(from_s, to_s, points)
            ]
            for name in wanted
        }
        return {"names": listed, "data": data}


def _short(value: float) -> float:
    """Kept in single precision: more digits would be made up."""
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


def record_rows(table: SeriesTable, rows: Sequence[LaneRow]) -> None:
    """What each step tells."""
    for row in rows:
        lasted_s = sum(row[2:10])
        table.add("loss", row[1] + lasted_s, row[10], unit="loss", group="training", is_fast=True)
        table.add("step_s", row[1] + lasted_s, lasted_s, unit="s", group="training", is_fast=True)


def record_second(table: SeriesTable, figures: Figures, score: int | None) -> None:
    """What is told once a second."""
    now_s, track = figures.now_s, figures.track
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
    worker, now_s = figures.track.workers[name], figures.now_s
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
        group = (
            "system"
            if kind in ("memory_bytes", "cpu")
            else "network"
            if kind in ("bandwidth", "round_trip")
            else "training"
        )
        table.add(f"worker.{name}.{kind}", now_s, value, unit=unit, group=group)


def _record_machines(table: SeriesTable, figures: Figures) -> None:
    machines, now_s = figures.track.machines, figures.now_s
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

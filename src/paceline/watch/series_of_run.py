"""Which numbers of a run are remembered over time? Some with every step, the others each second. Pure."""

from collections.abc import Sequence

from paceline.watch.figures import COMM, Figures
from paceline.watch.lane import LaneRow
from paceline.watch.series import SeriesTable

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


def note_rows(table: SeriesTable, rows: Sequence[LaneRow]) -> None:
    """What each step tells."""
    for row in rows:
        lasted_s = sum(row[2:10])
        table.add("loss", row[1] + lasted_s, row[10], unit="loss", group="training", is_fast=True)
        table.add("step_s", row[1] + lasted_s, lasted_s, unit="s", group="training", is_fast=True)


def note_second(table: SeriesTable, figures: Figures, score: int | None) -> None:
    """What is told once a second."""
    now_s, track = figures.now_s, figures.track
    if track.last_step_s is not None:
        table.add("throughput", now_s, figures.rates().samples_per_s, unit="samples/s", group="training")
        table.add("bytes", now_s, figures.rates().bytes_per_s, unit="B/s", group="network")
    table.add("health", now_s, score, unit="points", group="training")
    table.add("workers", now_s, figures.alive, unit="workers", group="training")
    for w in figures.workers:
        _note_worker(table, figures, w.name)
    for (name, worker), row in track.custom.items():
        table.add(f"custom.{name}.{worker}", now_s, row.value, unit="", group="custom")
    _note_machines(table, figures)


def _note_worker(table: SeriesTable, figures: Figures, name: str) -> None:
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


def _note_machines(table: SeriesTable, figures: Figures) -> None:
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

"""Samples and histograms of every exported metric, at one moment. Pure.

Only known values are exported: a family without any is absent, never 0.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from paceline import __version__
from paceline.events.schema import BOUNDS_S, PHASES, GpuRow, HostRow, Timings
from paceline.monitoring.alerts.engine import AlertEngine, State
from paceline.monitoring.alerts.rules import Severity
from paceline.monitoring.alerts.status import Health
from paceline.monitoring.metrics.catalog import PREFIX, Sample, labels_of
from paceline.monitoring.view.figures import COMM, WAIT, Figures
from paceline.monitoring.view.recoveries import CHANGE_CAUSES, RESTART_CAUSES
from paceline.monitoring.view.run_track import RunTrack
from paceline.monitoring.view.worker_track import Histogram, WorkerTrack

FULL_DETAIL_WORKERS = 64  # above, histograms are summed over workers
RECOVERIES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

Labelled = tuple[str, Mapping[str, str], Histogram]


def histograms(figures: Figures) -> Iterator[Labelled]:
    """(name, labels, histogram)"""
    run = {"run": figures.track.run}
    parts = (
        _of_workers(figures.workers),
        _of_run(figures.track, figures.op),
        () if figures.track.is_over else _of_coordinator(figures.track),
    )
    for part in parts:
        for name, labels, histogram in part:
            yield PREFIX + name, {**run, **labels}, histogram


def _of_workers(workers: list[WorkerTrack]) -> Iterator[Labelled]:
    steps = [(w.name, w.step_histogram) for w in workers]
    stale = [(w.name, w.staleness_histogram) for w in workers]
    for name, listed in (("step_duration_seconds", steps), ("gradient_staleness_steps", stale)):
        filled = [(worker, histogram) for worker, histogram in listed if sum(histogram.counts)]
        if len(workers) > FULL_DETAIL_WORKERS and filled:
            filled = [("", _merge([histogram for _, histogram in filled]))]
        for worker, histogram in filled:
            yield name, {"worker": worker}, histogram


def _of_run(track: RunTrack, op: str) -> Iterator[Labelled]:
    recoveries = Histogram(RECOVERIES_S)
    for generation in track.generations.all:
        if (took_s := generation.recovery_s) is not None:
            recoveries.add(took_s)
    if sum(recoveries.counts):
        yield "recovery_duration_seconds", {}, recoveries
    for stage, took in track.checkpoint_stages.items():
        if track.checkpoints:
            yield "checkpoint_duration_seconds", {"stage": stage}, took
    if sum(track.collectives.counts):
        yield "collective_duration_seconds", {"op": op}, track.collectives


def _of_coordinator(track: RunTrack) -> Iterator[Labelled]:
    known = track.coordinator
    for address, timed in known.timings.items():
        if known.nodes[address].node is None:
            continue  # it is silent, so its counters are unknown
        node = known.name_of(address)
        for name, timings in (("commit", timed.commits), ("fsync", timed.fsyncs)):
            if timings is not None:
                yield f"coordinator_{name}_duration_seconds", {"node": node}, _to_histogram(timings)
        for peer, took in timed.round_trips.items():
            yield "coordinator_peer_round_trip_seconds", {"node": node, "peer": peer}, _to_histogram(took)


def _to_histogram(timings: Timings) -> Histogram:
    histogram = Histogram(BOUNDS_S)
    histogram.counts = list(timings.counts)
    histogram.total = timings.total_s
    return histogram


def _merge(histograms: list[Histogram]) -> Histogram:
    whole = Histogram(histograms[0].bounds)
    for histogram in histograms:
        whole.counts = [a + b for a, b in zip(whole.counts, histogram.counts, strict=True)]
        whole.total += histogram.total
    return whole


STATES = ("starting", "training", "stopping", "finished", "stopped", "failed")

_HOST = {
    "host_cpu_usage_ratio": "cpu_share",
    "host_memory_used_bytes": "memory_used_bytes",
    "host_memory_size_bytes": "memory_size_bytes",
    "host_filesystem_available_bytes": "disk_free_bytes",
    "host_filesystem_size_bytes": "disk_size_bytes",
    "host_network_receive_bytes_total": "net_in_bytes",
    "host_network_transmit_bytes_total": "net_out_bytes",
    "host_disk_read_bytes_total": "disk_read_bytes",
    "host_disk_written_bytes_total": "disk_written_bytes",
    "host_tcp_segments_total": "tcp_sent",
    "host_tcp_retransmitted_total": "tcp_retransmitted",
}
_GPU = {
    "gpu_utilization_ratio": "utilization",
    "gpu_memory_used_bytes": "memory_used_bytes",
    "gpu_memory_size_bytes": "memory_size_bytes",
    "gpu_temperature_celsius": "temperature_c",
    "gpu_energy_joules_total": "energy_j",
    "gpu_power_limit_watts": "power_limit_w",
    "gpu_uncorrected_errors_total": "uncorrected_errors",
}


class Metrics:
    """The metrics at one moment; `all` are those without histograms."""

    def __init__(self, figures: Figures, only: frozenset[str] | None = None) -> None:
        """`only`: the names to compute; the others are skipped as early as possible."""
        self._figures = figures
        self._track = figures.track
        self._only = only
        self._run = self._track.run

    def all(self, engine: AlertEngine | None = None, health: Health | None = None) -> Iterator[Sample]:
        yield from self._of_run()
        yield from self._of_training()
        for worker in self._figures.workers:
            yield from self._of_worker(worker)
        yield from self._of_workforce()
        yield from self._of_checkpoints()
        yield from self._of_coordinator()
        yield from self._of_machines()
        yield from self._of_alerts(engine, health)

    def histograms(self) -> Iterator[Labelled]:
        return histograms(self._figures)

    def _sample(self, name: str, value: float | None, /, **labels: object) -> Iterator[Sample]:
        if value is not None and self._wants(name):
            yield Sample(PREFIX + name, labels_of({"run": self._run, **labels}), float(value))

    def _wants(self, name: str) -> bool:
        return self._only is None or PREFIX + name in self._only

    def _unix(self, at_s: float | None) -> float | None:
        return None if at_s is None else self._track.started_unix_s + at_s

    def _of_run(self) -> Iterator[Sample]:
        track = self._track
        plan = self._track.plan
        yield Sample(PREFIX + "build_info", (("version", __version__),), 1.0)
        yield from self._sample(
            "run_info",
            1,
            mode=plan.mode,
            task=plan.task,
            launcher=plan.launcher.value,
            transport=plan.transport.value,
        )
        for state in STATES:
            yield from self._sample("run_state", float(self._figures.state == state), state=state)
        yield from self._sample("run_start_timestamp_seconds", track.started_unix_s)
        yield from self._sample("last_step_timestamp_seconds", self._unix(track.last_step_s))
        yield from self._sample("last_sample_timestamp_seconds", self._unix(track.last_tick_s))
        yield from self._sample("global_step", track.step)
        yield from self._sample("planned_steps", plan.steps)

    def _of_training(self) -> Iterator[Sample]:
        track = self._track
        figures = self._figures
        yield from self._sample("train_loss", track.loss.smooth)
        yield from self._sample("learning_rate", figures.learning_rate)
        yield from self._sample("nonfinite_losses_total", track.loss.not_finite)
        yield from self._sample("steps_skipped_total", track.skipped)
        if track.last_step_s is not None:
            yield from self._sample("throughput_samples_per_second", figures.rates().samples_per_s)
        if track.loss.evaluations:
            metrics = track.loss.evaluations[-1]["metrics"]
            for name, value in metrics.items() if isinstance(metrics, dict) else ():
                if isinstance(value, int | float):
                    yield from self._sample("eval_metric", value, name=name)
        for (name, worker), row in sorted(track.custom.items()):
            if math.isfinite(row.value):
                yield from self._sample("custom", row.value, name=name, worker=worker)
        staleness = figures.staleness()
        if staleness is not None:
            yield from self._sample("staleness_p95_steps", float(str(staleness["p95"])))
            yield from self._sample("staleness_max_gap_steps", track.max_gap)
        yield from self._sample("staleness_bound_steps", figures.allowed_gap)
        for reason, count in sorted(track.dropped.items()):
            yield from self._sample("gradients_dropped_total", count, reason=reason)
        yield from self._sample("wait_ratio", figures.share_of(WAIT))
        yield from self._sample("communication_ratio", figures.share_of(COMM))

    def _of_worker(self, w: WorkerTrack) -> Iterator[Sample]:
        figures = self._figures
        name = w.name
        yield from self._sample("steps_total", w.total_steps, worker=name)
        yield from self._sample("samples_total", w.total_samples, worker=name)
        if w.tokens_per_sample is not None:
            yield from self._sample("tokens_total", w.total_samples * w.tokens_per_sample, worker=name)
        phases = zip(PHASES, w.phases_s, strict=True) if self._wants("step_phase_seconds_total") else ()
        for phase, spent_s in phases:
            yield from self._sample("step_phase_seconds_total", spent_s, worker=name, phase=phase)
        yield from self._sample("gradient_norm", w.norm, worker=name)
        if w.norm is not None or w.norms_not_finite:
            yield from self._sample("nonfinite_gradients_total", w.norms_not_finite, worker=name)
        yield from self._sample("worker_step", w.steps, worker=name)
        yield from self._sample("worker_lag_steps", figures.foremost - w.steps, worker=name)
        yield from self._sample("worker_up", float(figures.state_of(w) != "lost"), worker=name)
        yield from self._sample("worker_last_seen_timestamp_seconds", self._unix(w.last_s), worker=name)
        if figures.state_of(w) in ("training", "slow"):
            yield from self._sample("worker_relative_speed_ratio", figures.relative_speed(w), worker=name)
        yield from self._sample("worker_restarts_total", max(0, w.starts - 1), worker=name)
        yield from self._sample("network_transmit_bytes_total", w.total_bytes_out, worker=name)
        yield from self._sample("network_receive_bytes_total", w.total_bytes_in, worker=name)
        if self._wants("worker_bandwidth_bytes_per_second"):
            yield from self._sample("worker_bandwidth_bytes_per_second", figures.bandwidth(w), worker=name)
        if w.node is not None:
            yield from self._sample("worker_info", 1, worker=name, node=w.node)
        if w.link is not None:
            yield from self._sample("worker_round_trip_seconds", w.link.round_trip_s, worker=name)
            yield from self._sample("worker_round_trip_slowest_seconds", w.link.slowest_s, worker=name)
            yield from self._sample("worker_tcp_segments_total", w.link.sent, worker=name)
            yield from self._sample("worker_tcp_retransmitted_total", w.link.sent_again, worker=name)
        yield from self._sample("worker_resident_memory_bytes", w.memory_bytes, worker=name)
        yield from self._sample("worker_cpu_usage_ratio", w.cpu_share, worker=name)

    def _of_workforce(self) -> Iterator[Sample]:
        figures = self._figures
        track = self._track
        for state, count in figures.counts().items():
            yield from self._sample("workers", count, state=state)
        elastic = track.plan.elastic
        yield from self._sample("workers_desired", figures.desired)
        yield from self._sample(
            "workers_required", figures.desired if elastic is None else elastic.min_workers
        )
        yield from self._sample("workers_alive", figures.alive)
        if track.generations.newest is not None:
            yield from self._sample("generation", track.generations.newest.number)
            causes = Counter(generation.cause for generation in track.generations.all[1:])
            for cause in CHANGE_CAUSES:
                yield from self._sample("generation_changes_total", causes[cause], cause=cause)
            recovered = [g.recovery_s for g in track.generations.all if g.recovery_s is not None]
            yield from self._sample("recovery_last_seconds", recovered[-1] if recovered else None)
            yield from self._sample("recovery_p95_seconds", track.generations.recovery_p95_s(figures.now_s))
        for cause in RESTART_CAUSES:
            yield from self._sample("restarts_total", track.setbacks.restarts[cause], cause=cause)
        yield from self._sample("lost_steps_total", track.setbacks.lost_steps + track.generations.lost_steps)
        for kind, count in sorted(Counter(fault for _, _, fault in track.injected).items()):
            yield from self._sample("faults_injected_total", count, kind=kind)

    def _of_checkpoints(self) -> Iterator[Sample]:
        track = self._track
        yield from self._sample("checkpoint_expected", float(track.plan.checkpoint_every > 0))
        yield from self._sample("checkpoint_last_success_timestamp_seconds", self._unix(track.checkpoint_s))
        if track.checkpoint is not None:
            yield from self._sample("checkpoint_size_bytes", float(str(track.checkpoint.get("bytes", 0))))
        yield from self._sample("checkpoints_total", track.checkpoints)
        yield from self._sample("checkpoint_failures_total", track.checkpoints_failed)
        yield from self._sample("checkpoint_write_seconds_total", track.checkpoint_write_s)
        yield from self._sample("checkpoint_pause_seconds_total", track.checkpoint_pause_s)

    def _of_coordinator(self) -> Iterator[Sample]:
        known = self._track.coordinator
        if not known.nodes or self._track.is_over:
            return
        yield from self._sample("coordinator_has_leader", float(known.leader is not None))
        yield from self._sample("coordinator_term", known.term)
        yield from self._sample("coordinator_leader_changes_total", known.leader_changes)
        voters = len(known.voters)
        yield from self._sample("coordinator_voters", voters)
        yield from self._sample("coordinator_voters_missing", known.missing)
        # 3 voters tolerate one loss, 5 tolerate two.
        yield from self._sample("coordinator_spare_voters", (voters - 1) // 2 - known.missing)
        for row in known.nodes.values():
            node = known.name_of(row.address)
            yield from self._sample(
                "coordinator_is_leader", float(row.node is not None and row.node == known.leader), node=node
            )
            yield from self._sample("coordinator_commit_index", row.commit, node=node)
            yield from self._sample("coordinator_applied_index", row.applied, node=node)
            yield from self._sample("coordinator_round_trip_seconds", row.round_trip_s, node=node)
            yield from self._sample("coordinator_elections_total", row.elections, node=node)
            yield from self._sample("coordinator_proposals_failed_total", row.proposals_failed, node=node)
            if (timed := known.timings.get(row.address)) is not None and row.node is not None:
                slow_s = timed.commit_quantile(0.99, known.last_s)
                yield from self._sample("coordinator_commit_p99_seconds", slow_s, node=node)

    def _of_machines(self) -> Iterator[Sample]:
        machines = self._track.machines
        now_ns = round(self._figures.now_s * 1e9) + self._track.t0_ns
        for node, rows in sorted(machines.hosts.items()):
            host: HostRow = rows[-1]
            if machines.is_silent(host.at_ns, now_ns):
                continue  # its present state is unknown
            for name, attribute in _HOST.items():
                yield from self._sample(name, getattr(host, attribute), node=node)
        for (node, number), row in sorted(machines.gpus.items()):
            gpu: GpuRow = row
            if machines.is_silent(gpu.at_ns, now_ns):
                continue
            for name, attribute in _GPU.items():
                yield from self._sample(name, getattr(gpu, attribute), node=node, gpu=number)
            if gpu.is_throttled is not None:
                held_s = machines.throttled_s.get((node, number), 0.0)
                yield from self._sample("gpu_clock_throttle_seconds_total", held_s, node=node, gpu=number)

    def _of_alerts(self, engine: AlertEngine | None, health: Health | None) -> Iterator[Sample]:
        if engine is not None:
            firing = [alert.rule.severity for alert in engine.active if alert.state is State.FIRING]
            for severity in Severity:
                yield from self._sample("alerts_firing", firing.count(severity), severity=severity.word)
        if health is not None and health.score is not None:
            yield from self._sample("health_score_ratio", health.score / 100)
            for component, score in health.components.items():
                yield from self._sample("health_component_ratio", score / 100, component=component)
        for (notifier, outcome), count in sorted(self._track.notifications.items()):
            yield from self._sample("notifications_total", count, notifier=notifier, outcome=outcome)

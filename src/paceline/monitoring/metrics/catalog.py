"""Catalogue of all exported metrics: names, kinds, units, labels.

The endpoint, the alert rules, the Grafana panels and docs/reference/metrics.md are generated from
it or checked against it by tests. A family is exported only where its value is known.
"""

# ruff: noqa: E501  # one row a line

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

PREFIX = "paceline_"


class MetricKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    help: str
    group: str


def _family(group: str, kind: MetricKind, name: str, unit: str, labels: str, text: str) -> Family:
    return Family(PREFIX + name, kind, unit, tuple(labels.split()), text, group)


_G = MetricKind.GAUGE
_C = MetricKind.COUNTER
_H = MetricKind.HISTOGRAM

FAMILIES: tuple[Family, ...] = tuple(
    _family(*row)
    for row in (
        # group, kind, name, unit, labels, help
        ("run", _G, "build_info", "1", "version", "Always 1; the version of paceline that exports."),
        ("run", _G, "run_info", "1", "run mode task launcher transport", "Always 1; what the run is."),
        ("run", _G, "run_state", "0 or 1", "run state", "1 for the state that the run is in."),
        ("run", _G, "run_start_timestamp_seconds", "unix time", "run", "When the run began."),
        ("run", _G, "last_step_timestamp_seconds", "unix time", "run", "When a step was last finished."),
        ("run", _G, "last_sample_timestamp_seconds", "unix time", "run", "When the run's collector last wrote."),
        ("run", _G, "global_step", "steps", "run", "Steps of the run that are done."),
        ("run", _G, "planned_steps", "steps", "run", "Steps that the run will have."),
        ("training", _G, "train_loss", "loss", "run", "Training loss, smoothed over about fifty steps."),
        ("training", _G, "learning_rate", "rate", "run", "Learning rate of the next step, if --lr or --optimizer is set."),
        ("training", _G, "gradient_norm", "norm", "run worker", "Norm of a worker's gradient: maximum of the newest sampled second."),
        ("training", _C, "nonfinite_gradients_total", "steps", "run worker", "Sampled gradients whose norm was not finite."),
        ("training", _G, "eval_metric", "as named", "run name", "Metrics of the newest evaluation."),
        ("training", _C, "nonfinite_losses_total", "steps", "run", "Steps whose loss was not finite."),
        ("training", _C, "steps_skipped_total", "steps", "run", "Steps skipped because their gradient was not finite."),
        ("training", _C, "steps_total", "steps", "run worker", "Steps that a worker finished."),
        ("training", _C, "samples_total", "samples", "run worker", "Samples that a worker trained on."),
        ("training", _C, "tokens_total", "tokens", "run worker", "Tokens that a worker trained on, where the task has tokens."),
        ("training", _G, "throughput_samples_per_second", "samples/s", "run", "Throughput of all workers, over ten seconds."),
        ("training", _C, "step_phase_seconds_total", "s", "run worker phase", "Time spent in each phase of a step."),
        ("training", _H, "step_duration_seconds", "s", "run worker", "Duration of a step, including waiting."),
        ("training", _G, "custom", "as named", "run worker name", "Value that a task reported with paceline.metric."),
        ("strategy", _G, "worker_step", "steps", "run worker", "A worker's own clock."),
        ("strategy", _G, "worker_lag_steps", "steps", "run worker", "Steps behind the fastest worker."),
        ("strategy", _H, "gradient_staleness_steps", "updates", "run worker", "Updates between reading and applying."),
        ("strategy", _G, "staleness_p95_steps", "updates", "run", "95th percentile of the staleness of the newest gradients."),
        ("strategy", _G, "staleness_max_gap_steps", "steps", "run", "Maximum lead in steps of an applied gradient."),
        ("strategy", _G, "staleness_bound_steps", "steps", "run", "The bound of ssp and dssp, with its range."),
        ("strategy", _C, "gradients_dropped_total", "gradients", "run reason", "Gradients computed but not applied: discard, abandon, lost."),
        ("strategy", _G, "wait_ratio", "share", "run", "Share of step time spent waiting, over a minute."),
        ("strategy", _G, "communication_ratio", "share", "run", "Share of step time spent communicating, over a minute."),
        ("workers", _G, "workers", "workers", "run state", "Workers in each state."),
        ("workers", _G, "workers_desired", "workers", "run", "Desired number of workers."),
        ("workers", _G, "workers_required", "workers", "run", "Minimum number of workers; below it the run pauses."),
        ("workers", _G, "workers_alive", "workers", "run", "Workers alive: starting, training, slow, paused."),
        ("workers", _G, "worker_up", "0 or 1", "run worker", "0 while a worker is lost and not yet replaced."),
        ("workers", _G, "worker_info", "1", "run worker node", "Always 1; the machine that a worker is on."),
        ("workers", _G, "worker_last_seen_timestamp_seconds", "unix time", "run worker", "Time of the worker's last event."),
        ("workers", _G, "worker_relative_speed_ratio", "ratio", "run worker", "Compute time of the median worker divided by this worker's."),
        ("workers", _C, "worker_restarts_total", "starts", "run worker", "Restarts of the worker."),
        ("workers", _C, "restarts_total", "starts", "run cause", "Restarts of all workers, by the cause of the previous exit: killed, failed, resumed, other."),
        ("workers", _C, "lost_steps_total", "steps", "run", "Steps lost in rollbacks (with a parameter server: updates)."),
        ("workers", _G, "generation", "number", "run", "The generation of an elastic run."),
        ("workers", _C, "generation_changes_total", "changes", "run cause", "Generations after the first: lost, left, joined, resumed, other."),
        ("workers", _H, "recovery_duration_seconds", "s", "run", "Time from the last step before a loss to the first step after it."),
        ("workers", _G, "recovery_last_seconds", "s", "run", "Duration of the newest recovery."),
        ("workers", _G, "recovery_p95_seconds", "s", "run", "95th percentile of the recoveries of the last hour."),
        ("workers", _C, "faults_injected_total", "faults", "run kind", "Injected faults."),
        ("checkpoint", _G, "checkpoint_expected", "0 or 1", "run", "1 if the run writes checkpoints during training."),
        ("checkpoint", _G, "checkpoint_last_success_timestamp_seconds", "unix time", "run", "Time of the newest checkpoint."),
        ("checkpoint", _G, "checkpoint_size_bytes", "B", "run", "Size of the newest checkpoint."),
        ("checkpoint", _C, "checkpoints_total", "snapshots", "run", "Snapshots written."),
        ("checkpoint", _C, "checkpoint_failures_total", "snapshots", "run", "Snapshots that could not be written."),
        ("checkpoint", _H, "checkpoint_duration_seconds", "s", "run stage", "Duration of one snapshot by stage: copy (blocks training) and write (asynchronous)."),
        ("checkpoint", _C, "checkpoint_write_seconds_total", "s", "run", "Time spent hashing and writing, asynchronously to training."),
        ("checkpoint", _C, "checkpoint_pause_seconds_total", "s", "run", "Time that steps waited for snapshot copies."),
        ("coordinator", _G, "coordinator_has_leader", "0 or 1", "run", "1 while there is a leader."),
        ("coordinator", _G, "coordinator_is_leader", "0 or 1", "run node", "1 for the leader."),
        ("coordinator", _G, "coordinator_term", "number", "run", "The highest term seen."),
        ("coordinator", _C, "coordinator_leader_changes_total", "changes", "run", "Leader changes."),
        ("coordinator", _G, "coordinator_voters", "nodes", "run", "Voting nodes."),
        ("coordinator", _G, "coordinator_voters_missing", "nodes", "run", "Voters that do not respond."),
        ("coordinator", _G, "coordinator_spare_voters", "nodes", "run", "Voters that may fail before quorum is lost; below 0: no quorum."),
        ("coordinator", _G, "coordinator_commit_index", "entries", "run node", "Commit index of the log."),
        ("coordinator", _G, "coordinator_applied_index", "entries", "run node", "Applied index of a node."),
        ("coordinator", _G, "coordinator_round_trip_seconds", "s", "run node", "Response time of a node."),
        ("coordinator", _H, "coordinator_commit_duration_seconds", "s", "run node", "From a command's arrival at the leader until it was applied."),
        ("coordinator", _G, "coordinator_commit_p99_seconds", "s", "run node", "99th percentile of commit durations over five minutes."),
        ("coordinator", _H, "coordinator_fsync_duration_seconds", "s", "run node", "Duration of a log write, including fsync."),
        ("coordinator", _H, "coordinator_peer_round_trip_seconds", "s", "run node peer", "Time from sending entries to the peer's acknowledgement, including its fsync."),
        ("coordinator", _C, "coordinator_elections_total", "elections", "run node", "Elections in which the node was a candidate, since its start."),
        ("coordinator", _C, "coordinator_proposals_failed_total", "commands", "run node", "Proposals that were rejected for lack of space, or whose outcome is unknown."),
        ("network", _H, "collective_duration_seconds", "s", "run op", "Duration of a step's communication: all_reduce, push_pull or exchange."),
        ("network", _C, "network_transmit_bytes_total", "B", "run worker", "Bytes that a worker's steps sent."),
        ("network", _C, "network_receive_bytes_total", "B", "run worker", "Bytes that a worker's steps received."),
        ("network", _G, "worker_bandwidth_bytes_per_second", "B/s", "run worker", "Bytes sent and received, divided by the time in comm."),
        ("network", _G, "worker_round_trip_seconds", "s", "run worker", "Median round-trip time of its active TCP connections, from the kernel."),
        ("network", _G, "worker_round_trip_slowest_seconds", "s", "run worker", "Maximum round-trip time of its active TCP connections."),
        ("network", _C, "worker_tcp_segments_total", "segments", "run worker", "TCP segments that the worker sent."),
        ("network", _C, "worker_tcp_retransmitted_total", "segments", "run worker", "TCP segments that the worker retransmitted."),
        ("network", _C, "host_tcp_segments_total", "segments", "run node", "TCP segments that the host sent."),
        ("network", _C, "host_tcp_retransmitted_total", "segments", "run node", "TCP segments that the host retransmitted."),
        ("host", _G, "host_cpu_usage_ratio", "share", "run node", "CPU utilization of all cores."),
        ("host", _G, "host_memory_used_bytes", "B", "run node", "Memory in use."),
        ("host", _G, "host_memory_size_bytes", "B", "run node", "Memory size."),
        ("host", _G, "host_filesystem_available_bytes", "B", "run node", "Free space in the file system of the run folder."),
        ("host", _G, "host_filesystem_size_bytes", "B", "run node", "Size of the file system of the run folder."),
        ("host", _C, "host_network_receive_bytes_total", "B", "run node", "All interfaces but the loopback."),
        ("host", _C, "host_network_transmit_bytes_total", "B", "run node", "All interfaces but the loopback."),
        ("host", _C, "host_disk_read_bytes_total", "B", "run node", "Read from disks."),
        ("host", _C, "host_disk_written_bytes_total", "B", "run node", "Written to disks."),
        ("host", _G, "worker_resident_memory_bytes", "B", "run worker", "Memory of the worker's process."),
        ("host", _G, "worker_cpu_usage_ratio", "cores", "run worker", "CPU utilization of the worker's process, 1 = one core."),
        ("gpu", _G, "gpu_utilization_ratio", "share", "run node gpu", "Share of time in which a kernel was running."),
        ("gpu", _G, "gpu_memory_used_bytes", "B", "run node gpu", "Memory of the GPU in use."),
        ("gpu", _G, "gpu_memory_size_bytes", "B", "run node gpu", "Memory of the GPU."),
        ("gpu", _G, "gpu_temperature_celsius", "°C", "run node gpu", "Temperature of the GPU core."),
        ("gpu", _C, "gpu_energy_joules_total", "J", "run node gpu", "Energy used; its rate is the power."),
        ("gpu", _G, "gpu_power_limit_watts", "W", "run node gpu", "Power limit."),
        ("gpu", _C, "gpu_clock_throttle_seconds_total", "s", "run node gpu", "Throttled by power or temperature."),
        ("gpu", _C, "gpu_uncorrected_errors_total", "errors", "run node gpu", "ECC errors that were not corrected."),
        ("self", _G, "health_score_ratio", "share", "run", "The health score, from 0 to 1."),
        ("self", _G, "health_component_ratio", "share", "run component", "The score of one component."),
        ("self", _G, "alerts_firing", "alerts", "run severity", "Firing alerts."),
        ("self", _G, "scrape_collect_duration_seconds", "s", "run", "Duration of this scrape."),
        ("self", _C, "notifications_total", "messages", "run notifier outcome", "Notifications by outcome: sent, failed or limited."),
    )
)  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}


Labels = tuple[tuple[str, str], ...]  # sorted by name


class Sample(NamedTuple):
    name: str
    labels: Labels
    value: float


def labels_of(named: Mapping[str, object]) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in named.items()))

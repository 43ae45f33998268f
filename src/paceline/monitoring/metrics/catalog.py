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
        ("training", _G, "learning_rate", "rate", "run", "Of the next step; known where --lr or --optimizer says it."),
        ("training", _G, "gradient_norm", "norm", "run worker", "Of a worker's gradient: the largest of the newest second looked at."),
        ("training", _C, "nonfinite_gradients_total", "steps", "run worker", "Looks at a gradient whose norm was no number."),
        ("training", _G, "eval_metric", "as named", "run name", "What the newest evaluation found."),
        ("training", _C, "nonfinite_losses_total", "steps", "run", "Steps whose loss was no number."),
        ("training", _C, "steps_skipped_total", "steps", "run", "Steps left out, as their gradient was not finite."),
        ("training", _C, "steps_total", "steps", "run worker", "Steps that a worker finished."),
        ("training", _C, "samples_total", "samples", "run worker", "Samples that a worker trained on."),
        ("training", _C, "tokens_total", "tokens", "run worker", "Tokens that a worker trained on, where the task has tokens."),
        ("training", _G, "throughput_samples_per_second", "samples/s", "run", "Of all workers, over ten seconds."),
        ("training", _C, "step_phase_seconds_total", "s", "run worker phase", "Time spent in each phase of a step."),
        ("training", _H, "step_duration_seconds", "s", "run worker", "How long a step took, with waiting."),
        ("training", _G, "custom", "as named", "run worker name", "What a task told by paceline.metric."),
        ("strategy", _G, "worker_step", "steps", "run worker", "A worker's own clock."),
        ("strategy", _G, "worker_lag_steps", "steps", "run worker", "Steps behind the foremost worker."),
        ("strategy", _H, "gradient_staleness_steps", "updates", "run worker", "Updates between reading and applying."),
        ("strategy", _G, "staleness_p95_steps", "updates", "run", "95 % of the newest gradients were no staler."),
        ("strategy", _G, "staleness_max_gap_steps", "steps", "run", "Most steps that an applied gradient was ahead."),
        ("strategy", _G, "staleness_bound_steps", "steps", "run", "The bound of ssp and dssp, with its range."),
        ("strategy", _C, "gradients_dropped_total", "gradients", "run reason", "Computed in vain: discard, abandon, lost."),
        ("strategy", _G, "wait_ratio", "share", "run", "Share of step time spent waiting, over a minute."),
        ("strategy", _G, "communication_ratio", "share", "run", "Share of step time spent moving, over a minute."),
        ("workers", _G, "workers", "workers", "run state", "Workers in each state."),
        ("workers", _G, "workers_desired", "workers", "run", "Workers that the run wants."),
        ("workers", _G, "workers_required", "workers", "run", "Workers without which it does not go on."),
        ("workers", _G, "workers_alive", "workers", "run", "Workers that live: starting, training, slow, paused."),
        ("workers", _G, "worker_up", "0 or 1", "run worker", "0 while a worker is lost and not yet replaced."),
        ("workers", _G, "worker_info", "1", "run worker node", "Always 1; the machine that a worker is on."),
        ("workers", _G, "worker_last_seen_timestamp_seconds", "unix time", "run worker", "When it was last heard of."),
        ("workers", _G, "worker_relative_speed_ratio", "ratio", "run worker", "Median worker's own time over this one's."),
        ("workers", _C, "worker_restarts_total", "starts", "run worker", "How often it was started again."),
        ("workers", _C, "restarts_total", "starts", "run cause", "Of all workers, by how the one before ended: killed, failed, resumed, other."),
        ("workers", _C, "lost_steps_total", "steps", "run", "Made and then in vain, as the run went back (behind a server: updates)."),
        ("workers", _G, "generation", "number", "run", "The generation of an elastic run."),
        ("workers", _C, "generation_changes_total", "changes", "run cause", "Generations after the first: lost, left, joined, resumed, other."),
        ("workers", _H, "recovery_duration_seconds", "s", "run", "From the last step before a loss to the first after."),
        ("workers", _G, "recovery_last_seconds", "s", "run", "The newest of these."),
        ("workers", _G, "recovery_p95_seconds", "s", "run", "95 % of those of the last hour were no longer."),
        ("workers", _C, "faults_injected_total", "faults", "run kind", "What was broken on purpose."),
        ("checkpoint", _G, "checkpoint_expected", "0 or 1", "run", "1 where the run saves on its way."),
        ("checkpoint", _G, "checkpoint_last_success_timestamp_seconds", "unix time", "run", "When one was last written."),
        ("checkpoint", _G, "checkpoint_size_bytes", "B", "run", "Size of the newest."),
        ("checkpoint", _C, "checkpoints_total", "snapshots", "run", "Snapshots written."),
        ("checkpoint", _C, "checkpoint_failures_total", "snapshots", "run", "Snapshots that could not be written."),
        ("checkpoint", _H, "checkpoint_duration_seconds", "s", "run stage", "Of one snapshot: copy, which steps wait for, and write, beside the training."),
        ("checkpoint", _C, "checkpoint_write_seconds_total", "s", "run", "Hashing and writing, beside the training."),
        ("checkpoint", _C, "checkpoint_pause_seconds_total", "s", "run", "How long steps waited for copies."),
        ("coordinator", _G, "coordinator_has_leader", "0 or 1", "run", "1 while some node leads."),
        ("coordinator", _G, "coordinator_is_leader", "0 or 1", "run node", "1 for the node that leads."),
        ("coordinator", _G, "coordinator_term", "number", "run", "The highest term seen."),
        ("coordinator", _C, "coordinator_leader_changes_total", "changes", "run", "Times the lead changed."),
        ("coordinator", _G, "coordinator_voters", "nodes", "run", "Nodes that vote."),
        ("coordinator", _G, "coordinator_voters_missing", "nodes", "run", "Voters that do not answer."),
        ("coordinator", _G, "coordinator_spare_voters", "nodes", "run", "Voters that may still be lost; below 0: no quorum."),
        ("coordinator", _G, "coordinator_commit_index", "entries", "run node", "How far the log is agreed on."),
        ("coordinator", _G, "coordinator_applied_index", "entries", "run node", "How far a node has carried it out."),
        ("coordinator", _G, "coordinator_round_trip_seconds", "s", "run node", "How long a node took to answer."),
        ("coordinator", _H, "coordinator_commit_duration_seconds", "s", "run node", "From a command's arrival at the leader until it was applied."),
        ("coordinator", _G, "coordinator_commit_p99_seconds", "s", "run node", "99 % of those of five minutes were no longer."),
        ("coordinator", _H, "coordinator_fsync_duration_seconds", "s", "run node", "Of a write to the log, until it was on disk."),
        ("coordinator", _H, "coordinator_peer_round_trip_seconds", "s", "run node peer", "From sending entries until the peer said it has them, with its fsync."),
        ("coordinator", _C, "coordinator_elections_total", "elections", "run node", "That a node stood in, since it started."),
        ("coordinator", _C, "coordinator_proposals_failed_total", "commands", "run node", "Whose outcome a node could not tell, or which it had no room for."),
        ("network", _H, "collective_duration_seconds", "s", "run op", "Of a step's moving and reducing: all_reduce, push_pull or exchange."),
        ("network", _C, "network_transmit_bytes_total", "B", "run worker", "Bytes that a worker's steps sent."),
        ("network", _C, "network_receive_bytes_total", "B", "run worker", "Bytes that a worker's steps received."),
        ("network", _G, "worker_bandwidth_bytes_per_second", "B/s", "run worker", "Bytes both ways over time in comm."),
        ("network", _G, "worker_round_trip_seconds", "s", "run worker", "By its kernel: the median of its TCP connections in use."),
        ("network", _G, "worker_round_trip_slowest_seconds", "s", "run worker", "The longest of these."),
        ("network", _C, "worker_tcp_segments_total", "segments", "run worker", "TCP segments that the worker sent."),
        ("network", _C, "worker_tcp_retransmitted_total", "segments", "run worker", "Of these, sent again: what was lost, or late."),
        ("network", _C, "host_tcp_segments_total", "segments", "run node", "TCP segments that the host sent."),
        ("network", _C, "host_tcp_retransmitted_total", "segments", "run node", "Of these, sent again."),
        ("host", _G, "host_cpu_usage_ratio", "share", "run node", "Of all cores."),
        ("host", _G, "host_memory_used_bytes", "B", "run node", "Memory that is in use."),
        ("host", _G, "host_memory_size_bytes", "B", "run node", "Memory that there is."),
        ("host", _G, "host_filesystem_available_bytes", "B", "run node", "Free where the run's folder is."),
        ("host", _G, "host_filesystem_size_bytes", "B", "run node", "Size of that file system."),
        ("host", _C, "host_network_receive_bytes_total", "B", "run node", "All interfaces but the loopback."),
        ("host", _C, "host_network_transmit_bytes_total", "B", "run node", "All interfaces but the loopback."),
        ("host", _C, "host_disk_read_bytes_total", "B", "run node", "Read from disks."),
        ("host", _C, "host_disk_written_bytes_total", "B", "run node", "Written to disks."),
        ("host", _G, "worker_resident_memory_bytes", "B", "run worker", "Of the worker's process."),
        ("host", _G, "worker_cpu_usage_ratio", "cores", "run worker", "Of one core."),
        ("gpu", _G, "gpu_utilization_ratio", "share", "run node gpu", "Time in which some kernel ran."),
        ("gpu", _G, "gpu_memory_used_bytes", "B", "run node gpu", "Memory of the GPU in use."),
        ("gpu", _G, "gpu_memory_size_bytes", "B", "run node gpu", "Memory of the GPU."),
        ("gpu", _G, "gpu_temperature_celsius", "°C", "run node gpu", "Of its core."),
        ("gpu", _C, "gpu_energy_joules_total", "J", "run node gpu", "Power is its rate."),
        ("gpu", _G, "gpu_power_limit_watts", "W", "run node gpu", "What it may draw."),
        ("gpu", _C, "gpu_clock_throttle_seconds_total", "s", "run node gpu", "Held down by power or heat."),
        ("gpu", _C, "gpu_uncorrected_errors_total", "errors", "run node gpu", "ECC errors that were not corrected."),
        ("self", _G, "health_score_ratio", "share", "run", "The health score, from 0 to 1."),
        ("self", _G, "health_component_ratio", "share", "run component", "The score of one component."),
        ("self", _G, "alerts_firing", "alerts", "run severity", "Alerts that fire."),
        ("self", _G, "scrape_collect_duration_seconds", "s", "run", "How long this page of metrics took to make."),
        ("self", _C, "notifications_total", "messages", "run notifier outcome", "Told: sent, failed or limited."),
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

"""Schema of the event log: kinds of events, their fields, and the rows of frequent ones.

Line 1 of `events.jsonl` is the header. Each further line is one object with
`kind`, `who` (worker-0, server-0, launcher) and either plain fields or, for
the frequent kinds, `rows` and `columns`: lists with one entry per step, or one
value where all entries are the same. Times are nanoseconds of one monotonic
clock per host; `t0_ns` in the header is the origin. A field is only ever added;
a change of meaning makes a new schema.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias

# Samples. None: the machine cannot measure it. Totals only ever grow; a rate needs two rows. Readers of the
# training itself skip them; `paceline.monitoring` reads them.


class HostRow(NamedTuple):
    """A machine at one moment (kind `hosts`).

    The launcher writes one for its machine each second (`who` is watch), which also paces alerts. On each
    other machine one worker writes them, less often (`who` is watch@NODE).
    """

    at_ns: int
    node: str  # the host's name
    cpu_share: float | None  # share of all cores since the previous row
    load: float | None  # mean number of runnable processes over a minute
    memory_used_bytes: int | None
    memory_size_bytes: int | None
    disk_free_bytes: int | None  # on the disk of the run's folder
    disk_size_bytes: int | None
    disk_read_bytes: int | None  # total
    disk_written_bytes: int | None  # total
    net_in_bytes: int | None  # total, of all interfaces but the loopback
    net_out_bytes: int | None  # total
    loopback_bytes: int | None  # total; processes of one host talk this way
    tcp_sent: int | None  # total of segments
    tcp_retransmitted: int | None  # total of segments that had to be sent again


class ProcessRow(NamedTuple):
    """A participant's process at one moment (kind `processes`)."""

    at_ns: int
    worker: str
    pid: int
    memory_bytes: int  # resident
    cpu_share: float  # share of one core since the previous row
    is_stopped: bool  # by SIGSTOP or the like


class LinkRow(NamedTuple):
    """A worker's TCP connections at one moment, by what its kernel measured (kind `links`)."""

    at_ns: int
    node: str  # node of the worker
    connections: int  # connections with traffic since the previous row
    round_trip_s: float  # the kernel's smoothed one: the median of these connections
    slowest_s: float  # slowest of these connections
    sent: int  # total of segments
    sent_again: int  # total of segments that had to be sent again


class GpuRow(NamedTuple):
    """A GPU at one moment (kind `gpus`)."""

    at_ns: int
    node: str
    gpu: int
    uuid: str
    name: str
    utilization: float | None
    memory_used_bytes: int | None
    memory_size_bytes: int | None
    temperature_c: float | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None  # total
    is_throttled: bool | None  # its clock is held down by power or heat
    uncorrected_errors: int | None  # total


class CustomRow(NamedTuple):
    """A value that a task recorded with `paceline.metric` (kind `custom`)."""

    at_ns: int
    step: int  # the worker's own count
    name: str
    value: float


class CoordinatorRow(NamedTuple):
    """A node of the run's coordinator at one moment, as reported by itself (kind `coordinators`)."""

    at_ns: int
    address: str
    node: int | None  # None: it does not answer
    role: str
    is_voter: bool
    leader: int | None
    term: int | None
    commit: int | None
    applied: int | None
    lag: int | None  # entries that it lacks, as reported by the leader
    is_connected: bool | None  # connection to the leader, as reported by the leader
    round_trip_s: float | None  # of the status request
    # Since the node started, counted by length (events/schema.py): while it led, from a command's arrival
    # until it was applied; writes to its log until they were on disk; and, for each other node after its
    # number and =, from sending it entries until it acknowledged them.
    commits: str | None = None
    fsyncs: str | None = None
    round_trips: str | None = None
    elections: int | None = None  # in which it was a candidate, since it started
    proposals_failed: int | None = None  # with unknown outcome, or rejected because the queue was full


SAMPLE_KINDS: dict[str, tuple[str, ...]] = {
    "hosts": HostRow._fields,
    "processes": ProcessRow._fields,
    "gpus": GpuRow._fields,
    "links": LinkRow._fields,
    "custom": CustomRow._fields,
    "coordinators": CoordinatorRow._fields,
}


SCHEMA = "paceline.events/1"
Scalar: TypeAlias = bool | int | float | str | None

# Reasons for the end of a participant. Launcher and servers write them to events and the coordinator,
# and monitoring classifies losses by them, so both use these texts.
KILLED = "killed by signal"
EXITED = "it ended with exit code"
FAILED = "it failed"


def exit_reason(code: int) -> str:
    """Why a participant's process ended; a negative `code` is a signal's number."""
    return f"{KILLED} {-code}" if code < 0 else f"{EXITED} {code}"


EARLY_STOP = "early stop"  # how the reason of a run begins that ended because it got no better

PHASES = ("data", "forward", "backward", "delay", "wait", "codec", "comm", "apply")


class StepRow(NamedTuple):
    """One finished step of one worker (kind `steps`). Durations in nanoseconds."""

    step: int  # the worker's own count, from 0
    position: int  # the share of the run's work that was done
    start_ns: int
    data_ns: int
    forward_ns: int
    backward_ns: int
    delay_ns: int  # injected slowness
    wait_ns: int  # for other workers or for the server's permission
    codec_ns: int  # compressing and decompressing
    comm_ns: int  # moving and reducing
    apply_ns: int
    loss: float
    samples: int
    bytes_out: int
    bytes_in: int
    # Of the parameters the gradient was computed on (stores); the round (fedavg); exchanges before (peers).
    version: int
    synced: bool  # all replicas hold the same bits after this step
    bytes_saved: int = 0  # that would have been sent in addition without compression; may be negative
    peer: int | None = None  # rank that this worker then averaged with (peers only)
    exchange: int | None = None  # the number of that exchange in the order of all, from 1 (peers only)
    grad_norm: float | None = None  # norm before clipping, if this worker computed it
    # Norm of the gradient that this worker computed, at every `gradient_norm_every`-th of its steps.
    own_norm: float | None = None


class AbandonedRow(NamedTuple):
    """A step that a worker abandoned, because the others had continued without it (kind `abandoned`)."""

    step: int  # the worker's own count; the next attempt has the same number
    position: int  # the share of the run's work that was assigned again
    start_ns: int
    lasted_ns: int  # from the start until the worker requested new parameters
    wait_ns: int  # part of it spent waiting for the server's response
    bytes_in: int
    version: int  # version of the parameters that were read for the abandoned step


class ServerRow(NamedTuple):
    """One act of a parameter server (kind `server`), in the order in which it happened."""

    # "read": this worker received `version` (easgd: its own parameters, after its exchange with the centre);
    # "push": its gradient arrived while `version` was current;
    # "apply": its gradient, perhaps held until then, made `version`; "discard": it was too stale;
    # "abandon": `version` was made without the gradient that it computes, and its share is assigned again;
    # "lost": its worker was lost before its gradient was applied, and its share is assigned again
    op: str
    at_ns: int
    rank: int
    step: int  # the worker's own count of the step that this read is for, or that made the gradient
    position: int  # the share of the run's work assigned or applied (easgd: the first of a block)
    version: int
    read_version: int  # the version the gradient was computed on ("read": equal to version)
    staleness: int  # updates applied between reading and this one
    gap: int  # steps ahead of the slowest active worker
    age_ns: int  # wall-clock time since the parameters were read
    rate_factor: float  # factor of the learning rate for this update


COLUMN_KINDS: dict[str, tuple[str, ...]] = {
    "steps": StepRow._fields,
    "server": ServerRow._fields,
    "abandoned": AbandonedRow._fields,
    **SAMPLE_KINDS,
}

# kind -> what it means; docs/reference/events.md is made from this.
PLAIN_KINDS: dict[str, str] = {
    "run_started": "the launcher starts; fields: plan (hash), launcher, unix_s (wall clock), pid (of the "
    "command that started it)",
    "run_resumed": "a stopped or lost run resumes; fields: version, clocks (steps kept, by rank)",
    "worker_started": "a participant is ready to step; fields: pid, clock (steps or updates done), node (of "
    "workers: the host name), tokens_per_sample (where the task has tokens)",
    "worker_finished": "a participant ended in order; fields: steps, reason (done, stopped, left), "
    "on a GPU also peak_device_bytes (the most that was allocated there), with gloo also wire_out_bytes and "
    "wire_in_bytes (of its connections, as the kernel has counted them)",
    "worker_lost": "a process ended without finishing; fields: cause",
    "stop_requested": "a stop of the run was requested; fields: by",
    "checkpoint": "a participant's snapshot is on disk, synced; fields: path, step, snapshot_ns (how long "
    "the step waited for its copy), write_s (hashing and writing, asynchronous to training), bytes, "
    "catalogued (whether the coordinator has recorded it; null without one)",
    "checkpoint_failed": "a snapshot could not be written, and training continues; fields: path, step, "
    "reason",
    "checkpoint_skipped": "no snapshot was taken, because earlier ones were still being written; fields: "
    "path, step",
    "evaluated": "the model was evaluated on the validation data, while training waited; fields: step (of "
    "the run, done by then), samples (trained by then), seconds (of training so far, without evaluations), "
    "took_s, "
    "metrics (a JSON object)",
    "early_stop": "the validation metric did not improve, and all workers stop; fields: step, best_step, "
    "reason",
    "adapted": "mode adaptive redistributes the work; fields: step (of the run, done by then), "
    "from and to (ssgd, batch, local-steps), shares (samples of a step, or local steps of a round, "
    "by worker; in elastic runs shards), reason (text with its numbers); in elastic runs also workers "
    "(by rank) and generation",
    "generation_entered": "a worker of an elastic run enters a generation; fields: number, rank, workers (by "
    "rank), committed (steps of the run by then; fedavg: rounds), healed_from (whose memory the state came "
    "from), healed_bytes, state (CRC-32 of all parameters and buffers), why, way (mode adaptive: the "
    "initial policy)",
    "generation_lost": "a generation ended before the run did; fields: number, committed (steps that this "
    "worker's replica has), why",
    "server_started": "the first primary server, or one after both were lost; fields: pid, part, epoch, "
    "version, role",
    "server_promoted": "a backup took over; fields: pid, part, epoch, version (updates it has), instead_of",
    "server_restored": "no server was left, and a primary starts from a checkpoint or from step 0: later "
    "updates are rolled back; fields: part, version, pid",
    "backup_placed": "a backup has the primary's state, and updates wait for its acknowledgement from now "
    "on; fields: part, "
    "backup, epoch",
    "push_refused": "a worker's push was rejected, because its work unit had been reassigned; fields: "
    "position, version",
    "error_memory_reset": "an error memory of compression is empty again in an elastic run; fields: why",
    "supervision": "a decision about the workers of an elastic run, or a change of its coordinator's state; "
    "fields: decision (text with the reason)",
    "slow_worker": "a worker of an elastic run has become slow, or has recovered; fields: worker, is_slow, "
    "score (times as long as its peers), shard_ms, peers_ms, best_ms (its own), step, reason",
    "shards_dealt": "the shards are assigned by speed from the next step on; fields: step, counts and "
    "workers (by rank), reason",
    "action": "a request of an operator, and its progress; fields: id, action (pause, "
    "resume, slow, kill, partition, heal, checkpoint, stop), target, phase (requested, accepted, applied, "
    "effect_seen, refused, failed), note, by, source (ui, cli, api), for_s (pause, slow, "
    "partition), factor (slow)",
    "step_skipped": "the mean gradient of a step was not finite, and all workers skipped its update; "
    "fields: step "
    "(of the run), shards (whose gradient it was)",
    "alert_silenced": "alert notifications are silenced for a while; fields: rule and worker (empty: "
    "any), until_ns, by, comment",
    "notified": "a notification about alerts was sent or failed; fields: notifier, outcome (sent, "
    "failed, limited), alerts (how many)",
    "fault_injected": "a fault was injected; fields: fault, target (the process or node), by, "
    "until_ns (null: until it is ended)",
    "record_interrupted": "a process could not write events for a while, and has written them since; fields: "
    "reason, fragments (truncated lines; each is repeated in full later), dropped (missing lines, for which "
    "memory had no room)",
    "run_finished": "the launcher ends; fields: outcome (finished, stopped, failed)",
}


# Frequent measurements (several thousand a second on a coordinator node) are counted in buckets, and the
# counts are logged once a second. A log line holds them as one string, without the empty buckets:
# `0.52/3:10,7:2` is twelve durations of 0.52 s together, ten of them in bucket 3.

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True)
class Timings:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))  # the last: still longer
    total_s: float = 0.0

    def add(self, took_s: float, times: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_S, took_s)] += times
        self.total_s += took_s * times

    @classmethod
    def of(cls, counts: Sequence[int], total_s: float) -> Self | None:
        """None for other bounds, or without counts."""
        return cls(list(counts), total_s) if len(counts) == len(BOUNDS_S) + 1 else None

    @property
    def count(self) -> int:
        return sum(self.counts)

    def word(self) -> str:
        filled = ",".join(f"{place}:{count}" for place, count in enumerate(self.counts) if count)
        return f"{self.total_s:.6g}/{filled}"

    @classmethod
    def read(cls, word: str) -> Self:
        total, _, filled = word.partition("/")
        timings = cls(total_s=float(total))
        for part in filled.split(",") if filled else ():
            place, _, count = part.partition(":")
            timings.counts[int(place)] = int(count)
        return timings

    def since(self, before: "Timings") -> "Timings":
        """The counts added since then; all of them if counting restarted."""
        differences = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        if min(differences) < 0:
            return self
        return Timings(differences, self.total_s - before.total_s)

    def quantile(self, share: float) -> float | None:
        """Estimated by linear interpolation in the bucket, as Prometheus does; None without counts."""
        rank = share * self.count
        so_far = 0
        if not self.count:
            return None
        for place, count in enumerate(self.counts[:-1]):
            if count and so_far + count >= rank:
                below = BOUNDS_S[place - 1] if place else 0.0
                return below + (BOUNDS_S[place] - below) * (rank - so_far) / count
            so_far += count
        return BOUNDS_S[-1]

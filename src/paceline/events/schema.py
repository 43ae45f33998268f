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

# None stands for what this machine cannot say. Totals only ever grow; whoever wants
# a rate looks at two rows. Readers of what was trained pass them by; `paceline.watch`
# reads them.


class HostRow(NamedTuple):
    """A machine at one moment (kind `hosts`).

    The launcher writes one of its own each second (`who` is watch), which paces alerts too. On each other
    machine one worker does, less often (`who` is watch@NODE).
    """

    at_ns: int
    node: str  # the host's name
    cpu_share: float | None  # of all cores, since the row before
    load: float | None  # mean number of runnable processes over a minute
    memory_used_bytes: int | None
    memory_size_bytes: int | None
    disk_free_bytes: int | None  # where the run's folder is
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
    cpu_share: float  # of one core, since the row before
    is_stopped: bool  # by SIGSTOP or the like


class LinkRow(NamedTuple):
    """A worker's TCP connections at one moment, by what its kernel measured (kind `links`)."""

    at_ns: int
    node: str  # where the worker is
    connections: int  # by which something was sent since the row before
    round_trip_s: float  # the kernel's smoothed one: the median of these connections
    slowest_s: float  # of these connections
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
    """What a task told by `paceline.metric` (kind `custom`)."""

    at_ns: int
    step: int  # the worker's own count
    name: str
    value: float


class CoordinatorRow(NamedTuple):
    """A node of the run's coordinator at one moment, by its own words (kind `coordinators`)."""

    at_ns: int
    address: str
    node: int | None  # None: it does not answer
    role: str
    is_voter: bool
    leader: int | None
    term: int | None
    commit: int | None
    applied: int | None
    lag: int | None  # entries that it lacks, says the leader
    is_connected: bool | None  # to the leader, says the leader
    round_trip_s: float | None  # of being asked
    # Since the node started, counted by length (events/schema.py): while it led, from a command's arrival
    # until it was applied; writes to its log until they were on disk; and, for each other node behind its
    # number and =, from sending it entries until it said that it has them.
    commits: str | None = None
    fsyncs: str | None = None
    round_trips: str | None = None
    elections: int | None = None  # that it stood in, since it started
    proposals_failed: int | None = None  # whose outcome it could not tell, or which it had no room for


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
    peer: int | None = None  # whom this worker then averaged with (peers only)
    exchange: int | None = None  # the number of that exchange in the order of all, from 1 (peers only)
    grad_norm: float | None = None  # of the gradient before clipping, where this worker computed it
    # Of the gradient that this worker computed, at every `gradient_norm_every`-th step of its own.
    own_norm: float | None = None


class AbandonedRow(NamedTuple):
    """A step that a worker gave up, because the others had gone on without it (kind `abandoned`)."""

    step: int  # the worker's own count; the next attempt has the same number
    position: int  # the share of the run's work that was handed out again
    start_ns: int
    lasted_ns: int  # from the start until the worker had noticed and asked for new parameters
    wait_ns: int  # of that, for the server's answer
    bytes_in: int
    version: int  # of the parameters that were read in vain


class ServerRow(NamedTuple):
    """One act of a parameter server (kind `server`), in the order in which it happened."""

    # "read": this worker was given `version` (easgd: its own parameters, after its exchange with the centre);
    # "push": its gradient arrived while `version` was current;
    # "apply": its gradient, perhaps held until then, made `version`; "discard": it was too stale;
    # "abandon": `version` was made without the gradient that it computes, and its share is handed out again;
    # "lost": its worker is gone before its gradient was applied, and its share is handed out again
    op: str
    at_ns: int
    rank: int
    step: int  # the worker's own count of the step that this read is for, or that made the gradient
    position: int  # the share of the run's work handed out, or applied (easgd: the first of a block)
    version: int
    read_version: int  # the version the gradient was computed on ("read": equal to version)
    staleness: int  # updates applied between reading and this one
    gap: int  # steps ahead of the slowest active worker
    age_ns: int  # wall-clock time since the parameters were read
    rate_factor: float  # what the learning rate was multiplied by for this update


COLUMN_KINDS: dict[str, tuple[str, ...]] = {
    "steps": StepRow._fields,
    "server": ServerRow._fields,
    "abandoned": AbandonedRow._fields,
    **SAMPLE_KINDS,
}

# kind -> what it means; docs/reference/events.md is made from this.
PLAIN_KINDS: dict[str, str] = {
    "run_started": "the launcher begins; fields: plan (hash), launcher, unix_s (by the calendar), pid (of "
    "the command that began it)",
    "run_resumed": "a stopped or lost run goes on; fields: version, clocks (steps kept, by rank)",
    "worker_started": "a participant is ready to step; fields: pid, clock (steps or updates behind it), node "
    "(of workers: the name of their machine), tokens_per_sample (where the task has tokens)",
    "worker_finished": "a participant ended orderly; fields: steps, reason (done, stopped, left), "
    "on a GPU also peak_device_bytes (the most that was allocated there)",
    "worker_lost": "a process ended without finishing; fields: cause",
    "stop_requested": "someone asked the run to stop; fields: by",
    "checkpoint": "a participant's snapshot is on disk, synced; fields: path, step, snapshot_ns (how long "
    "the step waited for its copy), write_s (hashing and writing, beside the training), bytes, catalogued "
    "(whether the coordinator has noted it; null without one)",
    "checkpoint_failed": "a snapshot could not be written, and training goes on; fields: path, step, reason",
    "checkpoint_skipped": "no snapshot was taken, because earlier ones were still being written; fields: "
    "path, step",
    "evaluated": "the validation data was looked at, and no step made meanwhile; fields: step (of the run, "
    "done by then), samples (seen by then), seconds (of training so far, without evaluations), took_s, "
    "metrics (a JSON object)",
    "early_stop": "the validation got no better, and all workers stop; fields: step, best_step, reason",
    "adapted": "mode adaptive shares out the work anew; fields: step (of the run, done by then), "
    "from and to (ssgd, batch, local-steps), shares (samples of a step, or local steps of a round, "
    "by worker; in elastic runs shards), reason (in words, with its numbers); in elastic runs also workers "
    "(by rank) and generation",
    "generation_entered": "a worker of an elastic run begins a generation; fields: number, rank, workers (by "
    "rank), committed (steps of the run by then; fedavg: rounds), healed_from (whose memory the state came "
    "from), healed_bytes, state (CRC-32 of all parameters and buffers), why, way (mode adaptive: what it "
    "begins with)",
    "generation_lost": "a generation ended before the run did; fields: number, committed (steps that this "
    "worker's replica has), why",
    "server_started": "the first primary server, or one after both were lost; fields: pid, part, epoch, "
    "version, role",
    "server_promoted": "a backup took over; fields: pid, part, epoch, version (updates it has), instead_of",
    "server_restored": "a primary begins with a checkpoint, or anew, as no server was left: what came after "
    "that version does not count; fields: part, version, pid",
    "backup_placed": "a backup has the primary's state, and is waited for from here on; fields: part, "
    "backup, epoch",
    "push_refused": "what a worker made of a share does not count, as it was given up meanwhile; fields: "
    "position, version",
    "supervision": "what was decided about the workers of an elastic run, or heard of its coordinator; "
    "fields: decision (in words, with the reason)",
    "slow_worker": "a worker of an elastic run has become slow, or has recovered; fields: worker, is_slow, "
    "score (times as long as its peers), shard_ms, peers_ms, best_ms (its own), step, reason",
    "shards_dealt": "the shards are dealt out by speed from the next step on; fields: step, counts and "
    "workers (by rank), reason",
    "action": "an operator asked something of the run, and how far it has come; fields: id, action (pause, "
    "resume, slow, kill, partition, heal, checkpoint, stop), target, phase (requested, accepted, applied, "
    "effect_seen, refused, failed), note, by, source (ui, cli, api), for_s (pause, slow, "
    "partition), factor (slow)",
    "step_skipped": "the mean gradient of a step was not finite, and no worker made its update; fields: step "
    "(of the run), shards (whose gradient it was)",
    "alert_silenced": "somebody does not want to hear of alerts for a while; fields: rule and worker (empty: "
    "any), until_ns, by, comment",
    "notified": "somebody was told about alerts, or should have been; fields: notifier, outcome (sent, "
    "failed, limited), alerts (how many)",
    "fault_injected": "somebody breaks something on purpose; fields: fault, target (whom it strikes), by, "
    "until_ns (null: it does not end by itself)",
    "record_interrupted": "a process could not write events for a while, and has written them since; fields: "
    "reason, fragments (lines that the disk cut short; each stands whole behind), dropped (lines that are "
    "missing, because memory had no room for them)",
    "run_finished": "the launcher ends; fields: outcome (finished, stopped, failed)",
}


# Whoever measures often (a coordinator's node, several thousand times a second) counts, and
# tells the counts once a second. In a line of the log they are one word, with the empty
# buckets left out: `0.52/3:10,7:2` is twelve durations of 0.52 s together, ten of them in
# bucket 3.

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
        """None where they were counted by other bounds, or not at all."""
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
        found = cls(total_s=float(total))
        for part in filled.split(",") if filled else ():
            place, _, count = part.partition(":")
            found.counts[int(place)] = int(count)
        return found

    def since(self, before: "Timings") -> "Timings":
        """What was added since then; all of it where counting began anew."""
        differs = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        if min(differs) < 0:
            return self
        return Timings(differs, self.total_s - before.total_s)

    def quantile(self, share: float) -> float | None:
        """About, with a straight line through the bucket, as Prometheus does; None of nothing."""
        rank, so_far = share * self.count, 0
        if not self.count:
            return None
        for place, count in enumerate(self.counts[:-1]):
            if count and so_far + count >= rank:
                below = BOUNDS_S[place - 1] if place else 0.0
                return below + (BOUNDS_S[place] - below) * (rank - so_far) / count
            so_far += count
        return BOUNDS_S[-1]

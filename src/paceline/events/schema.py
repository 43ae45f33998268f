"""Which events exist, and what is in each?

Line 1 of `events.jsonl` is the header. Each further line is one object with
`kind`, `who` (worker-0, server-0, launcher) and either plain fields or, for
the frequent kinds, `rows` and `columns`: lists with one entry per step, or one
value where all entries are the same. Times are nanoseconds of one monotonic
clock per host; `t0_ns` in the header is the origin. A field is only ever added;
a change of meaning makes a new schema.
"""

from typing import NamedTuple, TypeAlias

from paceline.events.sample_rows import SAMPLE_KINDS

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


class PartRow(NamedTuple):
    """One update of a part of the parameters that hands out no shares (kind `part`), in order."""

    at_ns: int
    part: int  # from 1; part 0 writes kind `server`
    rank: int  # whose gradient it was
    position: int  # the share of the run's work; a part applies each once
    version: int  # of this part, which the update made


COLUMN_KINDS: dict[str, tuple[str, ...]] = {
    "steps": StepRow._fields,
    "server": ServerRow._fields,
    "abandoned": AbandonedRow._fields,
    "part": PartRow._fields,
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

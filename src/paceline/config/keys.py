"""Which settings exist? One table; flags, PACELINE_* variables, file keys and docs derive from it.

A key named `num_workers` is the flag `--num-workers`, the variable
`PACELINE_NUM_WORKERS` and the key `num_workers` of a YAML or TOML file.
`plan.resolve` checks ranges and choices against the same rows.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from paceline.environ import PREFIX


class Kind(StrEnum):
    """What a key's text means; the value is how help texts and docs name it."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    YES_NO = "yes or no"
    DURATION = "duration"
    CHOICE = "choice"
    BATCH_SIZE = "integer, or one per worker"
    STALENESS = "integer or inf"
    STEPS_OR_EPOCH = "integer or epoch"
    OPTIONS = "name=value pairs"
    STRAGGLERS = "straggler rules"
    BYZANTINE = "attack rules"
    EXPORTS = "name, or name=where"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    name: str
    help: str
    kind: Kind
    default: str  # in words: some defaults depend on other keys
    example: str  # a value that works, for hints
    choices: tuple[str, ...] = ()
    minimum: float | None = None  # the smallest allowed value
    above: float | None = None  # a limit that is itself not allowed
    maximum: float | None = None
    flag_name: str = ""  # only where the flag is not simply the key's name

    @property
    def flag(self) -> str:
        return "--" + (self.flag_name or self.name).replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def is_repeatable(self) -> bool:
        return self.kind in (Kind.OPTIONS, Kind.STRAGGLERS, Kind.BYZANTINE, Kind.EXPORTS)

    def contains(self, number: float) -> bool:
        """Is it finite, and within the limits?"""
        return (
            math.isfinite(number)
            and (self.minimum is None or number >= self.minimum)
            and (self.above is None or number > self.above)
            and (self.maximum is None or number <= self.maximum)
        )

    @property
    def allowed(self) -> str:
        """The allowed values in words: `one of a, b`, `from 1 to 9`, `1 or more`."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{self.minimum} or more"
        if self.above is not None and self.maximum is not None:
            return f"more than {self.above} and at most {self.maximum}"
        return "" if self.above is None else f"more than {self.above}"


_ROWS = (
    Key(
        name="name",
        help="Name of the run; also of its folder under runs/.",
        kind=Kind.TEXT,
        default="task and mode",
        example="my-run",
    ),
    Key(
        name="task",
        help="What is trained: a built-in task, or module:Class of your own.",
        kind=Kind.TEXT,
        default="xor",
        example="xor",
    ),
    Key(
        name="task_options",
        help="An option of the task, such as hidden=64. Repeatable.",
        kind=Kind.OPTIONS,
        default="the task's own",
        example="hidden=64",
        flag_name="task_option",
    ),
    Key(
        name="data",
        help="Where the task's data is: a folder or file; for cifar10 also `synthetic`, a stand-in for "
        "its images.",
        kind=Kind.TEXT,
        default="where `paceline data fetch` puts it, or made by the task",
        example="synthetic",
    ),
    Key(
        name="mode",
        help="How workers agree: single, ssgd, ddp, fsdp, ps, asgd, ssp, dssp, easgd, localsgd, fedavg, "
        "diloco, onebit, backup, gossip, adpsgd, adaptive, or module:Class.",
        kind=Kind.TEXT,
        default="ssgd",
        example="ssgd",
    ),
    Key(
        name="num_workers",
        help="How many workers train together.",
        kind=Kind.INTEGER,
        default="2 (1 for single)",
        example="2",
        minimum=1,
        maximum=1024,
    ),
    Key(
        name="elastic",
        help="Go on when workers or servers die, and take in new ones.",
        kind=Kind.YES_NO,
        default="no",
        example="yes",
    ),
    Key(
        name="shards",
        help="Logical workers of an elastic run: samples, dice and order of summing belong to them.",
        kind=Kind.INTEGER,
        default="num_workers, or max_workers if that is more",
        example="12",
        minimum=1,
        maximum=1024,
    ),
    Key(
        name="min_workers",
        help="With fewer an elastic run waits for replacements.",
        kind=Kind.INTEGER,
        default="1",
        example="2",
        minimum=1,
        maximum=1024,
    ),
    Key(
        name="max_workers",
        help="More do not take part in an elastic run.",
        kind=Kind.INTEGER,
        default="shards",
        example="4",
        minimum=1,
        maximum=1024,
    ),
    Key(
        name="on_slow",
        help="A worker of an elastic run is slow: only say so, deal out the shards by speed, or replace it.",
        kind=Kind.CHOICE,
        default="tolerate",
        example="rebalance",
        choices=("tolerate", "rebalance", "replace"),
    ),
    Key(
        name="on_give_up",
        help="Too few workers of an elastic run are left and none is replaced any more: fail, or wait for an "
        "operator.",
        kind=Kind.CHOICE,
        default="fail",
        example="pause",
        choices=("fail", "pause"),
    ),
    Key(
        name="servers",
        help="Parts into which elastic servers cut the parameters, each with a primary and a backup.",
        kind=Kind.INTEGER,
        default="1",
        example="2",
        minimum=1,
        maximum=64,
    ),
    Key(
        name="steps",
        help="Gradients per worker; without a bound on staleness N times as many are shared.",
        kind=Kind.INTEGER,
        default="200",
        example="200",
        minimum=1,
    ),
    Key(
        name="epochs",
        help="Instead of steps: how often all training samples are seen. May be a part, such as 0.5.",
        kind=Kind.NUMBER,
        default="not said: steps count",
        example="5",
        above=0,
        maximum=1_000_000,
    ),
    Key(
        name="evaluate_every",
        help="Steps between two looks at the validation data while training, or the word epoch.",
        kind=Kind.STEPS_OR_EPOCH,
        default="only at the end; epoch with early_stop_patience",
        example="epoch",
        minimum=1,
    ),
    Key(
        name="early_stop_patience",
        help="Stop after so many evaluations in a row without a better one, and keep the best weights.",
        kind=Kind.INTEGER,
        default="all steps are made",
        example="3",
        minimum=1,
    ),
    Key(
        name="early_stop_metric",
        help="What early stopping looks at, and wants small: NAME; NAME:max for what it wants large.",
        kind=Kind.TEXT,
        default="valid_loss, or test_loss if the task has no other",
        example="valid_accuracy:max",
    ),
    Key(
        name="batch_size",
        help="Samples per gradient: one number, or a comma list with one per worker.",
        kind=Kind.BATCH_SIZE,
        default="32",
        example="32",
        minimum=1,
        maximum=2**31,
    ),
    Key(
        name="seed",
        help="Decides data order, first weights and random stragglers.",
        kind=Kind.INTEGER,
        default="0",
        example="0",
        minimum=0,
        maximum=2**63 - 1,
    ),
    Key(
        name="dtype",
        help="Type of the parameters.",
        kind=Kind.CHOICE,
        default="float32",
        example="float32",
        choices=("float32", "float64"),
    ),
    Key(
        name="device",
        help="Where a worker computes; auto takes a GPU when there is one.",
        kind=Kind.CHOICE,
        default="auto",
        example="auto",
        choices=("auto", "cpu", "cuda"),
    ),
    Key(
        name="optimizer",
        help="Replaces the optimizer that the task would build.",
        kind=Kind.CHOICE,
        default="the task's own",
        example="sgd",
        choices=("sgd", "momentum", "nesterov", "adam", "adamw"),
    ),
    Key(
        name="lr",
        help="Learning rate of one step over all workers' samples.",
        kind=Kind.NUMBER,
        default="the task's own; with an optimizer 0.1 (0.001 for adam, adamw)",
        example="0.1",
        above=0,
    ),
    Key(
        name="lr_schedule",
        help="How the learning rate changes over the run: not at all, or down to 0 along a cosine or a line.",
        kind=Kind.CHOICE,
        default="constant",
        example="cosine",
        choices=("constant", "cosine", "linear"),
    ),
    Key(
        name="lr_warmup",
        help="First steps during which the learning rate rises to its full size.",
        kind=Kind.INTEGER,
        default="0; with scale_lr 5 epochs, at most a fifth of the steps",
        example="100",
        minimum=0,
    ),
    Key(
        name="scale_lr",
        help="linear: multiply the learning rate by the global batch over one worker's, with a warm-up.",
        kind=Kind.CHOICE,
        default="none",
        example="linear",
        choices=("none", "linear"),
    ),
    Key(
        name="weight_decay",
        help="Weight decay of the named optimizer.",
        kind=Kind.NUMBER,
        default="0",
        example="0.0001",
        minimum=0,
    ),
    Key(
        name="clip_norm",
        help="Largest norm that a gradient may have before it is applied.",
        kind=Kind.NUMBER,
        default="no clipping",
        example="1.0",
        above=0,
    ),
    Key(
        name="compress",
        help="How numbers are made smaller before they travel: fp32, fp16, bf16, int8, sign, topk:0.01, "
        "dgc:0.01 or powersgd:2.",
        kind=Kind.TEXT,
        default="nothing is compressed",
        example="int8",
    ),
    Key(
        name="error_feedback",
        help="Whether what compression leaves out is added to the next message.",
        kind=Kind.YES_NO,
        default="yes (no for fp32, fp16, bf16)",
        example="no",
    ),
    Key(
        name="compress_warmup",
        help="dgc: first steps during which more is sent (1/4, 1/16, … of the numbers); 0 for none.",
        kind=Kind.INTEGER,
        default="a twentieth of the steps",
        example="20",
        minimum=0,
    ),
    Key(
        name="backup_workers",
        help="backup: how many of a step's gradients are not waited for; the late ones are abandoned.",
        kind=Kind.INTEGER,
        default="1 for every 8 workers, at least 1",
        example="1",
        minimum=0,
    ),
    Key(
        name="staleness",
        help="ssp: how many steps a worker may be ahead of the slowest; inf for no bound. dssp: the lower "
        "bound.",
        kind=Kind.STALENESS,
        default="3",
        example="3",
        minimum=0,
    ),
    Key(
        name="staleness_range",
        help="dssp: how far above `staleness` the bound may move.",
        kind=Kind.INTEGER,
        default="4",
        example="4",
        minimum=0,
    ),
    Key(
        name="asgd",
        help="asgd: what the server does about staleness: nothing; divide the rate by it; compensate the "
        "delay (DC-ASGD); discard what is too stale (Ringmaster).",
        kind=Kind.CHOICE,
        default="plain",
        example="staleness-aware",
        choices=("plain", "staleness-aware", "dc", "ringmaster"),
    ),
    Key(
        name="dc_lambda",
        help="asgd dc: how strongly the delay is compensated.",
        kind=Kind.NUMBER,
        default="0.04",
        example="0.04",
        minimum=0,
    ),
    Key(
        name="max_staleness",
        help="asgd ringmaster: gradients this stale or staler are discarded and computed again.",
        kind=Kind.INTEGER,
        default="twice the number of workers",
        example="8",
        minimum=1,
    ),
    Key(
        name="aggregate",
        help="ssgd, ps: how gradients become one: mean, median, trimmed-mean, krum, or module:function.",
        kind=Kind.TEXT,
        default="mean",
        example="trimmed-mean",
    ),
    Key(
        name="byzantine_tolerance",
        help="median, trimmed-mean, krum: how many bad workers must do no harm.",
        kind=Kind.INTEGER,
        default="1",
        example="1",
        minimum=0,
    ),
    Key(
        name="sync_every",
        help="localsgd, fedavg, diloco, adaptive: local steps between two averagings (H). easgd: between two "
        "exchanges with the centre.",
        kind=Kind.INTEGER,
        default="8",
        example="8",
        minimum=1,
    ),
    Key(
        name="elasticity",
        help="easgd: how strongly workers and centre pull at each other, over all workers (N times alpha).",
        kind=Kind.NUMBER,
        default="0.9",
        example="0.9",
        minimum=0,
    ),
    Key(
        name="clients_per_round",
        help="fedavg: the part of the workers that is drawn for each round.",
        kind=Kind.NUMBER,
        default="1",
        example="0.5",
        above=0,
        maximum=1,
    ),
    Key(
        name="outer_lr",
        help="diloco: learning rate of the outer optimizer.",
        kind=Kind.NUMBER,
        default="0.7",
        example="0.7",
        above=0,
    ),
    Key(
        name="outer_momentum",
        help="diloco: Nesterov momentum of the outer optimizer.",
        kind=Kind.NUMBER,
        default="0.9",
        example="0.9",
        minimum=0,
        maximum=1,
    ),
    Key(
        name="fragments",
        help="diloco: parts of the parameters that are synced in turn (streaming).",
        kind=Kind.INTEGER,
        default="1",
        example="4",
        minimum=1,
    ),
    Key(
        name="sync_delay",
        help="diloco: steps between averaging a fragment and applying it; less than sync_every.",
        kind=Kind.INTEGER,
        default="0",
        example="2",
        minimum=0,
    ),
    Key(
        name="mixing",
        help="diloco: how much of a worker's own parameters stays when a fragment is applied.",
        kind=Kind.NUMBER,
        default="0",
        example="0.5",
        minimum=0,
        maximum=1,
    ),
    Key(
        name="adaptive",
        help="adaptive: what may change with the workers' speeds: their samples of a step (batch), how many "
        "local steps each makes (local-steps), or either, as is worth it (auto).",
        kind=Kind.CHOICE,
        default="auto",
        example="batch",
        choices=("auto", "batch", "local-steps"),
    ),
    Key(
        name="post_local_after",
        help="localsgd: steps of plain ssgd before local steps begin.",
        kind=Kind.INTEGER,
        default="0",
        example="0",
        minimum=0,
    ),
    Key(
        name="average_optimizer_state",
        help="localsgd: average the optimizer's moments as well as the parameters.",
        kind=Kind.YES_NO,
        default="no",
        example="yes",
    ),
    Key(
        name="freeze_after",
        help="onebit: steps of plain Adam before its second moment is frozen.",
        kind=Kind.INTEGER,
        default="a fifth of the steps",
        example="100",
        minimum=1,
    ),
    Key(
        name="gossip",
        help="gossip: mix with the neighbours, then update (dpsgd); update, then mix (diffusion); update, "
        "then send parts along directed edges (push-sum).",
        kind=Kind.CHOICE,
        default="dpsgd",
        example="push-sum",
        choices=("dpsgd", "diffusion", "push-sum"),
    ),
    Key(
        name="topology",
        help="gossip, adpsgd: who is whose neighbour; exponential is directed and for push-sum only.",
        kind=Kind.CHOICE,
        default="ring (exponential for push-sum)",
        example="hypercube",
        choices=("ring", "torus", "hypercube", "star", "complete", "exponential"),
    ),
    Key(
        name="fsdp_precision",
        help="fsdp: in what numbers blocks compute; parameters are kept, and gradients summed, in the "
        "model's own.",
        kind=Kind.CHOICE,
        default="none (the model's own)",
        example="bf16",
        choices=("none", "bf16"),
    ),
    Key(
        name="on_nan",
        help="ssgd: when the mean gradient of a step is not finite: stop with an error, or make no update "
        "at that step.",
        kind=Kind.CHOICE,
        default="stop in an elastic run; else nobody looks",
        example="skip",
        choices=("stop", "skip"),
    ),
    Key(
        name="straggler",
        help="Slow workers down: worker=1,factor=3 or p=0.05,factor=10 or "
        "worker=0,delay=50ms,from=100,to=200 or worker=2,factor=10,over=100 (little by little) or "
        "trace=FILE. Repeatable.",
        kind=Kind.STRAGGLERS,
        default="nobody is slowed down",
        example="worker=1,factor=3",
    ),
    Key(
        name="byzantine",
        help="Let workers send wrong gradients: worker=3,attack=garbage or worker=1,attack=scale,scale=-5 "
        "or p=0.1,attack=sign-flip,from=100,to=200. Repeatable.",
        kind=Kind.BYZANTINE,
        default="everybody is honest",
        example="worker=1,attack=garbage",
    ),
    Key(
        name="pace",
        help="A step's forward and backward take at least this long, such as 10ms.",
        kind=Kind.DURATION,
        default="0 (as fast as it goes); 10ms with launcher virtual",
        example="10ms",
        minimum=0,
    ),
    Key(
        name="transport",
        help="How tensors travel.",
        kind=Kind.CHOICE,
        default="auto",
        example="auto",
        choices=("auto", "none", "shm", "gloo", "nccl", "tcp", "cuda-ipc"),
    ),
    Key(
        name="launcher",
        help="Who starts the workers: this command, as processes here or (virtual) all in one process and in "
        "virtual time; or torchrun; or Ray.",
        kind=Kind.CHOICE,
        default="local; torchrun under torchrun",
        example="local",
        choices=("local", "virtual", "torchrun", "ray"),
    ),
    Key(
        name="address",
        help="launcher ray: where Ray is: local (started here, ended afterwards), auto, HOST:PORT or "
        "ray://HOST:PORT.",
        kind=Kind.TEXT,
        default="local",
        example="auto",
    ),
    Key(
        name="placement",
        help="launcher ray: how workers are spread over nodes.",
        kind=Kind.CHOICE,
        default="pack; spread for a mode with a server on several nodes",
        example="spread",
        choices=("pack", "spread", "strict_pack", "strict_spread"),
    ),
    Key(
        name="restarts",
        help="launcher ray: how often all workers are started anew from the newest checkpoint when one of "
        "them, or its node, is lost.",
        kind=Kind.INTEGER,
        default="0",
        example="3",
        minimum=0,
        maximum=1000,
    ),
    Key(
        name="vmap",
        help="launcher virtual: compute the gradients of all workers by one vmapped pass; not bit-equal.",
        kind=Kind.YES_NO,
        default="yes on a GPU",
        example="yes",
    ),
    Key(
        name="threads_per_worker",
        help="Processor threads that each worker computes with.",
        kind=Kind.INTEGER,
        default="1",
        example="1",
        minimum=1,
        maximum=1024,
    ),
    Key(
        name="timeout",
        help="How long anyone waits for a peer before giving up, such as 60s.",
        kind=Kind.DURATION,
        default="60s",
        example="60s",
        above=0,
    ),
    Key(
        name="checkpoint_every",
        help="Steps between checkpoints; 0 writes only the final one.",
        kind=Kind.INTEGER,
        default="0; 100 in an elastic run, or with restarts",
        example="100",
        minimum=0,
    ),
    Key(
        name="keep_checkpoints",
        help="How many complete checkpoints stay; older ones are removed.",
        kind=Kind.INTEGER,
        default="3",
        example="5",
        minimum=1,
    ),
    Key(
        name="checkpoint_store",
        help="Where copies of checkpoints go, beside the run folder: s3://BUCKET/PREFIX.",
        kind=Kind.TEXT,
        default="nowhere else",
        example="s3://my-bucket/runs/first",
    ),
    Key(
        name="events",
        help="Whether every step is recorded in events.jsonl.",
        kind=Kind.CHOICE,
        default="full",
        example="full",
        choices=("full", "off"),
    ),
    Key(
        name="export",
        help="Where else the record goes while the run trains: tensorboard[=FOLDER], mlflow[=ADDRESS], "
        "wandb[=offline|online]. Repeatable.",
        kind=Kind.EXPORTS,
        default="nowhere else",
        example="tensorboard",
    ),
    Key(
        name="run_dir",
        help="Folder of the run; it must not hold another run.",
        kind=Kind.TEXT,
        default="runs/<name>, or runs/<name>-2 and so on",
        example="runs/my-run",
    ),
    Key(
        name="save_dir",
        help="Folder in which the run gets a folder of its name.",
        kind=Kind.TEXT,
        default="runs",
        example="results",
    ),
)

KEYS: dict[str, Key] = {key.name: key for key in _ROWS}

"""The modes, tasks and optimizers that exist, without importing torch.

The code of a mode is in `strategies/<name>.py`; this table is what plans,
help texts, checks and laws read. A new mode is one row here and one file there:
what a row leaves out is as for the same class named as `module:Class`.
"""

from dataclasses import dataclass
from enum import StrEnum

from paceline.plan.plan import Codec, Plan, Transport


class Channel(StrEnum):
    """By what a mode's workers agree."""

    ALONE = "alone"
    COLLECTIVE = "collective"  # everybody meets: all-reduce, barrier
    TORCH = "torch"  # torch.distributed itself, by its own process group
    STORE = "store"  # parameters live on a server: push and pull
    PEERS = "peers"  # each worker's parameters lie open to the others: two average, the rest go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    name: str
    channel: Channel
    summary: str
    like: str = ""  # the mode whose laws it must obey beside its own; empty: only those that name it
    options: frozenset[str] | None = None  # fields of StrategyOptions it reads; None: any of them
    sums_updates: bool = False  # each gradient is applied alone, so the rate is divided by N
    updates_apart: bool = False  # a worker updates by its own batch, which does not grow with the workers
    never_equal: bool = False  # workers hold the same parameters at the end only
    in_rounds: bool = False  # workers train alone for `sync_every` steps between two averagings
    is_elastic: bool = False  # goes on when workers come and go
    compresses: frozenset[Codec] = frozenset(Codec)  # what --compress may name
    optimizers: frozenset[str] = frozenset()  # the only ones it works with; empty: any
    is_split: bool = False  # each worker keeps only its part of the parameters

    @property
    def implementation(self) -> str:
        return f"paceline.strategies.{self.name}"

    @property
    def is_evaluated(self) -> bool:
        """Is there one model to evaluate on the way: on a server, or at all workers after some step?"""
        return self.channel is not Channel.PEERS and not self.never_equal

    @property
    def has_one_update(self) -> bool:
        """Is one update made of the mean of all workers' gradients, so that the batch is the global one?"""
        return not (self.sums_updates or self.updates_apart)

    @property
    def waits_every_step(self) -> bool:
        """Does every worker wait for all others at every step?"""
        is_alone = self.channel is Channel.ALONE
        return self.has_one_update and not is_alone and not self.reads("backup_workers")

    def reads(self, option: str) -> bool:
        """Is this field of StrategyOptions known to be one of its own?"""
        return self.options is not None and option in self.options


AGGREGATES: dict[str, str] = {
    "mean": "the mean of all gradients; a single bad one can make it anything",
    "median": "the middle value of each coordinate",
    "trimmed-mean": "the mean of each coordinate without its f largest and f smallest values",
    "krum": "the one gradient that is nearest to the N-f-2 nearest others",
}
ROBUST = frozenset({"aggregate", "byzantine_tolerance"})
_ANY_CODEC = frozenset(Codec)
_NONE: frozenset[Codec] = frozenset()
_NOT_DGC = _ANY_CODEC - {Codec.DGC}  # whose momentum needs gradients that are averaged at every step
_ONE_PAYLOAD = _NOT_DGC - {Codec.POWERSGD}  # which needs two meetings of everybody

MODES: dict[str, Mode] = {
    m.name: m
    for m in (
        Mode(
            name="single",
            channel=Channel.ALONE,
            summary="one worker, no communication",
            options=frozenset(),
            compresses=_NONE,
        ),
        Mode(
            name="ssgd",
            channel=Channel.COLLECTIVE,
            summary="all-reduce of gradients at every step, together",
            options=ROBUST | {"on_nan", "sync_batchnorm"},
            compresses=_ANY_CODEC,
            is_elastic=True,
        ),
        Mode(
            name="ddp",
            channel=Channel.TORCH,
            summary="torch DistributedDataParallel at every step, together",
            compresses=frozenset({Codec.FP16, Codec.BF16, Codec.POWERSGD}),
            options=frozenset({"sync_batchnorm"}),
            is_elastic=True,
        ),
        Mode(
            name="fsdp",
            channel=Channel.TORCH,
            summary="torch fully_shard (FSDP2) at every step, together; each keeps a part of the model",
            options=frozenset({"fsdp_precision"}),
            is_split=True,
            compresses=_NONE,
            is_elastic=True,
        ),
        Mode(
            name="ps",
            channel=Channel.STORE,
            summary="a parameter server averages all gradients of a step, then applies once",
            options=ROBUST,
            compresses=_ONE_PAYLOAD,
            is_elastic=True,
        ),
        Mode(
            name="backup",
            channel=Channel.STORE,
            summary="like ps, but `backup_workers` late gradients of a step are abandoned, not waited for",
            options=frozenset({"backup_workers"}),
            compresses=_NONE,
            is_elastic=True,
        ),
        Mode(
            name="asgd",
            channel=Channel.STORE,
            summary="a parameter server applies every gradient at once, nobody waits",
            options=frozenset({"asgd", "dc_lambda", "max_staleness"}),
            sums_updates=True,
            compresses=_ONE_PAYLOAD,
            is_elastic=True,
        ),
        Mode(
            name="ssp",
            channel=Channel.STORE,
            summary="like asgd, but nobody runs more than `staleness` steps ahead of the slowest",
            options=frozenset({"staleness"}),
            sums_updates=True,
            compresses=_ONE_PAYLOAD,
            is_elastic=True,
        ),
        Mode(
            name="dssp",
            channel=Channel.STORE,
            summary="like ssp, with a bound that moves from `staleness` up by as much as `staleness_range`",
            options=frozenset({"staleness", "staleness_range"}),
            sums_updates=True,
            compresses=_ONE_PAYLOAD,
            is_elastic=True,
        ),
        Mode(
            name="easgd",
            channel=Channel.STORE,
            summary="`sync_every` steps alone, then a worker and the server's centre pull at each other",
            options=frozenset({"sync_every", "elasticity"}),
            updates_apart=True,
            compresses=_NONE,
        ),
        Mode(
            name="localsgd",
            channel=Channel.COLLECTIVE,
            summary="`sync_every` steps alone, then the parameters are averaged",
            options=frozenset({"sync_every", "post_local_after", "average_optimizer_state"}),
            compresses=_NOT_DGC,
            updates_apart=True,
            in_rounds=True,
            is_elastic=True,
        ),
        Mode(
            name="fedavg",
            channel=Channel.COLLECTIVE,
            summary="rounds: drawn workers make `sync_every` steps alone, then their parameters are averaged",
            options=frozenset({"sync_every", "clients_per_round"}),
            compresses=_NOT_DGC,
            updates_apart=True,
            is_elastic=True,
        ),
        Mode(
            name="diloco",
            channel=Channel.COLLECTIVE,
            summary="`sync_every` steps alone, then an outer optimizer moves the common parameters",
            options=frozenset(
                {"sync_every", "outer_lr", "outer_momentum", "fragments", "sync_delay", "mixing"}
            ),
            compresses=_NOT_DGC,
            updates_apart=True,
            in_rounds=True,
            is_elastic=True,
        ),
        Mode(
            name="onebit",
            channel=Channel.COLLECTIVE,
            summary="Adam together for `freeze_after` steps, then signs of the momentum (1-bit Adam)",
            options=frozenset({"freeze_after"}),
            optimizers=frozenset({"adam", "adamw"}),
            compresses=_NONE,
        ),
        Mode(
            name="gossip",
            channel=Channel.COLLECTIVE,
            summary="parameters are mixed with the neighbours' at every step, nobody else is waited for",
            options=frozenset({"gossip", "topology"}),
            updates_apart=True,
            never_equal=True,
            compresses=_NONE,
        ),
        Mode(
            name="adpsgd",
            channel=Channel.PEERS,
            summary="after each gradient a worker averages its parameters with a random neighbour's,"
            " nobody waits",
            options=frozenset({"topology"}),
            updates_apart=True,
            compresses=_NONE,
        ),
        Mode(
            name="adaptive",
            channel=Channel.COLLECTIVE,
            summary="work shared out by measured speed; the way of agreeing may change with what it sees",
            options=frozenset({"adaptive", "sync_every"}),
            updates_apart=True,
            is_elastic=True,
            compresses=_NONE,
        ),
    )
}
MODE_ALIASES = {"allreduce": "ssgd", "sync": "ssgd", "async": "asgd"}

TRANSPORTS: dict[Channel, tuple[Transport, ...]] = {
    Channel.ALONE: (Transport.NONE,),
    Channel.COLLECTIVE: (Transport.SHM, Transport.GLOO, Transport.NCCL),
    Channel.TORCH: (Transport.GLOO, Transport.NCCL),
    Channel.STORE: (Transport.SHM, Transport.TCP, Transport.CUDA_IPC),
    Channel.PEERS: (Transport.SHM,),
}

TASKS: dict[str, str] = {
    "xor": "the XOR of two signs, synthetic, made in memory from the seed",
    "digits": "1,797 handwritten digits of 8x8 pixels (shipped with scikit-learn)",
    "charlm": "the next character of a text file (option `file`) or of a toy text, by a small transformer",
    "sp500": "does the index rise tomorrow? an LSTM on daily closes (`paceline data prepare sp500`)",
    "cifar10": "60,000 small pictures of 10 kinds of things (`paceline data fetch cifar10`), by a "
    "convolutional network",
    "llama": "the next token of any text (`--data FILE`), by a Llama of a published size (`--model`)",
}
# The option by which `--data` reaches a task; a task of your own gets it as `data`.
DATA_OPTIONS: dict[str, str] = {"charlm": "file", "cifar10": "data", "llama": "data", "sp500": "npz_path"}
# The options by which settings about the model reach a task; a task of your own gets them by these names too.
MODEL_OPTIONS: dict[str, str] = {
    "model": "model",
    "seq_len": "seq_len",
    "tokenizer": "tokenizer",
    "activation_checkpointing": "activation_checkpointing",
    "compile": "compiled",
}
TASKS_WITH_MODELS = ("llama",)
SYNTHETIC = "synthetic"  # the data of a task that only stands in for the real one
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")


def hides_waiting(mode: str) -> bool:
    """Do its workers wait for each other inside torch's backward, where nobody can measure it?"""
    return mode in MODES and MODES[mode].channel is Channel.TORCH


def is_split(mode: str) -> bool:
    """Does each worker keep only its part of the parameters? Never in a mode of the user's own."""
    return mode in MODES and MODES[mode].is_split


def server_names(plan: Plan) -> tuple[str, ...]:
    """The parameter servers of an elastic run, primary and backup; no other run can lose one."""
    if plan.elastic is None or MODES[plan.mode].channel is not Channel.STORE:
        return ()
    return ("server-0-a", "server-0-b")


def min_workers_for(aggregate: str, tolerance: int) -> int:
    """How many gradients it takes to survive so many bad ones this way (Blanchard 2017, Yin 2018)."""
    if aggregate == "krum":
        return 2 * tolerance + 3
    return 2 * tolerance + 1 if aggregate in AGGREGATES else 1


def data_of(plan: Plan) -> str | None:
    """Where the plan says the task's data is; None: it does not."""
    said = plan.task_options.get(DATA_OPTIONS.get(plan.task, "data"))
    return said if isinstance(said, str) else None

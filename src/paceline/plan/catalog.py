"""The modes, tasks and optimizers that exist, without importing torch.

The code of a mode is in `strategies/<name>.py`; this table is what plans,
help texts, checks and laws read. A new mode is one row here and one file there:
what a row leaves out is as for the same class named as `module:Class`.
"""

from dataclasses import dataclass
from enum import StrEnum

from paceline.plan.plan import Codec, Launcher, Plan, Transport


class Channel(StrEnum):
    """Channel by which a mode's workers synchronize."""

    ALONE = "alone"
    COLLECTIVE = "collective"  # all workers take part: all-reduce, barrier
    TORCH = "torch"  # torch.distributed itself, by its own process group
    STORE = "store"  # parameters are on a server: push and pull
    PEERS = "peers"  # each worker's parameters lie open to the others: two average, the rest continue


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    name: str
    channel: Channel
    summary: str
    title: str = ""  # name in the literature; empty: only `name`
    like: str = ""  # the mode whose laws it must also obey; empty: only its own laws
    options: frozenset[str] | None = None  # fields of StrategyOptions it reads; None: any of them
    sums_updates: bool = False  # each gradient is applied alone, so the rate is divided by N
    updates_apart: bool = False  # a worker updates by its own batch, which does not grow with the workers
    never_equal: bool = False  # workers hold the same parameters at the end only
    in_rounds: bool = False  # workers train alone for `sync_every` steps between two averagings
    is_elastic: bool = False  # continues when workers come and go
    not_elastic: str = ""  # why it does not
    compresses: frozenset[Codec] = frozenset(Codec)  # values that --compress accepts
    optimizers: frozenset[str] = frozenset()  # the only ones it works with; empty: any
    is_split: bool = False  # each worker keeps only its part of the parameters
    # Of training scripts:
    steps_in_turn: bool = False  # its optimizers may step in turn
    reads_streams: bool = False  # its data may be a stream
    shares_differ: bool = False  # workers make different numbers of steps between two averagings

    @property
    def implementation(self) -> str:
        return f"paceline.strategies.{self.name}"

    @property
    def is_evaluated(self) -> bool:
        """True if there is one model to evaluate during the run: on a server, or equal at all workers."""
        return self.channel is not Channel.PEERS and not self.never_equal

    @property
    def has_one_update(self) -> bool:
        """True if one update uses the mean of all workers' gradients: the batch is then the global one."""
        return not (self.sums_updates or self.updates_apart)

    @property
    def waits_every_step(self) -> bool:
        """True if every worker waits for all others at every step."""
        is_alone = self.channel is Channel.ALONE
        return self.has_one_update and not is_alone and not self.reads("backup_workers")

    def reads(self, option: str) -> bool:
        """True if the mode reads this field of StrategyOptions."""
        return self.options is not None and option in self.options


AGGREGATES: dict[str, str] = {
    "mean": "the mean of all gradients; one bad worker can change it arbitrarily",
    "median": "the median of each coordinate",
    "trimmed-mean": "the mean of each coordinate without its f largest and f smallest values",
    "krum": "the one gradient that is nearest to the N-f-2 nearest others",
}
ROBUST = frozenset({"aggregate", "byzantine_tolerance"})
_ANY_CODEC = frozenset(Codec)
_NONE: frozenset[Codec] = frozenset()
_NOT_DGC = _ANY_CODEC - {Codec.DGC}  # DGC's momentum needs gradients that are averaged at every step
_ONE_PAYLOAD = _NOT_DGC - {Codec.POWERSGD}  # which needs two all-reduces

MODES: dict[str, Mode] = {
    m.name: m
    for m in (
        Mode(
            name="single",
            title="one worker",
            channel=Channel.ALONE,
            summary="one worker, no communication",
            options=frozenset(),
            compresses=_NONE,
            not_elastic="it has one worker, and no other one that could continue",
            steps_in_turn=True,
            reads_streams=True,
        ),
        Mode(
            name="ssgd",
            title="synchronous SGD, all-reduce",
            channel=Channel.COLLECTIVE,
            summary="all-reduce of gradients at every step, synchronous",
            options=ROBUST | {"on_nan", "sync_batchnorm"},
            compresses=_ANY_CODEC,
            is_elastic=True,
            steps_in_turn=True,
            reads_streams=True,
        ),
        Mode(
            name="ddp",
            title="PyTorch DistributedDataParallel",
            channel=Channel.TORCH,
            summary="torch DistributedDataParallel at every step, synchronous",
            compresses=frozenset({Codec.FP16, Codec.BF16, Codec.POWERSGD}),
            options=frozenset({"sync_batchnorm"}),
            is_elastic=True,
        ),
        Mode(
            name="fsdp",
            title="fully sharded data parallel",
            channel=Channel.TORCH,
            summary="torch fully_shard (FSDP2) at every step, synchronous; each worker holds a shard of the "
            "model",
            options=frozenset({"fsdp_precision"}),
            is_split=True,
            compresses=_NONE,
            is_elastic=True,
        ),
        Mode(
            name="ps",
            title="synchronous parameter server",
            channel=Channel.STORE,
            summary="a parameter server averages all gradients of a step, then applies once",
            options=ROBUST,
            compresses=_ONE_PAYLOAD,
            is_elastic=True,
        ),
        Mode(
            name="backup",
            title="synchronous SGD, backup workers",
            channel=Channel.STORE,
            summary="like ps, but `backup_workers` late gradients of a step are abandoned, not waited for",
            options=frozenset({"backup_workers"}),
            compresses=_NONE,
            is_elastic=True,
        ),
        Mode(
            name="asgd",
            title="asynchronous SGD",
            channel=Channel.STORE,
            summary="a parameter server applies every gradient on arrival; no worker waits",
            options=frozenset({"asgd", "dc_lambda", "max_staleness"}),
            sums_updates=True,
            compresses=_ONE_PAYLOAD,
            is_elastic=True,
        ),
        Mode(
            name="ssp",
            title="stale synchronous parallel",
            channel=Channel.STORE,
            summary="like asgd, but no worker runs more than `staleness` steps ahead of the slowest",
            options=frozenset({"staleness"}),
            sums_updates=True,
            compresses=_ONE_PAYLOAD,
            is_elastic=True,
        ),
        Mode(
            name="dssp",
            title="dynamic stale synchronous parallel",
            channel=Channel.STORE,
            summary="like ssp, with a bound that moves from `staleness` up by as much as `staleness_range`",
            options=frozenset({"staleness", "staleness_range"}),
            sums_updates=True,
            compresses=_ONE_PAYLOAD,
            is_elastic=True,
        ),
        Mode(
            name="easgd",
            title="elastic averaging SGD",
            channel=Channel.STORE,
            summary="`sync_every` local steps, then an elastic exchange between a worker and the server's "
            "centre",
            options=frozenset({"sync_every", "elasticity"}),
            updates_apart=True,
            compresses=_NONE,
            not_elastic="a worker trains parameters of its own between two exchanges, which are lost with it",
        ),
        Mode(
            name="localsgd",
            title="local SGD",
            channel=Channel.COLLECTIVE,
            summary="`sync_every` local steps, then the parameters are averaged",
            options=frozenset({"sync_every", "post_local_after", "average_optimizer_state"}),
            compresses=_NOT_DGC,
            updates_apart=True,
            in_rounds=True,
            is_elastic=True,
            steps_in_turn=True,
            reads_streams=True,
        ),
        Mode(
            name="fedavg",
            title="federated averaging",
            channel=Channel.COLLECTIVE,
            summary="rounds: sampled workers make `sync_every` local steps, then their parameters are "
            "averaged",
            options=frozenset({"sync_every", "clients_per_round"}),
            compresses=_NOT_DGC,
            updates_apart=True,
            is_elastic=True,
            reads_streams=True,
            shares_differ=True,
        ),
        Mode(
            name="diloco",
            title="distributed low-communication",
            channel=Channel.COLLECTIVE,
            summary="`sync_every` local steps, then an outer optimizer updates the shared parameters",
            options=frozenset(
                {"sync_every", "outer_lr", "outer_momentum", "fragments", "sync_delay", "mixing"}
            ),
            compresses=_NOT_DGC,
            updates_apart=True,
            in_rounds=True,
            is_elastic=True,
            steps_in_turn=True,
            reads_streams=True,
        ),
        Mode(
            name="onebit",
            title="1-bit Adam",
            channel=Channel.COLLECTIVE,
            summary="synchronous Adam for `freeze_after` steps, then signs of the momentum (1-bit Adam)",
            options=frozenset({"freeze_after"}),
            optimizers=frozenset({"adam", "adamw"}),
            compresses=_NONE,
            not_elastic="what a worker owes to the momentum is in its own error memory, and is lost with it",
        ),
        Mode(
            name="gossip",
            title="decentralized SGD (gossip)",
            channel=Channel.COLLECTIVE,
            summary="parameters are averaged with the neighbours' at every step, without waiting for others",
            options=frozenset({"gossip", "topology"}),
            updates_apart=True,
            never_equal=True,
            compresses=_NONE,
            not_elastic="each worker holds parameters of its own, which are lost with it",
            steps_in_turn=True,
            reads_streams=True,
        ),
        Mode(
            name="adpsgd",
            title="asynchronous decentralized SGD",
            channel=Channel.PEERS,
            summary="after each gradient a worker averages its parameters with a random neighbour's,"
            " without waiting",
            options=frozenset({"topology"}),
            updates_apart=True,
            compresses=_NONE,
            not_elastic="each worker holds parameters of its own, which are lost with it",
        ),
        Mode(
            name="adaptive",
            title="work divided by measured speed",
            channel=Channel.COLLECTIVE,
            summary="work in proportion to measured speed; switches between batch sizes and local steps by "
            "measurement",
            options=frozenset({"adaptive", "sync_every"}),
            updates_apart=True,
            is_elastic=True,
            compresses=_NONE,
            shares_differ=True,
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
    "sp500": "next-day direction of an index, by an LSTM on daily closes (`paceline data prepare sp500`)",
    "cifar10": "60,000 images of 10 classes (`paceline data fetch cifar10`), by a convolutional network",
    "llama": "the next token of any text (`--data FILE`), by a Llama of a published size (`--model`)",
}
SCRIPT_TASK = "paceline.tasks.script:ScriptTask"  # of a user's own training script (`paceline run`)
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
SYNTHETIC = "synthetic"  # generated data in place of a real data set
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")


def hides_waiting(mode: str) -> bool:
    """True if workers wait for each other inside torch's backward, where it cannot be measured."""
    return mode in MODES and MODES[mode].channel is Channel.TORCH


def is_split(mode: str) -> bool:
    """True if each worker keeps only its part of the parameters. Never in a user's own mode."""
    return mode in MODES and MODES[mode].is_split


def server_names(plan: Plan) -> tuple[str, ...]:
    """The parameter servers of an elastic run, primary and backup; no other run can lose one."""
    if plan.elastic is None or MODES[plan.mode].channel is not Channel.STORE:
        return ()
    return ("server-0-a", "server-0-b")


def spans_hosts(plan: Plan) -> bool:
    """Whether participants of an elastic run may be on other hosts, sharing nothing with the command."""
    if plan.launcher is Launcher.AGENTS:
        return True
    is_apart = plan.elastic is not None and plan.transport is Transport.TCP
    return plan.launcher is Launcher.RAY and is_apart


def min_workers_for(aggregate: str, tolerance: int) -> int:
    """Number of gradients needed to tolerate `tolerance` bad ones (Blanchard 2017, Yin 2018)."""
    if aggregate == "krum":
        return 2 * tolerance + 3
    return 2 * tolerance + 1 if aggregate in AGGREGATES else 1


def data_of(plan: Plan) -> str | None:
    """Location of the task's data in the plan; None: not set."""
    location = plan.task_options.get(DATA_OPTIONS.get(plan.task, "data"))
    return location if isinstance(location, str) else None

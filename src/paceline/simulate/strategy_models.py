"""Strategy models: the simulator's model of each mode, with its settings.

A mode with an existing model is one row of `_MODELS`; a new model is a class here
and a case each in `flags_of`, `_settings`, simulate/predict.py and
simulate/advice.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from paceline.plan.catalog import MODES, Channel
from paceline.plan.decide import default_backup_workers
from paceline.plan.plan import Plan, StrategyOptions
from paceline.sync.adaptive_setting import Allowed

DEFAULT_BOUND = 3
DEFAULT_PERIOD = 8
DEFAULT_EXTRA = 4


@dataclass(frozen=True, slots=True)
class SingleWorker:
    """One worker does the work of all."""


@dataclass(frozen=True, slots=True)
class Synchronous:
    """All workers synchronize at every step: ssgd and ddp by an all-reduce, ps at a server."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """Behind a server, at most `bound` steps ahead of the slowest; None: asgd, first come, first served."""

    bound: int | None


@dataclass(frozen=True, slots=True)
class LocalSgd:
    every: int
    post_local_after: int = 0


@dataclass(frozen=True, slots=True)
class OuterSgd:
    """diloco: fragments are averaged in turn. Averaging blocks, so applying it later saves no time."""

    every: int
    fragments: int = 1
    delay: int = 0


@dataclass(frozen=True, slots=True)
class ElasticAveraging:
    """easgd: a free worker takes the next `every` shares, and exchanges only with the server."""

    every: int


@dataclass(frozen=True, slots=True)
class FederatedRounds:
    """fedavg: a part of the workers is drawn for each round of `every` steps; all synchronize at its end."""

    every: int
    part: float = 1.0


@dataclass(frozen=True, slots=True)
class BackupWorkers:
    """The slowest `spare` gradients of a round are abandoned (Chen 2016)."""

    spare: int


@dataclass(frozen=True, slots=True)
class DynamicBound:
    """SSP whose bound moves between `low` and `low + extra` (DSSP, Zhao 2019)."""

    low: int
    extra: int


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Work assigned by measured speed, under the policies that the user allows."""

    allowed: Allowed
    every: int


StrategyModel = (
    SingleWorker
    | Synchronous
    | Asynchronous
    | LocalSgd
    | OuterSgd
    | ElasticAveraging
    | FederatedRounds
    | BackupWorkers
    | DynamicBound
    | Adaptive
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    mode: str  # as plan/catalog.py names it
    model: StrategyModel
    settings: str = ""  # for people

    @property
    def label(self) -> str:
        return f"{self.mode} ({self.settings})" if self.settings else self.mode


_MODELS: dict[str, Callable[[StrategyOptions], StrategyModel]] = {
    "single": lambda _: SingleWorker(),
    "ssgd": lambda _: Synchronous(Channel.COLLECTIVE),
    "ddp": lambda _: Synchronous(Channel.TORCH),
    "ps": lambda _: Synchronous(Channel.STORE),
    "backup": lambda o: BackupWorkers(o.backup_workers),
    "asgd": lambda _: Asynchronous(None),
    "ssp": lambda o: Asynchronous(o.staleness),
    "dssp": lambda o: DynamicBound(DEFAULT_BOUND if o.staleness is None else o.staleness, o.staleness_range),
    "easgd": lambda o: ElasticAveraging(o.sync_every),
    "localsgd": lambda o: LocalSgd(o.sync_every, o.post_local_after),
    "fedavg": lambda o: FederatedRounds(o.sync_every, o.clients_per_round),
    "diloco": lambda o: OuterSgd(o.sync_every, o.fragments, o.sync_delay),
    "adaptive": lambda o: Adaptive(o.adaptive, o.sync_every),
}
PREDICTABLE_MODES = frozenset(_MODELS)


def strategy_model_of(mode: str, options: StrategyOptions) -> StrategyModel:
    """The model of a mode of the catalog, with these settings."""
    assert mode in PREDICTABLE_MODES, f"the simulator does not know how {mode} agrees"
    return _MODELS[mode](options)


def candidate_of(mode: str, options: StrategyOptions) -> Candidate:
    model = strategy_model_of(mode, options)
    return Candidate(mode=mode, model=model, settings=_settings(model))


def candidates(options: StrategyOptions, num_workers: int) -> list[Candidate]:
    """Every predictable mode of the catalog, with these settings."""
    options = replace(options, backup_workers=min(options.backup_workers, num_workers - 1))
    return [candidate_of(mode, options) for mode in MODES if mode in PREDICTABLE_MODES]


def default_options(plan: Plan, num_workers: int | None = None) -> StrategyOptions:
    """The plan's settings where its mode reads them, otherwise what `train` would take.

    With another number of workers than the plan's, if one is given.
    """
    reads = (MODES[plan.mode].options if plan.mode in MODES else None) or frozenset()
    spare = default_backup_workers(num_workers or plan.num_workers)
    return replace(
        plan.strategy,
        backup_workers=plan.strategy.backup_workers if "backup_workers" in reads else spare,
        staleness=plan.strategy.staleness if "staleness" in reads else DEFAULT_BOUND,
        sync_every=plan.strategy.sync_every if "sync_every" in reads else DEFAULT_PERIOD,
        staleness_range=plan.strategy.staleness_range if "staleness_range" in reads else DEFAULT_EXTRA,
    )


def flags_of(candidate: Candidate) -> str:
    """The flags of `paceline train` for this candidate."""
    match candidate.model:
        case Asynchronous(bound) if candidate.mode == "ssp":
            return f"--mode ssp --staleness {'inf' if bound is None else bound}"
        case DynamicBound(low, extra):
            return f"--mode dssp --staleness {low} --staleness-range {extra}"
        case LocalSgd(every, after):
            late = f" --post-local-after {after}" if after else ""
            return f"--mode localsgd --sync-every {every}{late}"
        case BackupWorkers(spare):
            return f"--mode backup --backup-workers {spare}"
        case Adaptive(allowed, every):
            return f"--mode adaptive --adaptive {allowed.value} --sync-every {every}"
        case ElasticAveraging(every):
            return f"--mode easgd --sync-every {every}"
        case FederatedRounds(every, part):
            return f"--mode fedavg --sync-every {every} --clients-per-round {part:g}"
        case OuterSgd(every, fragments, delay):
            parts = f" --fragments {fragments}" if fragments > 1 else ""
            delayed = f" --sync-delay {delay}" if delay else ""
            return f"--mode diloco --sync-every {every}{parts}{delayed}"
        case _:
            return f"--mode {candidate.mode}"


def _settings(model: StrategyModel) -> str:
    match model:
        case SingleWorker() | Synchronous():
            return ""
        case Adaptive(allowed, _):
            return allowed.value
        case Asynchronous(bound):
            return "" if bound is None else f"bound {bound}"
        case LocalSgd(every, after):
            return f"H {every}, after {after} steps" if after else f"H {every}"
        case BackupWorkers(spare):
            return f"all but {spare}"
        case ElasticAveraging(every):
            return f"H {every}"
        case FederatedRounds(every, part):
            return f"H {every}" if part == 1.0 else f"H {every}, {part:.0%} drawn"
        case OuterSgd(every, fragments, _):
            return f"H {every}, {fragments} fragments" if fragments > 1 else f"H {every}"
        case DynamicBound(low, extra):
            return f"bound {low} to {low + extra}"
        case _:
            assert_never(model)

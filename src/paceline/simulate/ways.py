"""Which ways of agreeing can be predicted? Most modes of plan/catalog.py, each a way with its settings.

A mode that agrees in a way of this list is one row of `_WAYS`; a new way is a
class here and an arm each in `flags_of`, `_settings`, simulate/predict.py and
simulate/advice.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from paceline.plan.catalog import MODES, Channel
from paceline.plan.decide import usual_backup_workers
from paceline.plan.plan import Plan, StrategyOptions
from paceline.sync.setting import Allowed

USUAL_BOUND, USUAL_PERIOD, USUAL_EXTRA = 3, 8, 4


@dataclass(frozen=True, slots=True)
class Alone:
    """One worker does everybody's work."""


@dataclass(frozen=True, slots=True)
class Together:
    """Everybody meets at every step: ssgd and ddp by an all-reduce, ps at a server."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Apart:
    """Behind a server, at most `bound` steps ahead of the slowest; None: asgd, and work is shared out."""

    bound: int | None


@dataclass(frozen=True, slots=True)
class Local:
    every: int
    post_local_after: int = 0


@dataclass(frozen=True, slots=True)
class Outer:
    """diloco: fragments are averaged in turn. Averaging blocks, so applying it later saves no time."""

    every: int
    fragments: int = 1
    delay: int = 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """easgd: whoever is free takes the next `every` shares, and meets nobody but the server."""

    every: int


@dataclass(frozen=True, slots=True)
class Rounds:
    """fedavg: a part of the workers is drawn for each round of `every` steps; all meet at its end."""

    every: int
    part: float = 1.0


@dataclass(frozen=True, slots=True)
class Backup:
    """Of the gradients under way `spare` are not waited for, and abandoned (Chen 2016)."""

    spare: int


@dataclass(frozen=True, slots=True)
class Dynamic:
    """SSP whose bound moves between `low` and `low + extra` (DSSP, Zhao 2019)."""

    low: int
    extra: int


@dataclass(frozen=True, slots=True)
class Adapting:
    """Work shared out by measured speed; what may change is what the user allows."""

    allowed: Allowed
    every: int


Way = Alone | Together | Apart | Local | Outer | Blocks | Rounds | Backup | Dynamic | Adapting


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    mode: str  # as plan/catalog.py names it
    way: Way
    settings: str = ""  # in words

    @property
    def label(self) -> str:
        return f"{self.mode} ({self.settings})" if self.settings else self.mode


_WAYS: dict[str, Callable[[StrategyOptions], Way]] = {
    "single": lambda _: Alone(),
    "ssgd": lambda _: Together(Channel.COLLECTIVE),
    "ddp": lambda _: Together(Channel.TORCH),
    "ps": lambda _: Together(Channel.STORE),
    "backup": lambda o: Backup(o.backup_workers),
    "asgd": lambda _: Apart(None),
    "ssp": lambda o: Apart(o.staleness),
    "dssp": lambda o: Dynamic(USUAL_BOUND if o.staleness is None else o.staleness, o.staleness_range),
    "easgd": lambda o: Blocks(o.sync_every),
    "localsgd": lambda o: Local(o.sync_every, o.post_local_after),
    "fedavg": lambda o: Rounds(o.sync_every, o.clients_per_round),
    "diloco": lambda o: Outer(o.sync_every, o.fragments, o.sync_delay),
    "adaptive": lambda o: Adapting(o.adaptive, o.sync_every),
}
KNOWN = frozenset(_WAYS)


def way_of(mode: str, options: StrategyOptions) -> Way:
    """How a mode of the catalog, with these settings, makes its workers agree."""
    assert mode in KNOWN, f"the simulator does not know how {mode} agrees"
    return _WAYS[mode](options)


def candidate_of(mode: str, options: StrategyOptions) -> Candidate:
    return Candidate(mode=mode, way=(way := way_of(mode, options)), settings=_settings(way))


def candidates(options: StrategyOptions, num_workers: int) -> list[Candidate]:
    """Every mode of the catalog that is known, with these settings."""
    options = replace(options, backup_workers=min(options.backup_workers, num_workers - 1))
    return [candidate_of(mode, options) for mode in MODES if mode in KNOWN]


def usual_options(plan: Plan, num_workers: int | None = None) -> StrategyOptions:
    """The plan's settings where its mode reads them, otherwise what `train` would take.

    With another number of workers than the plan's, if one is given.
    """
    reads = (MODES[plan.mode].options if plan.mode in MODES else None) or frozenset()
    spare = usual_backup_workers(num_workers or plan.num_workers)
    return replace(
        plan.strategy,
        backup_workers=plan.strategy.backup_workers if "backup_workers" in reads else spare,
        staleness=plan.strategy.staleness if "staleness" in reads else USUAL_BOUND,
        sync_every=plan.strategy.sync_every if "sync_every" in reads else USUAL_PERIOD,
        staleness_range=plan.strategy.staleness_range if "staleness_range" in reads else USUAL_EXTRA,
    )


def flags_of(candidate: Candidate) -> str:
    """What to give `paceline train`, so that it agrees in this way."""
    match candidate.way:
        case Apart(bound) if candidate.mode == "ssp":
            return f"--mode ssp --staleness {'inf' if bound is None else bound}"
        case Dynamic(low, extra):
            return f"--mode dssp --staleness {low} --staleness-range {extra}"
        case Local(every, after):
            late = f" --post-local-after {after}" if after else ""
            return f"--mode localsgd --sync-every {every}{late}"
        case Backup(spare):
            return f"--mode backup --backup-workers {spare}"
        case Adapting(allowed, every):
            return f"--mode adaptive --adaptive {allowed.value} --sync-every {every}"
        case Blocks(every):
            return f"--mode easgd --sync-every {every}"
        case Rounds(every, part):
            return f"--mode fedavg --sync-every {every} --clients-per-round {part:g}"
        case Outer(every, fragments, delay):
            parts = f" --fragments {fragments}" if fragments > 1 else ""
            return f"--mode diloco --sync-every {every}{parts}{f' --sync-delay {delay}' if delay else ''}"
        case _:
            return f"--mode {candidate.mode}"


def _settings(way: Way) -> str:
    match way:
        case Alone() | Together():
            return ""
        case Adapting(allowed, _):
            return allowed.value
        case Apart(bound):
            return "" if bound is None else f"bound {bound}"
        case Local(every, after):
            return f"H {every}, after {after} steps" if after else f"H {every}"
        case Backup(spare):
            return f"all but {spare}"
        case Blocks(every):
            return f"H {every}"
        case Rounds(every, part):
            return f"H {every}" if part == 1.0 else f"H {every}, {part:.0%} drawn"
        case Outer(every, fragments, _):
            return f"H {every}, {fragments} fragments" if fragments > 1 else f"H {every}"
        case Dynamic(low, extra):
            return f"bound {low} to {low + extra}"
        case _:
            assert_never(way)

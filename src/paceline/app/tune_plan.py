"""What is a search, once it is decided? Trials, each with its plan, and what they are judged by.

`tune.json` is a `Tuning`, and nothing else has to be remembered to go on with a search.
"""

from dataclasses import dataclass

from paceline import __version__
from paceline.plan.catalog import MODES, Channel, server_names
from paceline.plan.plan import Launcher, Plan
from paceline.plan.search_space import Search

SCHEMA = "paceline.tune/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asha:
    """Asynchronous successive halving (Li 2018, arXiv 1810.05934): at each rung one of so many goes on."""

    grace: int = 1  # evaluations before a trial may be stopped
    reduction: float = 3.0
    longest: int = 1  # evaluations of the longest trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    number: int  # from 1
    settings: dict[str, str]  # what was drawn, by name of the search
    file: str  # the config file that would make the same run
    plan: Plan
    cpus: int
    gpus: int

    @property
    def words(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """All that was decided: tune.json."""

    searches: tuple[str, ...]  # names, in the order in which they were written
    metric: tuple[str, ...]  # the first of these that a trial has
    lower_is_better: bool
    asha: Asha | None  # None: every trial runs to its end
    trials: tuple[Trial, ...]
    paceline: str = __version__
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    searches: tuple[Search, ...]
    trials: int | None = None  # None: ten, or as many as there are
    metric: str | None = None  # NAME, NAME:min or NAME:max
    wants_asha: bool | None = None  # None: where it makes sense
    grace: int = 1
    reduction: float = 3.0


def rung_of(plan: Plan, step: int) -> int:
    """How many evaluations are due by this step; the same whether or not the run was resumed on the way."""
    if plan.evaluation is None:
        return 1
    if plan.evaluation.every is not None:
        return max(1, step // plan.evaluation.every)
    assert plan.num_samples is not None, "epochs were counted"
    return max(1, step * plan.global_batch // plan.num_samples)


def cpus_of(plan: Plan) -> int:
    """One for every thread of every participant."""
    if plan.launcher is Launcher.VIRTUAL:
        return plan.threads_per_worker
    has_server = plan.mode in MODES and MODES[plan.mode].channel is Channel.STORE
    servers = len(server_names(plan)) if plan.elastic is not None else int(has_server)
    return (plan.processes + servers) * plan.threads_per_worker

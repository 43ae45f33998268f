"""Simulation profile: step-time models and link costs of a run, from a plan or a recording.

Costs: an all-reduce takes `collective` (or `torch`) after the last worker has
arrived, then every worker applies. Behind a server a gradient takes `push` to
arrive; the server, one request at a time, takes `apply_s` for the update and
`answer_s` for each worker it answers; the answer takes `pull`. `wake_up_s` passes
from then until the worker computes again. Workers that are woken all at once and
share processors take turns: each keeps one for `turn_s` before it sleeps again.

Step times: `Recorded` repeats a run's own steps in their order; after the last it
continues with the second, because the first one warms up. `Resampled` draws from
them, again without the first, in blocks, so that slow phases stay together (a
moving-block bootstrap).

A profile is frozen, and serialized as JSON.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import DamagedRecordError
from paceline.plan.codec import decode, to_json
from paceline.plan.plan import Plan, Transport
from paceline.sync.fault_rules import StragglerRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    latency_s: float = 0.0
    bytes_per_s: float | None = None  # None: size costs nothing

    def transfer_s(self, size_bytes: float) -> float:
        return self.latency_s + (0.0 if self.bytes_per_s is None else size_bytes / self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    collective: Link = field(default_factory=Link)
    torch: Link = field(default_factory=Link)
    push: Link = field(default_factory=Link)
    pull: Link = field(default_factory=Link)
    apply_s: float = 0.0
    answer_s: float = 0.0
    wake_up_s: float = 0.0
    turn_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """A server's costs for one size of gradient, in nanoseconds."""

    push_ns: int  # until a gradient has arrived
    back_ns: int  # from an answer until its worker computes
    apply_ns: int
    answer_ns: int

    @property
    def round_ns(self) -> int:
        """From an answer to the arrival of the next gradient, without its computing."""
        return self.back_ns + self.push_ns


def server_times(costs: Costs, size_bytes: int) -> ServerTimes:
    return ServerTimes(
        push_ns=in_ns(costs.push.transfer_s(size_bytes)),
        back_ns=in_ns(costs.pull.transfer_s(size_bytes) + costs.wake_up_s),
        apply_ns=in_ns(costs.apply_s),
        answer_ns=in_ns(costs.answer_s),
    )


def in_ns(seconds: float) -> int:
    return round(seconds * 1e9)


FREE = Costs()  # as in virtual time: only computing takes time

# From round trips of 4 KB and 100 MB between two processes of one host: good for orders of
# magnitude. A profile made from a recording holds measured costs.
_SHM = Link(latency_s=13e-6, bytes_per_s=5e9)
_GLOO = Link(latency_s=200e-6, bytes_per_s=2e9)
_TCP = Link(latency_s=19e-6, bytes_per_s=1.2e9)
_APPLY_S = 100e-6
_ANSWER_S = 20e-6
_WAKE_UP_S = 200e-6
# A small model's forward and backward, and what is done around them. With steps that mostly sleep, ssgd of 4
# workers on 2 processors took 1.1 ms a step longer than the pace, of 8 workers 2.4 ms.
_TURN_S = 600e-6


def default_costs(store: Transport) -> Costs:
    """Costs on one host: collectives by shared memory, torch by gloo, the store by the given transport."""
    link = _TCP if store is Transport.TCP else _SHM
    return Costs(
        collective=_SHM,
        torch=_GLOO,
        push=link,
        pull=link,
        apply_s=_APPLY_S,
        answer_s=_ANSWER_S,
        wake_up_s=_WAKE_UP_S,
        turn_s=_TURN_S,
    )


def network_costs(link: Link) -> Costs:
    """Costs over a network: every message takes this link. Every worker has its own machine."""
    return Costs(
        collective=link,
        torch=link,
        push=link,
        pull=link,
        apply_s=_APPLY_S,
        answer_s=_ANSWER_S,
        wake_up_s=_WAKE_UP_S,
    )


Seconds: TypeAlias = NDArray[np.float64]
BLOCK = 8  # steps that a resampling keeps together


@dataclass(frozen=True, slots=True)
class Constant:
    step_s: float


@dataclass(frozen=True, slots=True)
class Uniform:
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Exponential:
    mean_s: float


@dataclass(frozen=True, slots=True)
class Lognormal:
    median_s: float
    sigma: float  # of the logarithm


@dataclass(frozen=True, slots=True)
class Recorded:
    steps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Resampled:
    blocks_of_s: tuple[float, ...]  # the recorded steps to take blocks of


StepTimes = Constant | Uniform | Exponential | Lognormal | Recorded | Resampled


def draw_s(
    model: StepTimes, rng: np.random.Generator, shared: np.random.Generator, first: int, count: int
) -> Seconds:
    """The steps first … first+count-1. Both generators have made the draws of exactly the earlier steps.

    `shared` draws the same for every worker: what slowed a whole machine down slows all its workers.
    """
    match model:
        case Constant(step_s):
            return np.full(count, step_s)
        case Uniform(low_s, high_s):
            return rng.uniform(low_s, high_s, count)
        case Exponential(mean_s):
            return rng.exponential(mean_s, count)
        case Lognormal(median_s, sigma):
            return rng.lognormal(np.log(median_s), sigma, count)
        case Recorded(steps_s):
            places = np.arange(first, first + count)
            repeated = places >= len(steps_s)
            places[repeated] = 1 + (places[repeated] - 1) % max(1, len(steps_s) - 1)
            return np.take(np.asarray(steps_s), places, mode="clip")
        case Resampled(blocks_of_s):
            assert first % BLOCK == 0, "whole blocks are drawn"
            warm = np.asarray(blocks_of_s[1:] or blocks_of_s)
            starts = shared.random(-(-count // BLOCK))
            blocks = (starts * len(warm)).astype(np.int64)[:, None] + np.arange(BLOCK)
            return np.take(warm, blocks.reshape(-1)[:count], mode="wrap")
        case _:
            assert_never(model)


def mean_s(model: StepTimes) -> float:
    """The expectation of one step."""
    match model:
        case Constant(step_s):
            return step_s
        case Uniform(low_s, high_s):
            return (low_s + high_s) / 2
        case Exponential(mean):
            return mean
        case Lognormal(median_s, sigma):
            return float(median_s * np.exp(sigma**2 / 2))
        case Recorded(steps) | Resampled(steps):
            return float(np.mean(steps))
        case _:
            assert_never(model)


def spread_around(name: str, mean: float) -> StepTimes:
    """A model with this mean, by its name in SPREADS."""
    match name:
        case "uniform":
            return Uniform(0.5 * mean, 1.5 * mean)
        case "exponential":
            return Exponential(mean)
        case "lognormal":
            return Lognormal(float(mean * np.exp(-0.125)), 0.5)
        case _:
            return Constant(mean)


SPREADS = ("constant", "uniform", "exponential", "lognormal")


PROFILE_SCHEMA = "paceline.profile/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    num_workers: int
    step_times: tuple[StepTimes, ...]  # one per worker, before pace and stragglers
    batch_sizes: tuple[int, ...]  # samples per gradient, one entry per worker
    pace_s: float = 0.0
    stragglers: tuple[StragglerRule, ...] = ()
    parameter_bytes: int = 0  # of the exchanged vector; 0: not known
    starts_at_s: tuple[float, ...] = ()  # when each worker begins; empty: all at once
    costs: Costs = field(default_factory=Costs)
    processors: int | None = None  # that the workers share; None: each has its own
    source: str = "plan"  # where it comes from, for people
    schema: str = PROFILE_SCHEMA

    @property
    def global_batch(self) -> int:
        return sum(self.batch_sizes)

    @property
    def all_wake_s(self) -> float:
        """The time until the last worker computes, when all are woken at once."""
        sharing = 1.0 if self.processors is None else max(1.0, self.num_workers / self.processors)
        return self.costs.wake_up_s + self.costs.turn_s * (sharing - 1)

    @property
    def is_measured(self) -> bool:
        return any(isinstance(model, Recorded | Resampled) for model in self.step_times)


def profile_from_plan(
    plan: Plan, *, costs: Costs | None = None, parameter_bytes: int = 0, processors: int | None = None
) -> Profile:
    """A profile from the plan alone: pace and stragglers, without the time of real compute."""
    return Profile(
        num_workers=plan.num_workers,
        step_times=(Constant(0.0),) * plan.num_workers,
        batch_sizes=plan.batch_sizes,
        pace_s=plan.pace_s,
        stragglers=plan.stragglers,
        parameter_bytes=parameter_bytes,
        costs=default_costs(plan.transport) if costs is None else costs,
        processors=processors,
    )


def with_workers(profile: Profile, num_workers: int) -> Profile:
    """The profile with another number of workers: worker r is like worker r mod N."""
    known = profile.num_workers
    return dataclasses.replace(
        profile,
        num_workers=num_workers,
        step_times=tuple(profile.step_times[r % known] for r in range(num_workers)),
        batch_sizes=tuple(profile.batch_sizes[r % known] for r in range(num_workers)),
        starts_at_s=(),
    )


def resampled(profile: Profile) -> Profile:
    """The profile with recorded steps resampled by seed, as another run might have had them."""

    def shuffled(model: StepTimes) -> StepTimes:
        return Resampled(model.steps_s) if isinstance(model, Recorded) else model

    return dataclasses.replace(profile, step_times=tuple(map(shuffled, profile.step_times)))


def with_step_times(profile: Profile, step_times: Sequence[StepTimes]) -> Profile:
    """The profile with these models instead of its pace; straggler rules stay."""
    return dataclasses.replace(profile, step_times=tuple(step_times), pace_s=0.0)


def dumps(profile: Profile) -> str:
    return json.dumps(to_json(profile), indent=2, sort_keys=True) + "\n"


def loads(text: str, *, where: str = "profile.json") -> Profile:
    try:
        profile = decode(Profile, text, schema=PROFILE_SCHEMA)
    except ValueError as error:
        raise DamagedRecordError(
            f"{where} is not a profile this version can read: {error}",
            "make it again from the run, with this version of paceline",
        ) from error
    assert isinstance(profile, Profile), "decode(Profile, …) builds a Profile"
    return profile

"""Advisor: ranks the modes by predicted time, with reasons and caveats.

Every candidate is simulated with the same draws, so the comparison is of paired
differences, not of two noisy means. A difference is significant if the 90 %
confidence interval of its mean (Student's t) excludes 0 and it is at least 2 % of
the best time: more repeats separate smaller differences. Among the candidates that
do not differ significantly from the best, the simplest mode is advised (least
staleness, fewest parts).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from paceline.simulate.durations import Nanoseconds, matrix
from paceline.simulate.predict import predict
from paceline.simulate.prediction import Prediction
from paceline.simulate.profile import Profile, resampled
from paceline.simulate.strategy_models import (
    Adaptive,
    Asynchronous,
    BackupWorkers,
    Candidate,
    DynamicBound,
    ElasticAveraging,
    FederatedRounds,
    LocalSgd,
    OuterSgd,
    SingleWorker,
    StrategyModel,
    Synchronous,
)

REPEATS = 20
MIN_DIFFERENCE = 0.02  # relative to the best time; a smaller one does not justify a change
_Z = 1.6449  # 90 % of a normal distribution lie within this many standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    candidate: Candidate
    prediction: Prediction  # with the first seed
    mean_s: float
    low_s: float  # 90 % of the seeds lie between low and high
    high_s: float
    regret: float  # mean time beyond the best candidate's, as a share of that
    worse_by_s: tuple[float, float]  # 90 % confidence interval of the mean difference to the best
    is_significant: bool  # False: no significant difference from the best


def compare(
    profile: Profile, candidates: Sequence[Candidate], *, steps: int, seeds: Sequence[int]
) -> list[Compared]:
    """The candidates' predicted times, best first."""
    assert candidates, "there must be something to compare"
    predictions = [[predict(profile, c.model, steps=steps, seed=seed) for seed in seeds] for c in candidates]
    times = np.array([[p.total_s for p in own] for own in predictions])
    means = times.mean(axis=1)
    best = int(means.argmin())
    compared = [
        _compared(candidate, predictions[i][0], times[i], times[best])
        for i, candidate in enumerate(candidates)
    ]
    return sorted(compared, key=lambda c: c.mean_s)


def _compared(
    candidate: Candidate, first: Prediction, times: NDArray[np.float64], best: NDArray[np.float64]
) -> Compared:
    low_s, high_s = np.quantile(times, (0.05, 0.95))
    worse_low, worse_high = _interval(times - best)
    regret = float((times - best).mean() / best.mean()) if best.mean() else 0.0
    is_clear = worse_low > 0 or worse_high < 0
    return Compared(
        candidate=candidate,
        prediction=first,
        mean_s=float(times.mean()),
        low_s=float(low_s),
        high_s=float(high_s),
        regret=regret,
        worse_by_s=(worse_low, worse_high),
        is_significant=bool(is_clear and abs(regret) >= MIN_DIFFERENCE),
    )


def _interval(differences: NDArray[np.float64]) -> tuple[float, float]:
    """The 90 % confidence interval of the mean; unbounded for a single difference."""
    mean = float(differences.mean())
    freedom = len(differences) - 1
    if freedom == 0:
        return -np.inf, np.inf
    # Student's t for 90 %, to the first order in 1/freedom: 1.725 for 20 seeds, where 1.729 is exact.
    t = _Z + (_Z**3 + _Z) / (4 * freedom)
    half = t * float(differences.std(ddof=1)) / len(differences) ** 0.5
    return mean - half, mean + half


LASTING = 1.2  # times as slow as the fastest, at nine of ten steps
SPIKE = 2.0  # times a worker's own median step


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    slow: dict[int, float]  # lasting stragglers: times as slow as the fastest worker
    spikes: float  # share of steps that take more than twice the worker's median


def speeds_of(compute: Nanoseconds) -> Speeds:
    """Lasting stragglers and spikes; `compute` holds workers in rows and steps in columns."""
    medians = np.median(compute, axis=1)
    fastest = max(float(medians.min()), 1.0)
    first_deciles = np.quantile(compute, 0.1, axis=1)
    slow = {
        rank: float(medians[rank]) / fastest
        for rank in range(len(medians))
        if medians[rank] > LASTING * fastest and first_deciles[rank] > LASTING * fastest
    }
    spikes = float((compute > SPIKE * np.maximum(medians, 1.0)[:, None]).mean())
    return Speeds(slow=slow, spikes=spikes)


def describe_speeds(speeds: Speeds) -> list[str]:
    sentences = []
    if speeds.slow:
        each = ", ".join(f"worker {rank} is persistently {x:.1f}x slower" for rank, x in speeds.slow.items())
        sentences.append(f"{each} than the fastest worker")
    if speeds.spikes >= 0.01:
        sentences.append(f"{speeds.spikes:.0%} of all steps take more than twice their worker's median")
    return sentences or ["all workers are about equally fast, at every step"]


# Least staleness and fewest parts first.
_SIMPLEST_FIRST = (
    "single",
    "ssgd",
    "ddp",
    "ps",
    "adaptive",
    "backup",
    "localsgd",
    "fedavg",
    "diloco",
    "ssp",
    "dssp",
    "asgd",
    "easgd",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    compared: Compared
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    advised: Compared
    is_clear: bool  # False: another candidate is not significantly slower
    workers: list[str]  # findings about their speeds
    ranking: list[Ranked]  # best first
    caveats: list[str]


def advise(profile: Profile, candidates: Sequence[Candidate], *, steps: int, seeds: Sequence[int]) -> Advice:
    speeds = speeds_of(matrix(profile, seeds[0], steps + 1)[:, 1:])  # the first step warms up
    compared = compare(resampled(profile), candidates, steps=steps, seeds=seeds)
    ranked = [Ranked(compared=c, reason=_reason(c, profile.num_workers, speeds)) for c in compared]
    level = [r.compared for r in ranked if not r.compared.is_significant]
    advised = min(level, key=lambda c: simplicity(c.candidate.mode))
    return Advice(
        advised=advised,
        is_clear=len(level) == 1,
        workers=describe_speeds(speeds),
        ranking=ranked,
        caveats=[*_no_help(ranked, speeds, profile.num_workers), *_caveats(profile, advised)],
    )


def simplicity(mode: str) -> int:
    """A smaller number is simpler; unknown modes are last."""
    return _SIMPLEST_FIRST.index(mode) if mode in _SIMPLEST_FIRST else len(_SIMPLEST_FIRST)


def _reason(compared: Compared, num_workers: int, speeds: Speeds) -> str:
    waiting = compared.prediction.waiting
    if speeds.slow and num_workers > 1 and (knob := _knob(compared.candidate.model)) is not None:
        return (
            f"no help here: any {knob} keeps ssgd's long-run rate against a persistent straggler,"
            f" {waiting:.0%} waiting"
        )
    match compared.candidate.model:
        case SingleWorker():
            return "one worker computes all gradients, without waiting" if num_workers > 1 else "no waiting"
        case Synchronous():
            return f"every step waits for the slowest: {waiting:.0%} of the workers' time"
        case Asynchronous(None):
            stale = compared.prediction.mean_staleness or 0.0
            return f"no worker waits for others; gradients are {stale:.1f} updates old on average"
        case Asynchronous(bound):
            return f"waits only when {bound} steps ahead of the slowest: {waiting:.0%} of the workers' time"
        case ElasticAveraging(every):
            return f"no worker waits for others; each averages with the centre every {every} steps"
        case FederatedRounds(every, part):
            return f"{part:.0%} of the workers in each round of {every} steps, the others wait: {waiting:.0%}"
        case LocalSgd(every) | OuterSgd(every):
            return f"synchronizes every {every} steps, so transient delays average out: {waiting:.0%} waiting"
        case BackupWorkers(spare):
            lost = compared.prediction.abandoned / compared.prediction.events
            return f"waits for all but {spare}: {lost:.0%} of all steps abandoned, {waiting:.0%} waiting"
        case DynamicBound():
            return f"a bound that follows the workers' speeds: {waiting:.0%} waiting"
        case Adaptive():
            return f"work in proportion to speed, once it is measured: {waiting:.0%} waiting, nothing stale"
        case _:
            assert_never(compared.candidate.model)


def _knob(model: StrategyModel) -> str | None:
    """The setting by which a mode evens out transient delays, although it still waits for the slowest."""
    match model:
        case Asynchronous(int()) | DynamicBound():
            return "bound"
        case LocalSgd() | OuterSgd() | FederatedRounds():
            return "fixed H"
        case _:
            return None


def _no_help(ranked: Sequence[Ranked], speeds: Speeds, num_workers: int) -> list[str]:
    """A caveat that surprises users: bounds and periods do not help against a persistent straggler."""
    useless = [r.compared.candidate.mode for r in ranked if _knob(r.compared.candidate.model) is not None]
    if not speeds.slow or num_workers == 1 or not useless:
        return []
    return [
        f"{', '.join(useless)} do not help against a persistent straggler, whatever the bound or period: "
        "workers that synchronize with the slowest one, however rarely, run at its rate, N / t_max; they "
        "help against transient delays"
    ]


def _caveats(profile: Profile, advised: Compared) -> list[str]:
    caveats = ["throughput is not accuracy: this predicts time for equal samples, not what the model learns"]
    if (stale := advised.prediction.mean_staleness) and stale > 0:
        peers = profile.num_workers - 1
        caveats.append(
            f"{advised.candidate.mode} computes gradients on parameters that are {stale:.1f} updates old on"
            f" average (asgd tends to N-1 = {peers}); compare accuracy before you rely on it"
        )
    if profile.all_wake_s > profile.costs.wake_up_s:
        caveats.append(
            f"{profile.num_workers} workers share {profile.processors} processors: after a barrier all wake "
            f"at once, the last about {profile.all_wake_s * 1e3:.1f} ms later; modes that synchronize at "
            "every step pay for it most"
        )
    if profile.is_measured:
        caveats.append(
            f"step times are those of {profile.source}; links that it did not use are assumed to cost the "
            "same, and workers on shared processors may interfere differently in another mode"
        )
    return caveats

"""Which mode should this user take, and why? A ranking, reasons in words, and what it does not know.

Among those that differ by no more than noise, the one with the least staleness
and the fewest parts is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from paceline.simulate.compare import Compared, compare
from paceline.simulate.durations import matrix
from paceline.simulate.profile import Profile, resampled
from paceline.simulate.speeds import Speeds, in_words, speeds_of
from paceline.simulate.ways import (
    Adapting,
    Alone,
    Apart,
    Backup,
    Blocks,
    Candidate,
    Dynamic,
    Local,
    Outer,
    Rounds,
    Together,
    Way,
)

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
    is_clear: bool  # False: something else does as well, by all that can be told
    workers: list[str]  # what was found about their speeds
    ranking: list[Ranked]  # best first
    caveats: list[str]


def advise(profile: Profile, candidates: Sequence[Candidate], *, steps: int, seeds: Sequence[int]) -> Advice:
    speeds = speeds_of(matrix(profile, seeds[0], steps + 1)[:, 1:])  # the first step warms up
    found = compare(resampled(profile), candidates, steps=steps, seeds=seeds)
    ranked = [Ranked(compared=c, reason=_reason(c, profile.num_workers, speeds)) for c in found]
    level = [r.compared for r in ranked if not r.compared.is_significant]
    advised = min(level, key=lambda c: simplicity(c.candidate.mode))
    return Advice(
        advised=advised,
        is_clear=len(level) == 1,
        workers=in_words(speeds),
        ranking=ranked,
        caveats=[*_no_help(ranked, speeds, profile.num_workers), *_caveats(profile, advised)],
    )


def simplicity(mode: str) -> int:
    """Less is simpler; what is not known comes last."""
    return _SIMPLEST_FIRST.index(mode) if mode in _SIMPLEST_FIRST else len(_SIMPLEST_FIRST)


def _reason(compared: Compared, num_workers: int, speeds: Speeds) -> str:
    waiting = compared.prediction.waiting
    if speeds.slow and num_workers > 1 and (knob := _knob(compared.candidate.way)) is not None:
        return (
            f"no help here: any {knob} keeps ssgd's long-run rate against a lasting straggler,"
            f" {waiting:.0%} waiting"
        )
    match compared.candidate.way:
        case Alone():
            return "one worker makes all gradients, and nobody waits" if num_workers > 1 else "nobody waits"
        case Together():
            return f"every step waits for the slowest: {waiting:.0%} of the workers' time"
        case Apart(None):
            stale = compared.prediction.mean_staleness or 0.0
            return f"nobody waits for others; gradients are {stale:.1f} updates old on average"
        case Apart(bound):
            return f"waits only when {bound} steps ahead of the slowest: {waiting:.0%} of the workers' time"
        case Blocks(every):
            return f"nobody waits for others; each meets the centre every {every} steps"
        case Rounds(every, part):
            return f"{part:.0%} of the workers in each round of {every} steps, the others wait: {waiting:.0%}"
        case Local(every) | Outer(every):
            return f"meets every {every} steps, so passing delays even out: {waiting:.0%} waiting"
        case Backup(spare):
            lost = compared.prediction.abandoned / compared.prediction.events
            return f"waits for all but {spare}: {lost:.0%} of all steps abandoned, {waiting:.0%} waiting"
        case Dynamic():
            return f"a bound that follows the workers' speeds: {waiting:.0%} waiting"
        case Adapting():
            return f"work in proportion to speed, once it is measured: {waiting:.0%} waiting, nothing stale"
        case _:
            assert_never(compared.candidate.way)


def _knob(way: Way) -> str | None:
    """What a mode turns so that passing delays even out, though everybody still meets the slowest."""
    match way:
        case Apart(int()) | Dynamic():
            return "bound"
        case Local() | Outer() | Rounds():
            return "fixed H"
        case _:
            return None


def _no_help(ranked: Sequence[Ranked], speeds: Speeds, num_workers: int) -> list[str]:
    """Said plainly, because it surprises."""
    found = [r.compared.candidate for r in ranked]
    useless = [c.mode for c in found if _knob(c.way) is not None]
    if not speeds.slow or num_workers == 1 or not useless:
        return []
    return [
        f"{', '.join(useless)} do not help against a worker that is always slow, whatever the bound or"
        " period: who must meet the slowest, however rarely, ends at its pace, N / t_max; they help against"
        " passing delays"
    ]


def _caveats(profile: Profile, advised: Compared) -> list[str]:
    caveats = ["throughput is not accuracy: this predicts time for equal samples, not what the model learns"]
    if (stale := advised.prediction.mean_staleness) and stale > 0:
        others = profile.num_workers - 1
        caveats.append(
            f"{advised.candidate.mode} computes gradients on parameters that are {stale:.1f} updates old on"
            f" average (asgd tends to N-1 = {others}); compare accuracy before you rely on it"
        )
    if profile.all_wake_s > profile.costs.wake_up_s:
        caveats.append(
            f"{profile.num_workers} workers share {profile.processors} processors: after a meeting all wake"
            f" at once and take turns, the last about {profile.all_wake_s * 1e3:.1f} ms later; who meets at"
            " every step pays for that most"
        )
    if profile.is_measured:
        caveats.append(
            f"step times are those of {profile.source}; links that it did not use are taken to cost the same,"
            " and workers that shared processors may share them differently in another mode"
        )
    return caveats

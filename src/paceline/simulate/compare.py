"""Which way is faster, and is the difference real? The same work, over many seeds, in pairs.

Every candidate sees the same draws, so what is compared is the difference, not
two noisy means. A difference is only called one if the 90 % confidence interval
of its mean (Student's t) leaves out 0 and it is at least 2 % of the best time:
more repeats tell smaller differences apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.simulate.predict import predict
from paceline.simulate.prediction import Prediction
from paceline.simulate.profile import Profile
from paceline.simulate.ways import Candidate

REPEATS = 20
SMALLEST = 0.02  # of the best time; less than this is not worth a change
_Z = 1.6449  # 90 % of a normal distribution lie within so many standard deviations


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
    """Best first."""
    assert candidates, "there must be something to compare"
    predictions = [[predict(profile, c.way, steps=steps, seed=seed) for seed in seeds] for c in candidates]
    times = np.array([[p.total_s for p in mine] for mine in predictions])
    means = times.mean(axis=1)
    best = int(means.argmin())
    found = [
        _compared(candidate, predictions[i][0], times[i], times[best])
        for i, candidate in enumerate(candidates)
    ]
    return sorted(found, key=lambda c: c.mean_s)


def _compared(
    candidate: Candidate, first: Prediction, mine: NDArray[np.float64], best: NDArray[np.float64]
) -> Compared:
    low_s, high_s = np.quantile(mine, (0.05, 0.95))
    worse_low, worse_high = _interval(mine - best)
    regret = float((mine - best).mean() / best.mean()) if best.mean() else 0.0
    is_clear = worse_low > 0 or worse_high < 0
    return Compared(
        candidate=candidate,
        prediction=first,
        mean_s=float(mine.mean()),
        low_s=float(low_s),
        high_s=float(high_s),
        regret=regret,
        worse_by_s=(worse_low, worse_high),
        is_significant=bool(is_clear and abs(regret) >= SMALLEST),
    )


def _interval(differences: NDArray[np.float64]) -> tuple[float, float]:
    """Where the mean lies with 90 % confidence; one difference alone says nothing about others."""
    mean, freedom = float(differences.mean()), len(differences) - 1
    if freedom == 0:
        return -np.inf, np.inf
    # Student's t for 90 %, to the first order in 1/freedom: 1.725 for 20 seeds, where 1.729 is exact.
    t = _Z + (_Z**3 + _Z) / (4 * freedom)
    half = t * float(differences.std(ddof=1)) / len(differences) ** 0.5
    return mean - half, mean + half

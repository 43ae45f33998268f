"""What would this way of agreeing do with these workers? The simulator's one entry."""

from typing import assert_never

from paceline.simulate.adaptive import adaptive
from paceline.simulate.apart import blocks, bounded, unbounded
from paceline.simulate.first_arrivals import first_arrivals
from paceline.simulate.prediction import Outline, Prediction, predicted
from paceline.simulate.profile import Profile
from paceline.simulate.rounds import rounds
from paceline.simulate.together import alone, local, outer, together
from paceline.simulate.ways import (
    Adapting,
    Alone,
    Apart,
    Backup,
    Blocks,
    Dynamic,
    Local,
    Outer,
    Rounds,
    Together,
    Way,
)
from paceline.sync.dynamic_bound import Controller


def predict(profile: Profile, way: Way, *, steps: int, seed: int) -> Prediction:
    return predicted(outline(profile, way, steps=steps, seed=seed))


def outline(profile: Profile, way: Way, *, steps: int, seed: int) -> Outline:
    """`steps` gradients per worker, or as many shared; with the full order of updates."""
    match way:
        case Alone():
            return alone(profile, steps=steps, seed=seed)
        case Together():
            return together(profile, way, steps=steps, seed=seed)
        case Apart(None):
            return unbounded(profile, steps=steps, seed=seed)
        case Apart(int(bound)):
            return bounded(profile, bound=bound, steps=steps, seed=seed)
        case Local():
            return local(profile, way, steps=steps, seed=seed)
        case Backup(spare):
            return first_arrivals(profile, spare=spare, steps=steps, seed=seed)
        case Outer():
            return outer(profile, way, steps=steps, seed=seed)
        case Blocks(every):
            return blocks(profile, every=every, steps=steps, seed=seed)
        case Rounds():
            return rounds(profile, way, steps=steps, seed=seed)
        case Dynamic(low, extra):
            controller = Controller(extra, profile.num_workers)
            return bounded(profile, bound=low, steps=steps, seed=seed, controller=controller)
        case Adapting(allowed, every):
            return adaptive(profile, allowed=allowed, period=every, steps=steps, seed=seed)
        case Apart():
            raise AssertionError("a bound is a number or None")
        case _:
            assert_never(way)

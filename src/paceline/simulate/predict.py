"""Simulator entry: predicts one strategy model for the workers of a profile."""

from typing import assert_never

from paceline.simulate.adaptive import adaptive
from paceline.simulate.asynchronous import bounded, elastic_averaging, unbounded
from paceline.simulate.backup_workers import first_arrivals
from paceline.simulate.prediction import Outline, Prediction, predicted
from paceline.simulate.profile import Profile
from paceline.simulate.strategy_models import (
    Adaptive,
    Asynchronous,
    BackupWorkers,
    DynamicBound,
    ElasticAveraging,
    FederatedRounds,
    LocalSgd,
    OuterSgd,
    SingleWorker,
    StrategyModel,
    Synchronous,
)
from paceline.simulate.synchronous import federated_rounds, local_sgd, outer_sgd, single_worker, synchronous
from paceline.sync.admission import BoundController


def predict(profile: Profile, model: StrategyModel, *, steps: int, seed: int) -> Prediction:
    return predicted(outline(profile, model, steps=steps, seed=seed))


def outline(profile: Profile, model: StrategyModel, *, steps: int, seed: int) -> Outline:
    """`steps` gradients per worker, or as many shared; with the full order of updates."""
    match model:
        case SingleWorker():
            return single_worker(profile, steps=steps, seed=seed)
        case Synchronous():
            return synchronous(profile, model, steps=steps, seed=seed)
        case Asynchronous(None):
            return unbounded(profile, steps=steps, seed=seed)
        case Asynchronous(int(bound)):
            return bounded(profile, bound=bound, steps=steps, seed=seed)
        case LocalSgd():
            return local_sgd(profile, model, steps=steps, seed=seed)
        case BackupWorkers(spare):
            return first_arrivals(profile, spare=spare, steps=steps, seed=seed)
        case OuterSgd():
            return outer_sgd(profile, model, steps=steps, seed=seed)
        case ElasticAveraging(every):
            return elastic_averaging(profile, every=every, steps=steps, seed=seed)
        case FederatedRounds():
            return federated_rounds(profile, model, steps=steps, seed=seed)
        case DynamicBound(low, extra):
            controller = BoundController(extra, profile.num_workers)
            return bounded(profile, bound=low, steps=steps, seed=seed, controller=controller)
        case Adaptive(allowed, every):
            return adaptive(profile, allowed=allowed, period=every, steps=steps, seed=seed)
        case Asynchronous():
            raise AssertionError("a bound is a number or None")
        case _:
            assert_never(model)

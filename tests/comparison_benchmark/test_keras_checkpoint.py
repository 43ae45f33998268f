"""Checkpoints of a Keras model: what is captured is written, read and restored, without TensorFlow."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.comparison.benchmark.keras_checkpoint import capture, load, restore, restore_callbacks, save


@dataclass
class FakeVariable:
    value: np.ndarray | float

    def numpy(self) -> np.ndarray:
        return np.asarray(self.value)

    def assign(self, value: np.ndarray | float) -> None:
        self.value = value


@dataclass
class FakeOptimizer:
    learning_rate: FakeVariable
    variables: list[FakeVariable]

    def build(self, _variables: object) -> None:
        pass


@dataclass
class FakeModel:
    weights: list[np.ndarray]
    optimizer: FakeOptimizer
    stop_training: bool = False
    trainable_variables: tuple[()] = ()

    def get_weights(self) -> list[np.ndarray]:
        return self.weights

    def set_weights(self, weights: list[np.ndarray]) -> None:
        self.weights = weights


@dataclass
class FakePlateau:
    best: float = float("inf")
    wait: int = 0
    cooldown_counter: int = 0


@dataclass
class FakeStopping:
    best: float = float("inf")
    wait: int = 0
    best_epoch: int = 0
    best_weights: list[np.ndarray] | None = field(default=None)


def model(number: int) -> FakeModel:
    slots = [FakeVariable(np.asarray(number)), FakeVariable(np.full(3, float(number)))]
    optimizer = FakeOptimizer(learning_rate=FakeVariable(0.5**number), variables=slots)
    return FakeModel(
        weights=[np.full((2, 2), float(number)), np.full(2, -float(number))], optimizer=optimizer
    )


def test_a_new_group_of_workers_has_weights_optimizer_rate_and_callbacks_of_the_old(tmp_path: Path) -> None:
    old = model(3)
    best = [np.ones((2, 2)), np.ones(2)]
    plateau, stopping = FakePlateau(0.25, 1, 0), FakeStopping(0.25, 2, 1, best)
    save(capture(old, [plateau, stopping], 3), tmp_path)
    state = load(tmp_path)
    assert (state.epochs, state.is_stopped) == (3, False)
    new = model(0)
    restore(new, state)
    assert all((a == b).all() for a, b in zip(new.weights, old.weights, strict=True))
    slots = zip(new.optimizer.variables, old.optimizer.variables, strict=True)
    assert all(np.array_equal(a.value, b.value) for a, b in slots)
    assert new.optimizer.learning_rate.value == 0.125
    others = [FakePlateau(), FakeStopping()]
    restore_callbacks(others, state)
    assert others[0] == plateau
    kept = others[1]
    assert isinstance(kept, FakeStopping)
    assert (kept.best, kept.wait, kept.best_epoch) == (0.25, 2, 1)
    assert isinstance(kept.wait, int)
    assert kept.best_weights is not None
    assert all((a == b).all() for a, b in zip(kept.best_weights, best, strict=True))


def test_a_state_before_any_best_weights_leaves_none_and_an_end_by_early_stopping_is_kept(
    tmp_path: Path,
) -> None:
    stopped = model(1)
    stopped.stop_training = True
    save(capture(stopped, [FakePlateau(), FakeStopping()], 1), tmp_path)
    state = load(tmp_path)
    assert state.is_stopped
    assert state.callbacks[0]["best"] == float("inf")
    stopping = FakeStopping()
    restore_callbacks([FakePlateau(), stopping], state)
    assert stopping.best_weights is None

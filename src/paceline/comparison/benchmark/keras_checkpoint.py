"""Checkpoints of a Keras model in training: what a new group of workers needs to continue after an epoch.

Weights, the optimizer's variables, the learning rate, and the progress of both callbacks. All workers must
capture a state together, because TensorFlow averages some variables over the workers when they are read; one
of them writes it. Nothing here imports TensorFlow: the model is given.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.plan.codec import Json

Array = NDArray[Any]  # of any type of variable
_ARRAYS = "arrays.npz"
_PROGRESS = "progress.json"
# Attributes of ReduceLROnPlateau and EarlyStopping, which `fit` resets when it begins.
_KEPT = ("best", "wait", "cooldown_counter", "best_epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Training after `epochs` epochs."""

    epochs: int
    is_stopped: bool  # by EarlyStopping
    learning_rate: float
    callbacks: tuple[Mapping[str, float], ...]
    weights: Sequence[Array]
    optimizer: Sequence[Array]
    best_weights: Sequence[Array]  # of EarlyStopping; empty: none yet


def capture(model: Any, callbacks: Sequence[Any], epochs: int) -> State:  # Any: Keras's own
    """The state of this process; every worker must call it after the same epoch."""
    best = [getattr(callback, "best_weights", None) or [] for callback in callbacks]
    return State(
        epochs=epochs,
        is_stopped=bool(model.stop_training),
        learning_rate=float(model.optimizer.learning_rate.numpy()),
        callbacks=tuple(
            {name: float(getattr(callback, name)) for name in _KEPT if hasattr(callback, name)}
            for callback in callbacks
        ),
        weights=model.get_weights(),
        optimizer=[variable.numpy() for variable in model.optimizer.variables],
        best_weights=[array for arrays in best for array in arrays],
    )


def restore(model: Any, state: State) -> None:  # Any: a built Keras model
    """Under the scope of the strategy, before `fit`."""
    model.optimizer.build(model.trainable_variables)
    model.set_weights(state.weights)
    for variable, value in zip(model.optimizer.variables, state.optimizer, strict=True):
        variable.assign(value)
    model.optimizer.learning_rate.assign(state.learning_rate)


def restore_callbacks(callbacks: Sequence[Any], state: State) -> None:  # Any: Keras's own
    """After `fit` has begun, which resets them."""
    for callback, progress in zip(callbacks, state.callbacks, strict=True):
        for name, value in progress.items():
            setattr(callback, name, type(getattr(callback, name))(value))
        if hasattr(callback, "best_weights") and state.best_weights:
            callback.best_weights = list(state.best_weights)


def save(state: State, folder: Path) -> None:
    arrays = {
        f"{group}-{number}": array
        for group, listed in _groups(state).items()
        for number, array in enumerate(listed)
    }
    np.savez(folder / _ARRAYS, **arrays)  # type: ignore[arg-type]  # numpy's stub takes a flag for one of them
    progress: dict[str, Json] = {
        "epochs": state.epochs,
        "is_stopped": state.is_stopped,
        "learning_rate": state.learning_rate,
        "callbacks": [dict(callback) for callback in state.callbacks],
        "counts": {group: len(listed) for group, listed in _groups(state).items()},
    }
    (folder / _PROGRESS).write_text(json.dumps(progress), encoding="utf-8")


def load(folder: Path) -> State:
    progress = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    with np.load(folder / _ARRAYS) as arrays:
        groups = {
            group: [arrays[f"{group}-{number}"] for number in range(count)]
            for group, count in progress["counts"].items()
        }
    return State(
        epochs=progress["epochs"],
        is_stopped=progress["is_stopped"],
        learning_rate=progress["learning_rate"],
        callbacks=tuple(progress["callbacks"]),
        weights=groups["weights"],
        optimizer=groups["optimizer"],
        best_weights=groups["best_weights"],
    )


def _groups(state: State) -> dict[str, Sequence[Array]]:
    return {"weights": state.weights, "optimizer": state.optimizer, "best_weights": state.best_weights}

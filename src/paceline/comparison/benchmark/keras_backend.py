"""TensorFlow and Keras backend of `paceline benchmark keras`; the only importer of both.

The Keras is tf_keras, because the `fit` of Keras 3 does not work under MultiWorkerMirroredStrategy. Baseline
and workers call the same functions; only the strategy differs. TensorFlow is never imported by the command.
"""

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from paceline.comparison.benchmark.keras_checkpoint import State, capture, restore, restore_callbacks
from paceline.comparison.benchmark.keras_data import Part
from paceline.comparison.benchmark.keras_own import Array, OwnFunction
from paceline.comparison.benchmark.keras_schema import KerasSettings
from paceline.core.clock import monotonic_s, unix_now_s
from paceline.core.errors import NotReadyError
from paceline.plan.codec import Json
from paceline.tasks.cifar10.data import CLASSES

EVALUATED_AT_ONCE = 100
PATIENCE = {"rate": 2, "stop": 5}  # epochs without progress before the rate is reduced, and before the end
OnEpoch = Callable[[dict[str, Json], Callable[[], State]], None]  # the second captures a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    means: Sequence[float]
    deviations: Sequence[float]


def prepare(settings: KerasSettings) -> None:
    """Once in a process, before anything else of TensorFlow."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
    tf.config.threading.set_inter_op_parallelism_threads(settings.threads)
    # The same number of GPUs on both sides: more on one of them would decide everything.
    gpus = tf.config.list_physical_devices("GPU")[:1] if settings.use_gpu else []
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if settings.use_gpu and not gpus:
        hint = "install TensorFlow with CUDA (pip install 'tensorflow[and-cuda]'), or leave out --use-gpu"
        raise NotReadyError("TensorFlow finds no GPU that it can use", hint)


def versions() -> dict[str, Json]:
    import tensorflow as tf
    import tf_keras

    return {"tensorflow": str(tf.__version__), "tf_keras": str(tf_keras.__version__)}


def multi_worker_strategy() -> Any:  # Any: TensorFlow's own
    """Strategy over all workers; Ray Train sets their addresses in TF_CONFIG."""
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


def build_model(settings: KerasSettings, normalisation: Normalisation) -> Any:  # Any: a Keras model
    """Three blocks of two convolutions (64, 128, 256 filters), then a dense layer of 512: 3.2M parameters."""
    from tf_keras import Sequential, layers

    scale = [1 / deviation for deviation in normalisation.deviations]
    offset = [-mean * by for mean, by in zip(normalisation.means, scale, strict=True)]
    model = Sequential([layers.Input((32, 32, 3), dtype="uint8"), layers.Rescaling(scale, offset)])
    for filters in (settings.width, 2 * settings.width, 4 * settings.width):
        for _ in range(2):
            # Without a bias: the normalisation has its own.
            model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
            model.add(_normalisation(settings))
            model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
        model.add(layers.Dropout(settings.dropout))
    model.add(layers.Flatten())
    model.add(layers.Dense(8 * settings.width, use_bias=False))
    # Here too: without it, Adam's first steps throw the wide layer far off.
    model.add(_normalisation(settings))
    model.add(layers.ReLU())
    model.add(layers.Dropout(2 * settings.dropout))
    model.add(layers.Dense(CLASSES))
    return model


def compiled_model(settings: KerasSettings, normalisation: Normalisation) -> Any:  # Any: a Keras model
    from tf_keras import losses, optimizers

    if settings.model:
        return own_model(settings)
    model = build_model(settings, normalisation)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizers.Adam(settings.learning_rate), loss=loss, metrics=["accuracy"])
    return model


def own_model(settings: KerasSettings) -> Any:  # Any: a Keras model
    """The compiled model of the user."""
    import tf_keras

    own = OwnFunction(noun="model", path=settings.model, folder=settings.code)
    model = own.call()
    if not isinstance(model, tf_keras.Model):
        kind = f"{type(model).__module__}.{type(model).__name__}"
        hint = "build it with tf_keras: the `fit` of Keras 3 does not work with several workers"
        raise own.error(f"returned {kind}, not a model of tf_keras", hint)
    if model.optimizer is None:
        raise own.error(
            "returned a model that is not compiled", 'call model.compile(…, metrics=["accuracy"])'
        )
    return model


def _normalisation(settings: KerasSettings) -> Any:  # Any: a layer
    from tf_keras.layers import BatchNormalization

    # With Keras' own 0.99 the averages that are used for testing come hundreds of steps late.
    return BatchNormalization(momentum=0.9, synchronized=settings.has_shared_norm)


def train(
    settings: KerasSettings,
    part: Part,
    normalisation: Normalisation,
    on_epoch: OnEpoch,
    *,
    rank: int = 0,
    strategy: Any = None,  # Any: TensorFlow's own; None: this process alone
    state: State | None = None,
) -> dict[str, Json]:
    """Run `model.fit` and `model.evaluate`, from `state` if there is one; returns their results."""
    import tf_keras

    # All workers start from the first worker's weights; what dropout leaves out differs between workers.
    tf_keras.utils.set_random_seed(settings.seed + rank)
    with nullcontext() if strategy is None else strategy.scope():
        model = compiled_model(settings, normalisation)
        if state is not None:
            if not model.built:
                model.build((None, *part.training[0].shape[1:]))
            restore(model, state)
    began_s = monotonic_s()
    busy_s = _processor_s()
    epochs = _fit(model, settings, part, on_epoch, strategy=strategy, state=state)
    fit_s = monotonic_s() - began_s
    busy_s = _processor_s() - busy_s
    test, test_steps = _evaluated_on(part.test, strategy)
    measured = model.evaluate(test, steps=test_steps, return_dict=True, verbose=0)
    return {
        "fit_seconds": fit_s,
        "processor_seconds": busy_s,  # of all threads of this process
        "epochs_completed": epochs,
        **{f"test_{name}": float(value) for name, value in _accuracy_first(measured)},
        "parameters": int(model.count_params()),
        "weights_sha256": _hash_of(model),
    }


def _fit(
    model: Any,  # Any: a Keras model
    settings: KerasSettings,
    part: Part,
    on_epoch: OnEpoch,
    *,
    strategy: Any,  # Any: TensorFlow's own
    state: State | None,
) -> int:
    """Run `model.fit`; the number of epochs, including those before `state`."""
    first = 0 if state is None else state.epochs
    if first >= settings.epochs or (state is not None and state.is_stopped):
        return first  # it was lost after its last epoch
    validation, validation_steps = _evaluated_on(part.validation, strategy)
    callbacks = _default_callbacks()
    done = model.fit(
        _trained_on(part, strategy, first),
        initial_epoch=first,
        epochs=settings.epochs,
        steps_per_epoch=part.steps.shape[1],
        validation_data=validation,
        validation_steps=validation_steps,
        callbacks=[*callbacks, _reporter(on_epoch, callbacks, state)],
        verbose=0,
    )
    return first + len(done.epoch)


def _accuracy_first(measured: Mapping[str, float]) -> list[tuple[str, float]]:
    """In this order they are shown."""
    return sorted(measured.items(), key=lambda item: item[0] != "accuracy")


def _processor_s() -> float:
    used = os.times()
    return used.user + used.system


def _hash_of(model: Any) -> str:  # Any: a Keras model
    """Hash of the trained weights; each worker reads its own copy."""
    hashed = hashlib.sha256()
    for variable in model.trainable_variables:
        hashed.update(variable.numpy().tobytes())
    return hashed.hexdigest()


def _default_callbacks() -> list[Any]:  # Any: Keras's own
    from tf_keras import callbacks

    return [
        callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=PATIENCE["rate"]),
        callbacks.EarlyStopping(monitor="val_loss", patience=PATIENCE["stop"], restore_best_weights=True),
    ]


def _reporter(on_epoch: OnEpoch, others: Sequence[Any], state: State | None) -> Any:  # Any: Keras's own
    from tf_keras.callbacks import Callback

    class Reporter(Callback):  # type: ignore[misc]  # Keras has no types
        """Reports each epoch with its time, of which validation is a part; the last of all callbacks."""

        def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
            if state is not None:
                restore_callbacks(others, state)

        def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
            self.began_s = self.trained_s = monotonic_s()
            self.began_unix_s = unix_now_s()

        def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
            self.trained_s = monotonic_s()

        def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
            ended_s = monotonic_s()
            names = {"lr": "learning_rate"}
            on_epoch(
                {
                    "epoch": epoch + 1,
                    **{names.get(name, name): float(value) for name, value in (logs or {}).items()},
                    "began_unix_s": self.began_unix_s,
                    "seconds": ended_s - self.began_s,
                    "training_seconds": self.trained_s - self.began_s,
                },
                lambda: capture(self.model, others, epoch + 1),
            )

    return Reporter()


def _trained_on(part: Part, strategy: Any, first: int) -> Any:  # Any: TensorFlow's own
    """All steps of the epochs from `first` on in their order, which is decided: nothing is shuffled here."""
    import tensorflow as tf

    images, labels = (tf.constant(column) for column in part.training)
    batches = part.steps[first:].reshape(-1, part.steps.shape[2])

    def make_data(_: object = None) -> Any:  # Any: TensorFlow's own
        rows = tf.data.Dataset.from_tensor_slices(batches)
        return _own_threads(
            rows.map(lambda row: (tf.gather(images, row), tf.gather(labels, row))).prefetch(2)
        )

    return make_data() if strategy is None else strategy.distribute_datasets_from_function(make_data)


def _evaluated_on(of: tuple[Array, Array], strategy: Any) -> tuple[Any, int]:  # Any: TensorFlow's own
    """These images once, and again: Keras continues where it was when it looks the next time."""
    import tensorflow as tf

    def make_data(_: object = None) -> Any:  # Any: TensorFlow's own
        return _own_threads(tf.data.Dataset.from_tensor_slices(of).batch(EVALUATED_AT_ONCE).repeat())

    steps = math.ceil(len(of[0]) / EVALUATED_AT_ONCE)
    return (make_data() if strategy is None else strategy.distribute_datasets_from_function(make_data)), steps


def _own_threads(dataset: Any) -> Any:  # Any: TensorFlow's own
    """One thread reads: what is measured is training, on as many threads as were said."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False
    return dataset.with_options(options)

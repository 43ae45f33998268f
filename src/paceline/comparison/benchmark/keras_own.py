"""A user's own model and data for `paceline benchmark keras`, named as `module:function`.

`--model` names a function without arguments that returns a compiled model of tf_keras. It is called in every
process; in workers under the scope of their strategy, so all its variables are mirrored.

`--dataset` names a function without arguments that returns ((x_train, y_train), (x_test, y_test)), as the
`load_data` of Keras' data sets does. It is called in the process of each side, never in a worker.

Errors name the file and line of the user. See docs/guides/benchmark.md#your-own-model-and-data.
"""

import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError, OwnClassError, Problem
from paceline.core.user_code import in_one_line, raised_at
from paceline.tasks.cifar10.data import CLASSES

Array = NDArray[Any]  # of any type that TensorFlow takes
IMAGE = (32, 32, 3)
GUIDE = "docs/guides/benchmark.md#your-own-model-and-data"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFunction:
    noun: str  # model or dataset
    path: str  # module:function
    folder: str  # where the module is looked for first

    def check(self) -> Iterator[Problem]:
        """Problems that are visible without an import."""
        module, _, name = self.path.partition(":")
        where = f"--{self.noun}"
        if not module or not name:
            message = f"{self.noun} is {self.path!r}, but it must be module:function"
            yield Problem(message, f"write for example --{self.noun} mine:{self.noun}", where)
            return
        top = module.partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(top, [self.folder, *sys.path]) is None:
            message = f"there is no module {top!r} in {self.folder}, and none is installed"
            yield Problem(message, f"run from the folder that holds {top}.py", where)

    def load(self) -> Callable[[], Any]:  # Any: what the function returns is checked by its caller
        module, _, name = self.path.partition(":")
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        try:
            function = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
            raise self._failed("cannot be loaded", error) from error
        if not callable(function):
            raise self.error(f"is of type {type(function).__name__}, not a function", "name a function")
        return function  # type: ignore[no-any-return]  # callable is all that is known of the user's object

    def call(self) -> Any:  # Any: as above
        function = self.load()
        try:
            return function()
        except (Exception, SystemExit) as error:
            raise self._failed("failed", error) from error

    def error(self, what: str, hint: str) -> OwnClassError:
        return OwnClassError([Problem(f"{self.noun} {self.path} {what}", hint)])

    def _failed(self, what: str, error: BaseException) -> OwnClassError:
        place = raised_at(error)
        return self.error(
            f"{what}: {in_one_line(error)} ({place})",
            "fix the function; the log of the run has the whole traceback",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Training and test samples with their labels; a sample is a row of the first axis."""

    training: tuple[Array, Array]
    test: tuple[Array, Array]

    @classmethod
    def of(cls, value: Any, own: OwnFunction) -> Self:  # Any: what the user's function returned
        try:
            (x_train, y_train), (x_test, y_test) = value
            training = np.asarray(x_train), np.asarray(y_train)
            test = np.asarray(x_test), np.asarray(y_test)
        except (TypeError, ValueError) as error:
            what = f"returned {type(value).__name__}, not ((x_train, y_train), (x_test, y_test))"
            raise own.error(what, f"return two pairs of arrays; see {GUIDE}") from error
        for name, (samples, labels) in (("training", training), ("test", test)):
            rows = len(np.atleast_1d(samples))
            labelled = len(np.atleast_1d(labels))
            if rows != labelled:
                what = f"returned {rows} {name} samples with {labelled} labels"
                raise own.error(what, "return one label for each sample")
        return cls(training=training, test=test)

    def first(self, training: int | None, test: int | None) -> "Arrays":
        """That many of each; None: all."""
        return Arrays(
            training=(self.training[0][:training], self.training[1][:training]),
            test=(self.test[0][:test], self.test[1][:test]),
        )

    def check_images(self, own: OwnFunction) -> None:
        """OwnClassError unless the built-in network can be trained on them."""
        samples, labels = self.training
        if samples.shape[1:] != IMAGE or samples.dtype != np.uint8:
            shape = " x ".join(map(str, samples.shape[1:])) or "scalar"
            what = f"has samples of {shape} {samples.dtype}, but the built-in model needs 32 x 32 x 3 uint8"
            raise own.error(what, "name your own model, too:  --model module:function")
        if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < CLASSES:
            what = f"has labels from {labels.min()} to {labels.max()}, but the built-in model has {CLASSES}"
            what += " classes"
            raise own.error(what, "name your own model, too:  --model module:function")


def check_own(functions: list[OwnFunction]) -> None:
    """ConfigError with all problems of these names, before anything starts."""
    problems = [problem for function in functions for problem in function.check()]
    if problems:
        raise ConfigError(problems)

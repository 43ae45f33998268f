"""`paceline.join`: a training script with a loop of its own becomes a worker of a run.

    run = paceline.join()
    model, optimizer, loader, scheduler = run.prepare(model, optimizer, loader, scheduler)
    for epoch in run.epochs(30):
        for x, y in loader:
            run.backward(loss_fn(model(x), y))
            optimizer.step()
            scheduler.step()

`python script.py` is one worker that trains alone. `paceline run --mode ssgd --num-workers 4 script.py`
starts the same file four times. See docs/guides/your-own-script.md.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, overload

import torch
from torch import Tensor, nn

from paceline.core import environ
from paceline.core.errors import script_error
from paceline.worker.script.facts import ScriptFile
from paceline.worker.script.hosts import AloneHost
from paceline.worker.script.kept import Kept
from paceline.worker.script.session import ScriptSession


class Run:
    """The run that this script is a worker of. `paceline.join()` returns it."""

    def __init__(self, session: ScriptSession) -> None:
        self._session = session

    def prepare(
        self,
        *objects: Any,  # Any: as given
        accumulate: int = 1,
        batch: str = "global",
        after_update: Callable[[], object] | None = None,
    ) -> Any:  # Any: as given
        """Hand the objects of the training over to the run.

        Arguments:

        - `objects`: modules, optimizers, their schedulers, a GradScaler, and the DataLoader of the
          training data.
          Optimizers in a list step together; others step in turn, as those of a GAN.
        - `accumulate`: batches whose gradients are added for one `optimizer.step()`.
        - `batch`: whose batch the loader's `batch_size` is: that of the whole run ("global"), which its
          workers share, or that of each worker ("per-worker").
        - `after_update`: called after each update of the model, wherever it is made: in every worker, or
          in the
          server. It may change parameters, and objects given to `keep`.

        Returns the same objects in the same order, and the loader of this worker instead of the loader.

        Raises ConfigError for what cannot compute what the unchanged script computes.
        """
        prepared = self._session.prepare(
            objects, accumulate=accumulate, batch=batch, after_update=after_update
        )
        return prepared[0] if len(prepared) == 1 else prepared

    @overload
    def epochs(self, stop: int, /) -> Iterator[int]: ...

    @overload
    def epochs(self, start: int, stop: int, /) -> Iterator[int]: ...

    def epochs(self, *bounds: int) -> Iterator[int]:
        """Like `range(stop)` or `range(start, stop)`, from the epoch in which the run stands.

        An epoch ends with the step that has its last sample.
        """
        numbers = range(*bounds)
        return (numbers[epoch] for epoch in self._session.epochs(len(numbers)))

    def steps(self, count: int) -> Iterator[int]:
        """Like `range(count)`, for loops over steps: the steps whose shares this worker computes."""
        return self._session.steps(count)

    def share(self, count: int) -> int:
        """This worker's part of `count` samples, for loops that draw their samples without a loader.

        Random numbers drawn in a step are those of its share: torch, `random` and numpy are seeded for it.
        Samples that are drawn under `torch.no_grad()`, to evaluate, do not count as samples of the step.
        """
        return self._session.share(count)

    def backward(self, loss: Tensor, weight: float | None = None) -> None:
        """`loss.backward()`, and the loss is recorded. The loss is a mean over the samples of the batch.

        `weight`: how much this loss counts in the mean over micro-batches and workers, such as the number of
        tokens that it is a mean over. Without weights the losses of micro-batches are added, and the workers
        count equally.
        """
        self._session.backward(loss, weight)

    def turn(self) -> AbstractContextManager[None]:
        """A block of forward, backward and `optimizer.step()` that a step which comes too late leaves early.

        In mode backup, a late step is noticed at `optimizer.step()`; in this block before each forward and
        backward, too. It has no effect either way, and `run.committed` is False after it.
        """
        return self._session.turn()

    @property
    def needs_weights(self) -> bool:
        """Whether the present step has several shares of equal size, whose losses may count unequally."""
        return self._session.needs_weights

    def clip_grad_norm_(self, parameters: Iterable[nn.Parameter] | nn.Parameter, max_norm: float) -> Tensor:
        """Clip the gradient on which the workers agree, by its norm, within `optimizer.step()`.

        Returns the norm before clipping: a tensor that has its value after `optimizer.step()`. In modes
        whose server makes the update it stays 0.
        """
        return self._session.clip(parameters, max_norm, by_norm=True)

    def clip_grad_value_(self, parameters: Iterable[nn.Parameter] | nn.Parameter, clip_value: float) -> None:
        """Clip every entry of the gradient on which the workers agree, within `optimizer.step()`."""
        self._session.clip(parameters, clip_value, by_norm=False)

    def skip(self) -> None:
        """Let the present batch count as a gradient of zero, instead of `backward` and `optimizer.step()`.

        Momentum and weight decay still act. With `accumulate`, the last batch of a step ends the step.
        """
        self._session.skip()

    @property
    def state(self) -> dict[str, Any]:  # Any: tensors and plain values
        """Values that are saved with the model, and are here again in a resumed run."""
        return self._session.kept.values

    def keep(self, name: str, kept: Kept) -> Kept:
        """Save this object with the model, and restore it in a resumed run and in a replaced worker.

        It has `state_dict` and `load_state_dict` of tensors and plain values. Returns the object.
        """
        self._session.keep(name, kept)
        return kept

    def on_commit(self, fn: Callable[[int], object]) -> None:
        """Call `fn` after each step that no loss of a worker can undo, with the number of steps of the run.

        In elastic runs every worker calls it, also one that had no share of the step; in modes that average
        every few steps, once for each averaging.
        """
        self._session.commit_calls.append(fn)

    def mean(self, value: Any) -> Any:  # Any: a number, a tensor, or a dict of these
        """The mean of `value` over all workers, the same in each. All workers must call it."""
        return self._session.meeting_for("run.mean").mean(value)

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all workers, one after another along the first dimension, without padding."""
        return self._session.meeting_for("run.gather").gather(tensor)

    def split(self, loader: Iterable[Any]) -> Iterator[Any]:  # Any: batches
        """This worker's part of the batches of a loader that was not prepared."""
        return self._session.meeting_for("run.split").split(loader)

    def evaluate(self, fn: Callable[[Any], Any], loader: Iterable[Any]) -> Any:  # Any: a batch; numbers
        """The mean of `fn(batch)`, a number or a dict of numbers, over the samples of a loader.

        The prepared modules are in evaluation mode, and no gradients are recorded. The workers share the
        batches
        where all of them make the same steps; elsewhere (elastic runs, servers) each evaluates all batches.
        """
        return self._session.evaluate(fn, loader)

    def log(self, **numbers: float) -> None:
        """Record numbers of this step under their names, like `paceline.metric`."""
        self._session.log(numbers)

    def stop(self, reason: str = "") -> None:
        """End the run early: all workers leave their loops after the same step."""
        self._session.host.request_stop(reason)

    @property
    def step(self) -> int:
        """The step of the run that the present batch belongs to."""
        return self._session.step

    @property
    def epoch(self) -> int:
        """The epoch of the run that the present batch belongs to; the first is 0."""
        return self._session.epoch

    @property
    def committed(self) -> bool:
        """Whether the last `optimizer.step()` had an effect; False for a step that came too late."""
        return self._session.committed

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped early, by `run.stop` or by Ctrl-C."""
        return self._session.is_stopped

    @property
    def has_every_step(self) -> bool:
        """Whether this worker has one share of each step: not in first-come modes or elastic runs."""
        return self._session.has_every_step

    @property
    def is_main(self) -> bool:
        """Whether this worker is the one that saves files and prints."""
        return self._session.host.rank == 0

    @property
    def rank(self) -> int:
        """The number of this worker. Data must not depend on it."""
        return max(0, self._session.host.rank)

    @property
    def seed(self) -> int:
        """The seed of the run, the same for every worker."""
        return self._session.host.seed

    @property
    def device(self) -> torch.device:
        """The device of this worker."""
        return self._session.host.device

    @property
    def dir(self) -> Path:
        """The folder of the run; without a launcher, the current folder."""
        return self._session.host.run_dir()


def join() -> Run:
    """Make this script a worker of the run that started it.

    Without a launcher (`python script.py`) the script is the only worker, in mode single, and leaves no run
    folder. Under torchrun each process is a worker: settings are PACELINE_* variables, such as PACELINE_MODE,
    and the file that PACELINE_CONFIG names; the lines before this call are executed twice.
    """
    return Run(_joined_session())


class _Current(threading.local):
    session: ScriptSession | None = None


_CURRENT = _Current()


def enter(session: ScriptSession | None) -> None:
    """Scripts that this thread runs from now on belong to this session."""
    _CURRENT.session = session


def _become_rank(file: ScriptFile) -> NoReturn:
    """Start this process again as a rank of torchrun, which runs the file (cli/torchrun_worker.py).

    The process is the one that torchrun waits for; what the script has allocated before is free.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        raise script_error(
            "E120",
            f"torchrun started the module {spec.name}, and only files can join a run",
            f"start its file:  torchrun … {file.path}",
        )
    config = environ.config_file()
    settings = [] if config is None else ["--config", str(config)]
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", "paceline.worker", *settings, file.path, *file.arguments]
    os.execv(sys.executable, command)


def _joined_session() -> ScriptSession:
    """The session of this script; a new one, without a launcher, where Python started it."""
    if _CURRENT.session is None:
        path = getattr(sys.modules["__main__"], "__file__", None) or "script.py"
        script = str(Path(path).absolute())
        file = ScriptFile(path=script, arguments=tuple(sys.argv[1:]), folder=str(Path.cwd()))
        if "RANK" in environ.torchrun_variables():
            _become_rank(file)
        _CURRENT.session = ScriptSession(AloneHost(file))
    return _CURRENT.session

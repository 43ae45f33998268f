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

import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.worker.script.facts import ScriptFile
from paceline.worker.script.hosts import AloneHost
from paceline.worker.script.session import ScriptSession


class Run:
    """The run that this script is a worker of. `paceline.join()` returns it."""

    def __init__(self, session: ScriptSession) -> None:
        self._session = session

    def prepare(self, *objects: Any, accumulate: int = 1, batch: str = "global") -> Any:  # Any: as given
        """Hand the objects of the training over to the run.

        Arguments:

        - `objects`: modules, one optimizer, its scheduler, and the DataLoader of the training data.
        - `accumulate`: batches whose gradients are added for one `optimizer.step()`.
        - `batch`: whose batch the loader's `batch_size` is: that of the whole run ("global"), which its
          workers share, or that of each worker ("per-worker").

        Returns the same objects in the same order, and the loader of this worker instead of the loader.

        Raises ConfigError for what cannot compute what the unchanged script computes.
        """
        prepared = self._session.prepare(objects, accumulate=accumulate, batch=batch)
        return prepared[0] if len(prepared) == 1 else prepared

    def epochs(self, count: int) -> Iterator[int]:
        """Like `range(count)`, from the epoch in which the run stands.

        An epoch ends with the step that has its last sample.
        """
        return self._session.epochs(count)

    def steps(self, count: int) -> Iterator[int]:
        """Like `range(count)`, for loops over steps: the steps whose shares this worker computes."""
        return self._session.steps(count)

    def share(self, count: int) -> int:
        """This worker's part of `count` samples, for loops that draw their samples without a loader.

        Random numbers drawn in a step are those of its share: torch, `random` and numpy are seeded for it.
        """
        return self._session.share(count)

    def backward(self, loss: Tensor) -> None:
        """`loss.backward()`, and the loss is recorded. The loss is a mean over the samples of the batch."""
        self._session.backward(loss)

    def clip_grad_norm_(self, parameters: Iterable[nn.Parameter] | nn.Parameter, max_norm: float) -> Tensor:
        """Clip the gradient on which the workers agree, by its norm, within `optimizer.step()`.

        Returns the norm before clipping: a tensor that has its value after `optimizer.step()`. In modes
        whose server makes the update it stays 0.
        """
        return self._session.clip(parameters, max_norm, by_norm=True)

    def clip_grad_value_(self, parameters: Iterable[nn.Parameter] | nn.Parameter, clip_value: float) -> None:
        """Clip every entry of the gradient on which the workers agree, within `optimizer.step()`."""
        self._session.clip(parameters, clip_value, by_norm=False)

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
        """The epoch of the run that the present batch belongs to."""
        return self._session.epoch

    @property
    def committed(self) -> bool:
        """Whether the last `optimizer.step()` had an effect; False for a step that came too late."""
        return self._session.committed

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped early, by `run.stop` or by Ctrl-C."""
        return self._session.was_stopped

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
    folder.
    """
    return Run(_joined_session())


class _Current(threading.local):
    session: ScriptSession | None = None


_CURRENT = _Current()


def enter(session: ScriptSession | None) -> None:
    """Scripts that this thread runs from now on belong to this session."""
    _CURRENT.session = session


def _joined_session() -> ScriptSession:
    """The session of this script; a new one, without a launcher, where Python started it."""
    if _CURRENT.session is None:
        path = getattr(sys.modules["__main__"], "__file__", None) or "script.py"
        file = ScriptFile(
            path=str(Path(path).resolve()), arguments=tuple(sys.argv[1:]), folder=str(Path.cwd())
        )
        _CURRENT.session = ScriptSession(AloneHost(file))
    return _CURRENT.session

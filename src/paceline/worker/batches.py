"""Batches of a worker's work units, loaded ahead by loader processes where the samples request it.

Samples with `num_workers` above 0 are loaded by that number of processes
(torch's DataLoader). They prepare the batches of the shares that this worker
will most likely do next while it computes. A wrong prediction costs only time:
the batch of a share depends on the plan and the share alone, because random
numbers drawn while it is loaded (torch, numpy, `random`) are seeded from them.
So positions, replays and resumed runs are the same with and without loaders.

Once loader processes exist, the worker process reads no samples: a file that
both have inherited open has one shared position.
"""

import random
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from paceline.core.errors import PacelineError, TrainingError
from paceline.core.processes import die_with_parent
from paceline.core.user_code import in_one_line, raised_at
from paceline.plan.plan import Plan
from paceline.sync.assignment import SampleSlice, WorkUnit
from paceline.sync.rng import draw_u64
from paceline.sync.samples import Indices, SampleStream
from paceline.tasks.port import Batch, Samples
from paceline.tasks.torch_adapters import DatasetSamples
from paceline.worker.reporting import TERMINATING_ERRORS

_DATA = 0xDA7A  # so that a batch and the forward pass of its share draw different numbers
MISSES = 3  # wrong guesses in a row after which none are made, until some would have been right


class Piece(NamedTuple):
    """One batch: a share, or one of the parts of a share whose gradient is accumulated."""

    share: WorkUnit
    part: int


class Request(NamedTuple):
    """Request to a loader process."""

    seed: int
    indices: Indices


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer of a loader process when the user's code raised an exception."""

    what: str
    trace: str


class Feed:
    def __init__(
        self, plan: Plan, samples: Samples, stream: SampleStream, *, ahead: bool, pins: bool
    ) -> None:
        self._plan = plan
        self._samples = samples
        self._stream = stream
        num_workers = int(getattr(samples, "num_workers", 0))
        # These samples may draw random numbers in another process, so they are seeded in every process.
        self._is_seeded = isinstance(samples, DatasetSamples) or num_workers > 0
        self._loader = (
            _Loader(samples, num_workers, self._request, plan, pins=pins) if ahead and num_workers else None
        )

    def batches(self, share: WorkUnit) -> Iterator[tuple[Batch, int]]:
        """The batches of a share with their sizes, in order; several if its gradient is accumulated."""
        parts = self._parts(share)
        if self._loader is not None:
            self._loader.begin(share, len(parts))
        for number, indices in enumerate(parts):
            piece = Piece(share, number)
            if self._loader is not None:
                yield self._loader.take(piece), len(indices)
            elif self._is_seeded:
                yield _undisturbed(self._samples, self._request(piece)), len(indices)
            else:
                yield self._samples.batch(indices), len(indices)

    def _parts(self, share: WorkUnit) -> list[Indices]:
        indices = self._stream.take(*share.samples(self._plan.batch_sizes))
        if self._plan.grad_accumulation == 1:
            return [indices]
        return [part for part in np.array_split(indices, self._plan.grad_accumulation) if len(part)]

    def _request(self, piece: Piece) -> Request:
        share, number = piece
        seed = draw_u64(self._plan.seed, share.rank, share.step, number, _DATA)
        return Request(seed, self._parts(share)[number])


class _Loader:
    """Loader processes, and the requests that they have not answered yet, in their order."""

    def __init__(
        self,
        samples: Samples,
        num_workers: int,
        request: Callable[[Piece], Request],
        plan: Plan,
        *,
        pins: bool,
    ) -> None:
        self._guess = SharePredictor(plan.steps, plan.global_batch)
        self._request = request
        self._pending: deque[Piece | None] = deque()
        self._cursor: Piece | None = None  # the next request; None: no request is predicted
        self._num_parts = 1
        settings = getattr(samples, "loader", None)
        self._loader: DataLoader[Any] = DataLoader(  # Any: batches
            _RequestDataset(samples),
            batch_size=None,
            sampler=_RequestSampler(self._next_request),
            num_workers=num_workers,
            collate_fn=_identity_collate,
            pin_memory=pins and bool(getattr(settings, "pin_memory", False)),
            timeout=getattr(settings, "timeout", 0),
            prefetch_factor=getattr(settings, "prefetch_factor", None) or 2,
            multiprocessing_context=getattr(settings, "multiprocessing_context", None) or "fork",
            worker_init_fn=_LoaderInit(getattr(settings, "worker_init_fn", None)),
            generator=torch.Generator(),  # else it draws from the one that the forward pass uses
        )
        self._answers: Iterator[Any] | None = None  # begins with the first share; Any: batches

    def begin(self, share: WorkUnit, num_parts: int) -> None:
        self._guess.saw(share)
        self._num_parts = num_parts

    def take(self, piece: Piece) -> Batch:
        if piece not in self._pending:
            self._cursor = piece
        if self._answers is None:
            self._answers = iter(self._loader)
        while True:
            request = self._pending.popleft()
            answer = next(self._answers)
            if request == piece:
                return _whole(answer)

    def _next_request(self) -> Request | None:
        """The next request for the loader processes; None while there is none."""
        piece = self._cursor
        self._pending.append(piece)
        if piece is None:
            return None
        self._cursor = self._after(piece)
        return self._request(piece)

    def _after(self, piece: Piece) -> Piece | None:
        if piece.part + 1 < self._num_parts:
            return Piece(piece.share, piece.part + 1)
        share = self._guess.after(piece.share)
        return None if share is None else Piece(share, 0)


class SharePredictor:
    """Predicts a worker's next work unit from what followed a unit of the same rank before."""

    def __init__(self, steps: int, global_batch: int) -> None:
        self._steps = steps
        self._global_batch = global_batch
        self._followed: dict[int, tuple[int, int]] = {}  # rank: the rank after it, and how many steps later
        self._last: WorkUnit | None = None
        self._misses = 0

    def saw(self, share: WorkUnit) -> None:
        if self._last is not None:
            is_right = self._expected(self._last) == share
            self._misses = 0 if is_right else self._misses + 1
            self._followed[self._last.rank] = share.rank, share.step - self._last.step
        self._last = share

    def after(self, share: WorkUnit) -> WorkUnit | None:
        """The next predicted request; None without one, or after too many wrong predictions."""
        expected = self._expected(share)
        return None if expected.step >= self._steps or self._misses >= MISSES else expected

    def _expected(self, share: WorkUnit) -> WorkUnit:
        rank, later = self._followed.get(share.rank, (share.rank, 1))
        cut = share.cut
        if cut is not None:
            cut = SampleSlice(cut.start + later * self._global_batch, cut.count)
        return WorkUnit(rank, share.step + later, cut)


class _RequestDataset(Dataset[Any]):  # Any: batches
    """Dataset of a loader process: loads the batch of a request."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __getitem__(self, request: Request | None) -> "Batch | Failed | None":
        if request is None:
            return None
        try:
            seed_generators(request.seed)
            return self._samples.batch(request.indices)
        except TERMINATING_ERRORS as error:
            description = (
                error.what
                if isinstance(error, PacelineError)
                else f"{in_one_line(error)} ({raised_at(error)})"
            )
            return Failed(description, "".join(traceback.format_exception(error)))


class _RequestSampler(Sampler[Any]):  # Any: requests
    def __init__(self, next_request: Callable[[], Request | None]) -> None:
        self._next_request = next_request

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._next_request()


class _LoaderInit:
    """Start of a loader process: it must end with its worker, whose connections it inherits open."""

    def __init__(self, also: Callable[[int], None] | None) -> None:
        self._also = also

    def __call__(self, number: int) -> None:
        die_with_parent()
        if self._also is not None:
            self._also(number)


def _identity_collate(batch: Any) -> Any:  # Any: batches
    return batch


def _whole(answer: Any) -> Batch:  # Any: a batch, or why there is none
    if isinstance(answer, Failed):
        print(answer.trace, flush=True)  # into the worker's log
        raise TrainingError(answer.what, "the traceback is in the worker's log, under RUN/logs")
    batch: Batch = answer
    return batch


def _undisturbed(samples: Samples, request: Request) -> Batch:
    """Load the same batch as a loader process would; the generators of this process are restored."""
    with undisturbed_generators():
        seed_generators(request.seed)
        return samples.batch(request.indices)


@contextmanager
def undisturbed_generators() -> Iterator[None]:
    """Random numbers drawn inside do not change those drawn afterwards: torch (CPU), `random` and numpy."""
    before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


def seed_generators(seed: int) -> None:
    """Seed the generators of torch (CPU), `random` and numpy."""
    torch.default_generator.manual_seed(seed >> 1)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)

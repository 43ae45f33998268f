"""Trials of a training script: shares that are computed again, without an update (`paceline check`).

After the probe's step the host hands out the first share some more times. Each time it begins with the same
parameters and buffers, and the step counts as abandoned, as for a late worker in mode backup:

    twice        equal bits: a share that is lost with a worker can be made again (elastic runs, replay)
    in halves    the loss of a batch is the mean of its halves': workers may divide it (all modes but single)

A batch is divided while BatchNorm and dropout are switched off, since both depend on the other samples of a
batch, or on random numbers. A loss that still draws random numbers is recognized by a third trial of the
whole batch under another seed; of such a loss only a sum over the samples is found.
"""

import hashlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from paceline.plan.plan import Plan
from paceline.sync.assignment import SampleSlice, WorkUnit
from paceline.tasks.port import Batch
from paceline.tasks.script import ScriptParts
from paceline.worker.loop import Computation, StepEnd, Steps
from paceline.worker.replica import Replica
from paceline.worker.script.data import ScriptSource
from paceline.worker.script.facts import ScriptFacts
from paceline.worker.script.hosts import AloneHost, ProbeHost
from paceline.worker.script.port import OpenLoop, ScriptDoneError

TOLERANCE = 1e-4  # of float32 sums in another order, relative to the loss


class Repeated(StrEnum):
    """What a share is that was computed twice."""

    EQUAL = "equal"
    OTHER_DATA = "other data"
    OTHER_LOSS = "other loss"
    OTHER_GRADIENT = "other gradient"


class Halved(StrEnum):
    """What the loss of a batch is, compared with the losses of its halves."""

    MEAN = "mean"
    SUM = "sum"
    NEITHER = "neither"
    RANDOM = "random"  # it cannot be compared: another seed gives another loss
    NO_LOADER = "no loader"  # the script draws its samples itself
    ONE_SAMPLE = "one sample"


class _Trial(NamedTuple):
    loss: float
    gradient: Tensor
    data: str  # digest of the batches


class TrialHost(ProbeHost):
    """One step alone, then the trials; then the script ends."""

    repeated = Repeated.EQUAL
    halved = Halved.NO_LOADER
    has_batch_statistics = False  # the model has BatchNorm
    model = ""  # class of what was prepared; several are listed
    num_parameters = 0  # that are trained

    def open_loop(self, parts: ScriptParts, facts: ScriptFacts) -> OpenLoop:
        modules = parts.module if isinstance(parts.module, nn.ModuleList) else [parts.module]
        self.model = ", ".join(type(module).__name__ for module in modules)
        self.num_parameters = sum(p.numel() for p in parts.module.parameters() if p.requires_grad)
        self._batches = _WatchedBatches()
        opened = super().open_loop(parts, facts)
        self._batches.watch(opened.source)
        return opened

    def _resolve(self, facts: ScriptFacts) -> Plan:
        super()._resolve(facts)  # refuses what the workers of a run could not share
        return AloneHost._resolve(self, facts)  # the batch of a step is not divided here

    def _one_step(self, steps: Steps[object]) -> Steps[object]:
        first = None
        probed = super()._one_step(steps)
        try:
            event = next(probed)
            while True:
                first = event if isinstance(event, Computation) else first
                event = probed.send((yield event))
        except ScriptDoneError:
            assert first is not None, "a step has a computation"
            yield from self._trials(first)
            raise

    def _trials(self, first: Computation) -> Steps[None]:
        module = first.replica.arena.module
        saved = first.replica.arena.named_state()
        self.has_batch_statistics = any(isinstance(layer, _NormBase) for layer in module.modules())
        once = yield from self._tried(first, first.begun.share, saved)
        again = yield from self._tried(first, first.begun.share, saved)
        self.repeated = _repeated(once, again)
        assert self.session is not None, "the session has this host"
        facts = self.session.facts_so_far()
        if facts.num_samples and not facts.has_stream:
            with _frozen(module):
                self.halved = yield from self._halves(first, saved)

    def _halves(
        self, first: Computation, saved: dict[str, Tensor]
    ) -> Generator[Computation | StepEnd, float, Halved]:
        plan = self._planned
        start, count = first.begun.share.samples(plan.batch_sizes)
        if count < 2 * plan.grad_accumulation:
            return Halved.ONE_SAMPLE
        middle = count // 2
        whole = yield from self._tried(first, WorkUnit(0, 0, SampleSlice(start, count)), saved)
        other_seed = yield from self._tried(first, WorkUnit(1, 0, SampleSlice(start, count)), saved)
        low = yield from self._tried(first, WorkUnit(0, 0, SampleSlice(start, middle)), saved)
        rest = SampleSlice(start + middle, count - middle)
        high = yield from self._tried(first, WorkUnit(0, 0, rest), saved)
        if other_seed.loss != whole.loss:
            spread = abs(other_seed.loss - whole.loss)
            return Halved.SUM if _is_clear_sum(whole.loss, low.loss + high.loss, spread) else Halved.RANDOM
        return _halved(whole.loss, (low.loss, high.loss), (middle, count - middle))

    def _tried(
        self, first: Computation, share: WorkUnit, saved: dict[str, Tensor]
    ) -> Generator[Computation | StepEnd, float, _Trial]:
        """The script computes this share, and its step has no effect."""
        _restore(first.replica, saved)
        self._batches.begin()
        begun = replace(first.begun, share=share)
        loss = yield Computation(first.replica, begun, lambda: None)
        trial = _Trial(loss, first.replica.arena.gradient_part.clone(), self._batches.digest())
        yield StepEnd(None)
        return trial

    @property
    def _planned(self) -> Plan:
        plan = None if self.session is None else self.session.plan
        assert plan is not None, "the loop is open"
        return plan


class _WatchedBatches:
    """Digests of the batches that a source gives out."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def watch(self, source: ScriptSource) -> None:
        original = source.batches

        def batches(share: WorkUnit) -> Iterator[Batch]:
            for batch in original(share):
                _digest(batch, self._digest)
                yield batch

        source.batches = batches  # type: ignore[method-assign]  # of this instance

    def begin(self) -> None:
        self._digest = hashlib.sha256()

    def digest(self) -> str:
        return self._digest.hexdigest()


def _digest(value: object, digest: "hashlib._Hash") -> None:
    """Tensors and plain values of a batch, in order."""
    match value:
        case Tensor():
            plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
            digest.update(plain.numpy().tobytes())
        case dict():
            for name, item in value.items():
                digest.update(str(name).encode())
                _digest(item, digest)
        case list() | tuple():
            for item in value:
                _digest(item, digest)
        case bool() | int() | float() | str() | bytes():
            digest.update(repr(value).encode())


def _repeated(once: _Trial, again: _Trial) -> Repeated:
    if once.data != again.data:
        return Repeated.OTHER_DATA
    if once.loss != again.loss:
        return Repeated.OTHER_LOSS
    is_equal = torch.equal(once.gradient.view(torch.uint8), again.gradient.view(torch.uint8))
    return Repeated.EQUAL if is_equal else Repeated.OTHER_GRADIENT


def _halved(whole: float, halves: Sequence[float], sizes: Sequence[int]) -> Halved:
    mean = sum(loss * size for loss, size in zip(halves, sizes, strict=True)) / sum(sizes)
    largest = max(abs(whole), *map(abs, halves))
    if abs(whole - mean) <= TOLERANCE * largest:
        return Halved.MEAN
    return Halved.SUM if abs(whole - sum(halves)) <= TOLERANCE * largest else Halved.NEITHER


def _is_clear_sum(whole: float, halves: float, spread: float) -> bool:
    """Whether a loss with random numbers, which change it by about `spread`, is a sum over the samples.

    The mean of the halves of a sum is half of the whole: far from it, compared with the spread.
    """
    from_sum = abs(whole - halves)
    from_mean = abs(whole - halves / 2)
    return from_mean > 10 * max(from_sum, spread)


def _restore(replica: Replica, saved: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in replica.arena.module.state_dict().items():
            tensor.copy_(saved[name])


class _frozen:  # noqa: N801  # a context manager, named like torch.no_grad
    """No layer of the module uses statistics of its batch, or random numbers."""

    def __init__(self, module: nn.Module) -> None:
        kinds = (_NormBase, _DropoutNd, nn.MultiheadAttention, nn.RNNBase)
        self._layers = [layer for layer in module.modules() if isinstance(layer, kinds)]

    def __enter__(self) -> None:
        self._before = [layer.training for layer in self._layers]
        # As a hook: the script may call model.train() in every step.
        self._hooks = [layer.register_forward_pre_hook(_switch_off) for layer in self._layers]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for layer, was_training in zip(self._layers, self._before, strict=True):
            layer.training = was_training


def _switch_off(layer: nn.Module, _: object) -> None:
    layer.training = False

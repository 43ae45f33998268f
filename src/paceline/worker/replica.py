"""One copy of what is trained: the model as vectors, and the optimizer that moves it.

Built the same from the same plan in every process: the generator is seeded
before the task builds its model. The optimizer is built when first needed,
because behind a parameter server only the server has one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from paceline.checkpoints.snapshot import (
    Snapshot,
    from_bytes,
    join_tensors,
    misfit_error,
    read_snapshot,
    split_tensors,
    to_bytes,
)
from paceline.core.clock import Clock
from paceline.core.errors import MisfitError
from paceline.plan.plan import Plan
from paceline.tasks.optim import Adam, Sgd, build_optimizer
from paceline.tasks.port import Optimizer, Task
from paceline.tasks.script import ScriptTask
from paceline.tasks.torch_adapters import Scheduled, optimizer_of, source_location
from paceline.transport.arena import Arena


class Replica:
    def __init__(self, plan: Plan, task: Task, device: torch.device, clock: Clock) -> None:
        torch.manual_seed(plan.seed)
        self.arena = self._laid_out(plan, task, device)
        self.forward: nn.Module = self.arena.module
        self.loss_weight = 1.0  # in the mean of all workers' losses, where batches differ
        self.gradient_norm: float | None = None  # before it was last clipped; None: not measured
        self.step = 0  # step of the run whose gradient was computed last or is applied next
        self._plan = plan
        self._task = task
        self._clock = clock
        self._optimizer: Optimizer | None = None
        self._kept = task.kept() if isinstance(task, ScriptTask) else None
        self._parameters = list(self.arena.module.parameters())

    def _laid_out(self, plan: Plan, task: Task, device: torch.device) -> Arena:
        return Arena(task.model().to(device=device))

    @property
    def optimizer(self) -> Optimizer:
        if self._optimizer is None:
            self._optimizer = self._build_optimizer()
        return self._optimizer

    def prepare_optimizer(self) -> None:
        """Build the optimizer before the first step, so that an invalid one is refused before training."""
        if self._optimizer is None:
            self._optimizer = self._build_optimizer()

    @property
    def keeps_gradients(self) -> bool:
        """Whether a step leaves the gradients unchanged: built-in optimizers do, unless they are clipped."""
        return self._plan.clip_norm is None and isinstance(self.optimizer, Sgd | Adam)

    def update(self, rate_factor: float = 1.0) -> int:
        """One optimizer step, at this multiple of its rate; how long it took in nanoseconds."""
        started_ns = self._clock.now_ns()
        self.arena.divide_by_loss_weight()
        if self._plan.clip_norm is not None and not self._plan.has_momentum_in_codec:
            self._clip(self._plan.clip_norm)
        if self._plan.lr_schedule is not None:
            rate_factor *= self._plan.lr_schedule.factor(self.step)
        if isinstance(self.optimizer, Scheduled):
            self.optimizer.begin(self.step)
            rate_factor *= self._plan.lr_scale
        if not isinstance(self.optimizer, Sgd | Adam):  # these count a missing gradient as zero
            self.arena.release_absent()
        if rate_factor == 1.0:
            self.optimizer.step()
        else:
            self._step_at(rate_factor)
        return self._clock.now_ns() - started_ns

    def _step_at(self, rate_factor: float) -> None:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * rate_factor
        self.optimizer.step()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's live tensors, not copies; single numbers (step counts) are left out."""
        return {name: tensor for name, tensor in self._live_tensors().items() if tensor.dim() > 0}

    def optimizer_numbers(self) -> dict[str, Tensor]:
        """The single numbers among them, such as torch's step counts."""
        return {name: tensor for name, tensor in self._live_tensors().items() if tensor.dim() == 0}

    def count_steps(self, steps: int) -> None:
        """Set the optimizer's step count, as in a run that took these steps together."""
        if isinstance(self.optimizer, Sgd | Adam):
            self.optimizer.steps = steps
        for name, number in self.optimizer_numbers().items():
            if name.endswith(".step"):
                number.fill_(steps)

    def _live_tensors(self) -> dict[str, Tensor]:
        if isinstance(self.optimizer, Sgd | Adam):
            live: object = self.optimizer.slots
        else:
            live = self.optimizer.state_dict()  # torch's refers to the live tensors
        tensors: dict[str, Tensor] = {}
        _collect_tensors("", live, tensors)
        return tensors

    def forget_optimizer_state(self) -> None:
        self._optimizer = None

    def live(self) -> Snapshot:
        """Like `snapshot`, but of the tensors themselves: to be copied before anything changes them."""
        skeleton, tensors = split_tensors(self.optimizer.state_dict(), "optimizer", copy=False)
        state = self.arena.module.state_dict()
        assert not tensors.keys() & state.keys(), "the model has tensors with the names of its optimizer's"
        kept = self._kept_state(copy=False)
        return Snapshot({**state, **tensors, **kept.tensors}, {"optimizer": skeleton, **kept.facts})

    def snapshot(self) -> Snapshot:
        skeleton, tensors = split_tensors(self.optimizer.state_dict(), "optimizer")
        kept = self._kept_state(copy=True)
        state = self.arena.named_state()
        return Snapshot({**state, **tensors, **kept.tensors}, {"optimizer": skeleton, **kept.facts})

    def _kept_state(self, *, copy: bool) -> Snapshot:
        """Of a script: what it keeps beside the model and the optimizer."""
        if self._kept is None:
            return Snapshot({}, {})
        skeleton, tensors = split_tensors(self._kept.state_dict(), "script", copy=copy)
        return Snapshot(tensors, {"script": skeleton})

    def restore_kept(self, saved: Snapshot) -> None:
        if self._kept is not None and "script" in saved.facts:
            self._kept.load_state_dict(join_tensors(saved.facts["script"], saved.tensors))

    def restore(self, saved: Snapshot) -> None:
        with torch.no_grad():
            for name, tensor in self.arena.module.state_dict().items():
                tensor.copy_(_fitting(saved, name, tensor.shape))
        self.optimizer.load_state_dict(join_tensors(saved.facts["optimizer"], saved.tensors))
        self.restore_kept(saved)

    def restore_from(self, folder: Path, rank: int) -> Snapshot:
        """Restore a worker's state from a checkpoint; returns the state saved with it."""
        saved = read_snapshot(folder, f"worker-{rank}")
        self.restore(saved)
        return saved

    def whole_state(self) -> Mapping[str, Tensor]:
        """Every parameter and buffer by name, as it is now."""
        return self.arena.named_state()

    def own_state(self) -> bytes:
        """State that averaging does not cover: the optimizer's state, and buffers that are counters."""
        skeleton, tensors = split_tensors(self.optimizer.state_dict(), "optimizer")
        counters = {f"counter.{name}": counter.clone() for name, counter in self._counters()}
        return to_bytes(Snapshot({**tensors, **counters}, {"optimizer": skeleton}))

    def restore_own_state(self, saved: bytes) -> None:
        own = from_bytes(saved)
        self.forget_optimizer_state()  # state that `own` lacks did not exist there either
        self.optimizer.load_state_dict(join_tensors(own.facts["optimizer"], own.tensors))
        for name, counter in self._counters():
            counter.copy_(own.tensors[f"counter.{name}"])

    def average_own_states(
        self, saved: Sequence[bytes], weights: Sequence[float], *, with_numbers: bool = False
    ) -> list[bytes]:
        """The same own states, but for the optimizers' tensors: these become their weighted mean."""
        parts = [from_bytes(data) for data in saved]
        for name, first in parts[0].tensors.items():
            if name.startswith("optimizer.") and (with_numbers or first.dim() > 0):
                mean = _mean([part.tensors[name] for part in parts], weights)
                for part in parts:
                    part.tensors[name] = mean
        return [to_bytes(part) for part in parts]

    def _counters(self) -> list[tuple[str, Tensor]]:
        return [(name, b) for name, b in self.arena.module.named_buffers() if not b.is_floating_point()]

    def _build_optimizer(self) -> Optimizer:
        plan = self._plan
        if plan.optimizer is None:
            optimizer = optimizer_of(self._task, self._parameters)
        else:
            choice = plan.optimizer
            optimizer = build_optimizer(
                choice.name, self._parameters, lr=choice.lr, weight_decay=choice.weight_decay
            )
        if plan.has_momentum_in_codec:
            _refuse_momentum(optimizer)
        if isinstance(optimizer, Scheduled):  # its scheduler computes rates from those it began with
            _refuse_other_rates(plan, source_location(self._task, "optimizer"))
            return optimizer
        for group in optimizer.param_groups:
            rate = group["lr"] if plan.lr is None or plan.optimizer is not None else plan.lr
            group["lr"] = rate * plan.lr_scale
        return optimizer

    def own_norm(self) -> float | None:
        """Norm of the gradient just computed here; None in modes where no worker has the whole gradient."""
        if self.arena.gathers_gradients:
            gradients = [self.arena.gradient_part]  # one vector: one pass
        else:
            gradients = [p.grad for p in self._parameters if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        return float(torch.linalg.vector_norm(norms))

    def _clip(self, limit: float) -> None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = self.gradient_norm = float(torch.linalg.vector_norm(norms))
        if norm > limit:
            torch._foreach_mul_(gradients, limit / norm)


def _fitting(saved: Snapshot, name: str, shape: torch.Size) -> Tensor:
    if name not in saved.tensors:
        raise misfit_error(f"it has no {name}")
    tensor = saved.tensors[name]
    if tensor.shape != shape:
        raise misfit_error(f"{name} is {list(tensor.shape)} in the checkpoint and {list(shape)} in the model")
    return tensor


def _mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Weighted mean in the given order and by the operations of a collective, so that bits are equal."""
    weighted = [
        tensor if weight == 1.0 else tensor * weight for tensor, weight in zip(tensors, weights, strict=True)
    ]
    total = weighted[0].clone()
    for other in weighted[1:]:
        total.add_(other)
    return total.div_(len(weighted))


def _refuse_momentum(optimizer: Optimizer) -> None:
    """Plain SGD has the setting momentum = 0; Adam and the like have no such setting."""
    if any(group.get("momentum") != 0.0 for group in optimizer.param_groups):
        raise MisfitError(
            f"dgc keeps the momentum itself, but the task's {type(optimizer).__name__} has its own",
            "use --optimizer sgd",
        )


def _refuse_other_rates(plan: Plan, place: str) -> None:
    for setting, is_set in (("--lr", plan.lr is not None), ("--lr-schedule", plan.lr_schedule is not None)):
        if is_set:
            raise MisfitError(
                f"{setting} sets the learning rate, but the task's scheduler does too ({place})",
                f"leave {setting} out, or return the optimizer without its scheduler; "
                "a rate of the task's own is an option: --task-option lr=0.1",
            )


def _collect_tensors(prefix: str, value: object, tensors: dict[str, Tensor]) -> None:
    """Collect the live tensors that torch's state_dict references, at any depth."""
    if isinstance(value, Tensor):
        tensors[prefix] = value
    elif isinstance(value, dict):
        for key, part in value.items():
            _collect_tensors(f"{prefix}.{key}" if prefix else str(key), part, tensors)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            _collect_tensors(f"{prefix}.{number}", part, tensors)

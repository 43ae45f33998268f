"""T12 and T13: gradients of training scripts that are missing, or that count unequally.

In one process an optimizer leaves out parameters whose `.grad` is None: frozen ones, and those on which the
loss did not depend. A mean over workers must not turn them into zeros, by which weight decay and momentum
would act.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.laws.lab import RANDOM_SPEEDS, Finding, Lab, Law, equal_states, within
from paceline.laws.scripts.loops import EPOCHS, SCRIPTED, TASK, run_script
from paceline.plan.plan import Plan
from paceline.sync.samples import SampleStream
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.script.run import Run

LEAVES_OUT = tuple(
    mode for mode in SCRIPTED if mode != "adaptive"
)  # which averages moments of all parameters
_RNG = torch.Generator().manual_seed(1)
_INPUTS = torch.randn(60, 3, generator=_RNG)
_TARGETS = torch.randn(60, 2, generator=_RNG)

Loss = Callable[["_Heads", int, Tensor, Tensor], tuple[Tensor, float | None]]  # of a step; its weight


class _Heads(nn.Module):
    """A frozen base, a head for even steps, one for odd steps, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 4).requires_grad_(False)
        self.even = nn.Linear(4, 2)
        self.odd = nn.Linear(4, 2)
        self.unused = nn.Linear(4, 2)

    def errors(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        head = self.odd if step % 2 else self.even
        outputs: Tensor = head(self.base(inputs).tanh())
        return (outputs - targets).square()


def t12_missing_gradients_are_left_out(lab: Lab) -> Finding:
    """What is frozen or unused stays as it was; with one worker all bits are those of the plain loop."""

    def loss(model: _Heads, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, None]:
        return model.errors(step, inputs, targets).mean(), None

    plan = replace(lab.plan(stragglers=RANDOM_SPEEDS), task=TASK)
    end = _script(plan, loss).final_state()
    begin = _made()[0].state_dict()
    left_out = {name: tensor for name, tensor in begin.items() if name.startswith(("base", "unused"))}
    unchanged = _near(end, left_out, limit=1e-12)  # means of equal numbers may differ in the last bit
    if not unchanged.ok:
        return unchanged
    if lab.mode == "single":
        return equal_states(end, _plain(plan, loss), of="a script with one worker, and the plain loop")
    if lab.mode == "ssgd":
        return _near(end, _plain(plan, loss))
    return unchanged


def t13_weights_of_losses(lab: Lab) -> Finding:
    """Means over different numbers of entries, as of tokens: with weights, the mean over the whole batch."""

    def loss(model: _Heads, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        is_counted = targets > 0
        count = float(is_counted.sum())
        return (model.errors(step, inputs, targets) * is_counted).sum() / count, count

    plan = replace(lab.plan(batch_sizes=(6,) * lab.plan().num_workers), task=TASK)
    return _near(_script(plan, loss).final_state(), _plain(plan, loss))


def _script(plan: Plan, loss: Loss) -> VirtualRun:
    def script(run: Run) -> None:
        model, optimizer, data = _made()
        loader = DataLoader(data, batch_size=plan.global_batch, shuffle=True)
        model, optimizer, loader = run.prepare(model, optimizer, loader)
        for _ in run.epochs(EPOCHS):
            for inputs, targets in loader:
                run.backward(*loss(model, run.step, inputs, targets))
                optimizer.step()

    return run_script(plan, script)


def _plain(plan: Plan, loss: Loss) -> dict[str, Tensor]:
    """What one process computes with torch alone, from the same samples."""
    model, optimizer, data = _made()
    stream = SampleStream(num_samples=len(data), seed=plan.seed)
    for step in range(plan.steps):
        inputs, targets = data[stream.take(step * plan.global_batch, plan.global_batch)]
        optimizer.zero_grad()
        loss(model, step, inputs, targets)[0].backward()  # type: ignore[no-untyped-call]  # torch leaves it so
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _made() -> tuple[_Heads, torch.optim.Optimizer, TensorDataset]:
    kind = torch.get_default_dtype()
    torch.manual_seed(0)
    model = _Heads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
    return model, optimizer, TensorDataset(_INPUTS.to(kind), _TARGETS.to(kind))


def _near(end: dict[str, Tensor], plain: dict[str, Tensor], limit: float = 1e-5) -> Finding:
    return within(max(float((end[name] - plain[name]).abs().max()) for name in plain), limit)


LAWS = (
    Law(
        "T12",
        "parameters without a gradient are left out, as in one process",
        LEAVES_OUT,
        t12_missing_gradients_are_left_out,
        per_mode=True,
    ),
    Law(
        "T13",
        "losses with weights have the mean of the whole batch",
        ("ssgd", "ps"),
        t13_weights_of_losses,
        per_mode=True,
    ),
)

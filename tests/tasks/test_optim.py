"""The optimizers equal torch's, bit by bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paceline.plan.catalog import OPTIMIZERS
from paceline.tasks.optim import Adam, Sgd, build_optimizer

STEPS = 50
Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer | Sgd | Adam]

PAIRS: dict[str, tuple[Build, Build]] = {
    "sgd": (lambda p: Sgd(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd with L2": (
        lambda p: Sgd(p, lr=0.1, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    ),
    "momentum": (
        lambda p: Sgd(p, lr=0.05, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    ),
    "momentum with L2": (
        lambda p: Sgd(p, lr=0.05, momentum=0.8, weight_decay=0.02),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, weight_decay=0.02),
    ),
    "nesterov": (
        lambda p: Sgd(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.001),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.001),
    ),
    "adam": (lambda p: Adam(p, lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam with L2": (
        lambda p: Adam(p, lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    ),
    "adam with other betas": (
        lambda p: Adam(p, lr=0.02, beta1=0.8, beta2=0.95, eps=1e-6),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6),
    ),
    "adamw": (
        lambda p: Adam(p, lr=0.01, weight_decay=0.05, decoupled=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.05),
    ),
}


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, dtype=dtype, generator=rng)) for s in [(7, 3), (3,), ()]]


def trained(build: Build, dtype: torch.dtype, steps: int = STEPS) -> list[Tensor]:
    ours = parameters(dtype)
    optimizer = build(ours)
    rng = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in ours:  # gradients that depend on the parameters, over many magnitudes
            noise = torch.randn(parameter.shape, dtype=dtype, generator=rng)
            parameter.grad = parameter.detach() * 0.3 + noise * noise.abs()
        optimizer.step()
    return [p.detach() for p in ours]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PAIRS)
def test_after_fifty_steps_every_bit_is_torchs(name: str, dtype: torch.dtype) -> None:
    ours, torchs = PAIRS[name]
    for mine, theirs in zip(trained(ours, dtype), trained(torchs, dtype), strict=True):
        assert mine.numpy().tobytes() == theirs.numpy().tobytes()


@pytest.mark.parametrize("name", PAIRS)
def test_an_optimizer_that_was_saved_continues_as_if_nothing_had_happened(name: str) -> None:
    build = PAIRS[name][0]
    gradients = [torch.randn(3, generator=torch.Generator().manual_seed(n)) for n in range(10)]

    def run(optimizer: torch.optim.Optimizer | Sgd | Adam, own: nn.Parameter, part: list[Tensor]) -> None:
        for gradient in part:
            own.grad = gradient.clone()
            optimizer.step()

    through = nn.Parameter(torch.ones(3))
    run(build([through]), through, gradients)
    parted = nn.Parameter(torch.ones(3))
    first = build([parted])
    run(first, parted, gradients[:4])
    second = build([parted])
    second.load_state_dict(first.state_dict())
    run(second, parted, gradients[4:])
    assert torch.equal(through, parted)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_name_of_the_catalog_builds_an_optimizer_that_moves(name: str) -> None:
    own = nn.Parameter(torch.ones(3))
    optimizer = build_optimizer(name, [own], lr=0.1, weight_decay=0.0)
    own.grad = torch.ones(3)
    optimizer.step()
    assert bool((own < 1.0).all())
    assert optimizer.param_groups[0]["lr"] == 0.1

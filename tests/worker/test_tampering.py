"""An attack changes the arena as configured, and nothing else."""

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording
from torch import Tensor, nn

from paceline.core.errors import PacelineError
from paceline.sync.fault_rules import Attack, ByzantineRule
from paceline.transport.arena import Arena
from paceline.worker.byzantine import tamper


def struck(attack: Attack, scale: float | None = None, *, step: int = 0) -> tuple[Tensor, Arena]:
    """The gradient after the attack, with what it was (1, 2, 3 …) before, and the arena around it."""
    arena = Arena(nn.Linear(3, 2))
    for number, piece in enumerate(arena.layout.parameters):
        piece.view(arena.gradients).copy_(torch.full(piece.shape, number + 1.0))
    plan = small_plan("ssgd", byzantine=(ByzantineRule(attack=attack, scale=scale, worker=1),))
    tamper(plan, arena, worker=1, step=step)
    return torch.cat([p.view(arena.gradients).reshape(-1) for p in arena.layout.parameters]), arena


BEFORE = torch.tensor([1.0] * 6 + [2.0] * 2)


@pytest.mark.parametrize(
    ("attack", "scale", "after"),
    [
        (Attack.SIGN_FLIP, None, -BEFORE),
        (Attack.SIGN_FLIP, 3.0, -3 * BEFORE),
        (Attack.SCALE, None, 10 * BEFORE),
        (Attack.SCALE, -0.5, -0.5 * BEFORE),
        (Attack.ZERO, None, 0 * BEFORE),
        (Attack.SAME_VALUE, 7.0, torch.full((8,), 7.0)),
    ],
)
def test_an_attack_does_what_it_is_called(attack: Attack, scale: float | None, after: Tensor) -> None:
    assert torch.equal(struck(attack, scale)[0], after)


def test_garbage_has_the_configured_length_and_is_drawn_again_at_each_step() -> None:
    length = float(BEFORE.norm())
    assert float(struck(Attack.GARBAGE)[0].norm()) == pytest.approx(100 * length, rel=1e-5)
    assert float(struck(Attack.GARBAGE, 2.0)[0].norm()) == pytest.approx(2 * length, rel=1e-5)
    first, again, later = (struck(Attack.GARBAGE, step=step)[0] for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


@pytest.mark.parametrize("attack", list(Attack))
def test_only_the_parameters_places_are_touched(attack: Attack) -> None:
    gradient, arena = struck(attack)
    everything = arena.gradients.nan_to_num(nan=1.0)
    assert int((everything != 0).sum()) <= gradient.numel()


def test_an_honest_worker_is_left_alone() -> None:
    arena = Arena(nn.Linear(3, 2))
    arena.gradients.fill_(1.0)
    plan = small_plan("ssgd", byzantine=(ByzantineRule(attack=Attack.NAN, worker=1),))
    tamper(plan, arena, worker=0, step=0)
    assert bool((arena.gradients == 1).all())


def test_a_gradient_that_torch_averages_itself_cannot_be_attacked(wording: Wording) -> None:
    arena = Arena(nn.Linear(3, 2))
    arena.gathers_gradients = False
    plan = small_plan("ddp", byzantine=(ByzantineRule(attack=Attack.NAN),))
    with wording.raises(PacelineError):
        tamper(plan, arena, worker=0, step=0)

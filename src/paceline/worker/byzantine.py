"""Byzantine attacks: replace the gradient in the arena where the plan makes a worker faulty."""

import torch
from torch import Tensor

from paceline.core.errors import MisfitError
from paceline.plan.plan import Plan
from paceline.sync.fault_rules import ActiveAttack, Attack, Byzantine
from paceline.transport.arena import Arena


def tamper(plan: Plan, arena: Arena, *, worker: int, step: int) -> None:
    """Replace the gradient in the arena, if the plan makes this worker Byzantine at this one of its steps."""
    for struck in Byzantine(plan.byzantine, seed=plan.seed).at(worker, step) if plan.byzantine else ():
        if not arena.gathers_gradients:
            raise MisfitError(
                "this mode lets torch average within backward, so no gradient can be attacked before",
                "use --mode ssgd, or leave byzantine out",
            )
        _strike(arena, struck)


def _strike(arena: Arena, struck: ActiveAttack) -> None:
    # Parameters only: the padding between them is never overwritten, so values written there would remain.
    places = [piece.view(arena.gradients) for piece in arena.layout.parameters]
    match struck.attack:
        case Attack.GARBAGE:
            _garble(places, struck)
        case Attack.SIGN_FLIP:
            torch._foreach_mul_(places, -struck.strength)
        case Attack.SCALE:
            torch._foreach_mul_(places, struck.strength)
        case Attack.ZERO:
            torch._foreach_zero_(places)
        case Attack.NAN:
            _fill(places, torch.nan)
        case Attack.SAME_VALUE:
            _fill(places, struck.strength)


def _fill(places: list[Tensor], value: float) -> None:
    for place in places:
        place.fill_(value)


def _garble(places: list[Tensor], struck: ActiveAttack) -> None:
    """Noise in a random direction; drawn on the CPU, so that it is the same on every device."""
    generator = torch.Generator().manual_seed(struck.seed)
    noise = [torch.randn(place.shape, generator=generator, dtype=place.dtype) for place in places]
    factor = struck.strength * _norm(places) / _norm(noise)
    for place, drawn in zip(places, noise, strict=True):
        place.copy_(drawn.mul_(factor))


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors))))

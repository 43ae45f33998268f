"""What does DiLoCo's outer optimizer do with the mean of the workers' parameters? One step of Nesterov's SGD.

θ ← θ - lr·(Δ + μ·v) with v ← μ·v + Δ, where Δ = θ - mean. Written from the mean,
so that lr = 1 without momentum gives the mean to the bit.
"""

from torch import Tensor


def outer_step(theta: Tensor, velocity: Tensor, mean: Tensor, *, lr: float, momentum: float) -> None:
    """Moves θ and its velocity, in place."""
    delta = theta - mean
    velocity.mul_(momentum).add_(delta)
    theta.copy_(mean).add_(delta, alpha=1.0 - lr)
    if momentum:
        theta.add_(velocity, alpha=-lr * momentum)

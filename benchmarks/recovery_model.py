"""Model of the recovery benchmark's peers: small, with a step every 50 ms.

Runs under the Python that has the peer, so it imports torch and nothing of Paceline.
A commit is one line `STEP NANOSECONDS` in a file named after the process:
the clock is the kernel's monotonic one, the same for all processes of a machine.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

STEP_S = 0.05
CHECKPOINT_EVERY = 10


def classification(model: nn.Module) -> Tensor:
    """The loss of a random batch."""
    samples, labels = torch.randn(8, 64), torch.randint(10, (8,))
    return nn.functional.cross_entropy(model(samples), labels)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 400), nn.Tanh(), nn.Linear(400, 400), nn.Linear(400, 10))


class Trainee:
    def __init__(
        self,
        folder: Path,
        *,
        build: Callable[[], nn.Module] = classifier,
        loss: Callable[[nn.Module], Tensor] = classification,
        step_s: float = STEP_S,
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._loss = loss
        self._step_s = step_s
        self._folder = folder
        self._commits = (folder / f"commits-{os.getpid()}.txt").open("a", buffering=1)

    def gradients(self, wrapped: nn.Module | None = None) -> list[Tensor]:
        """Gradients of one step, which takes `step_s`; `wrapped` is what DDP made of the model."""
        until_s = time.monotonic() + self._step_s
        self.optimizer.zero_grad()
        self._loss(wrapped or self.model).backward()  # type: ignore[no-untyped-call]
        time.sleep(max(0.0, until_s - time.monotonic()))
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def commit(self, step: int) -> None:
        self.optimizer.step()
        self._commits.write(f"{step} {time.perf_counter_ns()}\n")

    def save(self, step: int) -> None:
        """Save atomically."""
        vector = nn.utils.parameters_to_vector(self.model.parameters()).detach().numpy()
        part = self._folder / "checkpoint.part.npz"
        np.savez(part, parameters=vector, step=step)
        part.rename(self._folder / "checkpoint.npz")

    def load(self) -> int:
        """The steps that are behind us."""
        path = self._folder / "checkpoint.npz"
        if not path.exists():
            return 0
        with np.load(path) as saved:
            nn.utils.vector_to_parameters(torch.from_numpy(saved["parameters"]), self.model.parameters())
            return int(saved["step"])

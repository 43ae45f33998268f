"""Your own model and data: an nn.Module, a Dataset with a DataLoader, and a torch optimizer.

Worker processes import this file: `paceline.train` is called only when it is the main program.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import paceline


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, points: Tensor) -> Tensor:
        return self.layers(points)


class Circle(Dataset):
    """Points of a square, labelled by whether they are in a circle."""

    def __init__(self, count: int, seed: int) -> None:
        self.points = 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) - 1
        self.labels = (self.points.norm(dim=1) < 0.75).long()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index], self.labels[index]


class CircleTask:
    def __init__(self, *, seed: int, width: int = 32) -> None:  # `width` is an option of the task
        self.width = width
        self.train = Circle(2000, seed)
        self.test = Circle(500, seed + 1)

    def model(self) -> nn.Module:
        return Net(self.width)

    def samples(self) -> DataLoader:  # Paceline assigns samples to workers and shuffles them by the seed
        return DataLoader(self.train, num_workers=0)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])  # the mean over the batch

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return {
            "test_accuracy": float((model(self.test.points).argmax(1) == self.test.labels).float().mean())
        }

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)


if __name__ == "__main__":
    result = paceline.train("own_task:CircleTask", workers=2, steps=60, task_options={"width": 64})
    print(result.metrics)

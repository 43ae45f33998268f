"""Samplers of a script: batch samplers have the samples of the same order, and sizes must be equal."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler, TensorDataset

from paceline.core.errors import ScriptError
from paceline.laws.lab import Lab
from paceline.laws.scripts.loops import TASK, run_script
from paceline.worker.script.run import Run

DATA = TensorDataset(torch.arange(50.0)[:, None].double())


class Backwards(Sampler[list[int]]):
    """Batches from the last sample to the first."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[list[int]]:
        left = list(range(sum(self._sizes) - 1, -1, -1))
        for size in self._sizes:
            yield left[:size]
            left = left[size:]


def used(loader: "DataLoader[tuple[torch.Tensor, ...]]") -> list[float]:
    """The samples of the first steps of two workers, in their order."""
    plan = replace(Lab("ssgd").plan(num_workers=2, batch_sizes=(6, 6), steps=5), task=TASK)
    shares: dict[tuple[int, int], list[float]] = {}

    def script(run: Run) -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, own = run.prepare(model, optimizer, loader)
        for _ in run.epochs(9):
            for (numbers,) in own:
                shares[run.step, run.rank] = numbers[:, 0].tolist()
                run.backward(model(numbers / 50).square().mean())
                optimizer.step()

    run_script(plan, script)
    return [number for share in sorted(shares) for number in shares[share]]


def test_a_batch_sampler_is_asked_for_its_order_once_per_epoch() -> None:
    plain = DataLoader(DATA, batch_size=12)
    given = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 12, drop_last=False))
    assert used(given) == used(plain)
    own = DataLoader(DATA, batch_sampler=Backwards((12, 12, 12, 12, 2)))
    assert used(own) == [*range(49, -1, -1), *range(49, 39, -1)]


def test_batches_that_are_left_out_stay_out() -> None:
    given = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 12, drop_last=True))
    assert used(given) == [*range(48), *range(12)]


def test_batches_of_different_sizes_are_refused() -> None:
    with pytest.raises(ScriptError) as error:
        used(DataLoader(DATA, batch_sampler=Backwards((12, 8, 12, 12, 6))))
    assert {problem.code for problem in error.value.problems} == {"E131"}

"""Samples from remote storage are announced in time, and only as a hint."""

import torch
from tests.fixtures.runs.plans import small_plan
from torch import Tensor

from paceline.core.clock import SystemClock
from paceline.sync.assignment import WorkUnit
from paceline.sync.samples import Indices, SampleStream
from paceline.tasks.load import load_task
from paceline.tasks.tensor_samples import TensorSamples
from paceline.tasks.xor import XorTask
from paceline.worker.gradient import AHEAD, GradientSource


class Noted(TensorSamples):
    """Samples that note what they are told."""

    def __init__(self, *columns: Tensor) -> None:
        super().__init__(*columns)
        self.told: list[Indices] = []

    def expect(self, indices: Indices) -> None:
        self.told.append(indices)


class NotedTask(XorTask):
    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.noted = Noted(*super().samples().columns)

    def samples(self) -> Noted:
        return self.noted


def test_the_samples_of_the_next_steps_are_announced_once_and_none_behind_the_end() -> None:
    plan = small_plan("ssgd", steps=7)
    task = NotedTask(seed=0)
    source = GradientSource(plan, task, torch.device("cpu"), SystemClock())
    stream = SampleStream(num_samples=len(task.noted), seed=plan.seed)
    expected = [stream.take(*WorkUnit(1, step).samples(plan.batch_sizes)) for step in range(1, 7)]
    source.batch_of(WorkUnit(1, 0))
    assert len(task.noted.told) == AHEAD
    for step in range(1, 7):
        source.batch_of(WorkUnit(1, step))
    assert [report.tolist() for report in task.noted.told] == [indices.tolist() for indices in expected]


def test_announcing_changes_no_sample() -> None:
    plan = small_plan("ssgd", steps=3)
    cpu, clock = torch.device("cpu"), SystemClock()
    gradient_source = GradientSource(plan, NotedTask(seed=0), cpu, clock)
    plain = GradientSource(plan, load_task("xor", seed=0, options={}), cpu, clock)
    for step in range(3):
        one, other = gradient_source.batch_of(WorkUnit(0, step)), plain.batch_of(WorkUnit(0, step))
        assert str(one) == str(other)

"""`--sync-batchnorm`: several workers compute the updates and statistics of one with the whole batch."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import RealRun, distance, real, virtual
from tests.fixtures.wording import Wording
from torch import Tensor, nn

from paceline.checkpoints.snapshot import read_snapshot
from paceline.core.ids import Rank
from paceline.launchers.local import LocalLauncher
from paceline.laws.tasks import TinyTask
from paceline.plan.plan import Plan, StrategyOptions, Transport
from paceline.plan.resolve import single_worker_plan
from paceline.strategies.batch_norm import batch_norm_remark, normalises_own_batch, synchronize_batch_norm
from paceline.transport.in_process import CollectiveState, InProcessCollective
from paceline.transport.virtual_time import Turns
from paceline.worker.replay.schedule import replay

SHARED = StrategyOptions(sync_batchnorm=True)
ROUNDING = 1e-12  # of float64


def normalised(mode: str, **changes: object) -> Plan:
    return small_plan(mode, steps=10, task_options={"batch_norm": True}, **changes)


def state_of(run: RealRun) -> dict[str, Tensor]:
    """Parameters and running statistics at the end."""
    saved = read_snapshot(run.run_dir / "checkpoints" / "at-00000010", "worker-0").tensors
    names = TinyTask(seed=0, batch_norm=True).model().state_dict()
    return {name: saved[name] for name in names}


@pytest.mark.parametrize(
    ("mode", "transport"),
    [("ddp", Transport.GLOO), ("ssgd", Transport.SHM), ("ssgd", Transport.GLOO)],
)
def test_workers_make_the_updates_of_one_process(
    mode: str, transport: Transport, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = normalised(mode, transport=transport, strategy=SHARED)
    expected = state_of(real(single_worker_plan(plan), tmp_path / "single", launcher))
    shared = real(plan, tmp_path / "shared", launcher)
    own = real(replace(plan, strategy=StrategyOptions()), tmp_path / "own", launcher)
    assert distance(state_of(shared), expected) < ROUNDING
    assert distance(state_of(own), expected) > 1e-3
    assert shared.sha256  # all ranks hold the same bits
    assert replay(plan, shared.history, shared.sha256).is_equal


@pytest.mark.parametrize("batch_sizes", [(4, 4), (2, 5), (1, 3, 4)])
def test_batches_of_different_sizes_count_by_their_samples(batch_sizes: tuple[int, ...]) -> None:
    plan = normalised("ssgd", num_workers=len(batch_sizes), batch_sizes=batch_sizes, strategy=SHARED)
    assert distance(virtual(plan).final_state(), virtual(single_worker_plan(plan)).final_state()) < ROUNDING


def test_dropout_after_a_shared_layer_draws_the_same_numbers_in_virtual_time_as_in_processes(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = normalised("ssgd", task="tests.strategies.test_batch_norm:DropoutTask", strategy=SHARED)
    run = real(plan, tmp_path / "run", launcher)
    assert replay(plan, run.history, run.sha256).is_equal


class DropoutTask(TinyTask):
    def model(self) -> nn.Module:
        return nn.Sequential(super().model(), nn.BatchNorm1d(2), nn.Dropout(0.5))


close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-3)  # numbers around 1000 in float32
LAYERS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: nn.BatchNorm1d(3), ()),
    (lambda: nn.BatchNorm1d(3, momentum=None), (5,)),
    (lambda: nn.BatchNorm2d(3, affine=False), (4, 2)),
    (lambda: nn.BatchNorm2d(3, track_running_stats=False), (4, 2)),
    (lambda: nn.BatchNorm3d(3, momentum=0.3, eps=0.1), (2, 1, 3)),
]


@pytest.mark.parametrize(("build", "shape"), LAYERS)
def test_a_shared_layer_computes_what_torch_computes_on_the_whole_batch(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(1)
    # A mean far from 0: squares of float32 would lose the variance.
    batches = [1000 + torch.randn(n, 3, *shape, generator=generator) for n in (1, 4, 2)]
    slopes = [torch.randn(b.shape, generator=generator) for b in batches]
    whole = build()
    inputs, outputs = _passed(whole, torch.cat(batches), torch.cat(slopes))
    layers = [build() for _ in batches]
    results: dict[int, tuple[Tensor, Tensor]] = {}
    meeting, turns = CollectiveState(len(batches)), Turns()

    def work(rank: int) -> None:
        met = InProcessCollective(meeting, Rank(rank), turns=turns, timeout_s=1.0)
        synchronize_batch_norm(layers[rank], met)
        results[rank] = _passed(layers[rank], batches[rank], slopes[rank])

    assert turns.run([partial(work, rank) for rank in range(3)]) == [None] * 3
    close(torch.cat([results[rank][1] for rank in range(3)]), outputs)
    close(torch.cat([results[rank][0] for rank in range(3)]), inputs)
    for name, parameter in whole.named_parameters():
        parts = [dict(layer.named_parameters())[name].grad for layer in layers]
        close(sum(part for part in parts if part is not None), parameter.grad)
    for layer in layers:
        assert not normalises_own_batch(layer)
        assert layer.state_dict().keys() == whole.state_dict().keys()
        for name, expected in whole.named_buffers():
            close(dict(layer.named_buffers())[name], expected)
        # This process is alone: a reduction would fail.
        alone_in_eval = copy.deepcopy(layer).eval()
        close(alone_in_eval(batches[1]), whole.eval()(batches[1]))


def _passed(layer: nn.Module, batch: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the inputs, and the outputs."""
    inputs = batch.clone().requires_grad_()
    outputs: Tensor = layer(inputs)
    outputs.backward(slope)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert inputs.grad is not None
    return inputs.grad, outputs.detach()


class Doubled(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_a_layer_with_its_own_forward_pass_stays_and_is_reported(wording: Wording) -> None:
    model = nn.Sequential(Doubled(2))
    synchronize_batch_norm(
        model, InProcessCollective(CollectiveState(2), Rank(0), turns=Turns(), timeout_s=1.0)
    )
    assert type(model[0]) is Doubled
    remark = batch_norm_remark(normalised("ssgd", strategy=SHARED), model)
    assert remark is not None
    wording(remark)


@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_the_remark_about_batch_norm_names_the_flag(mode: str, wording: Wording) -> None:
    remark = batch_norm_remark(small_plan(mode), nn.Sequential(nn.BatchNorm1d(2)))
    assert remark is not None
    assert "--sync-batchnorm" in remark
    wording(remark)

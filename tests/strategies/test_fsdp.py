"""FSDP: a model sharded over workers trains like an unsharded one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import distance, real, virtual
from tests.fixtures.wording import Wording
from torch import Tensor

from paceline.checkpoints.sharded import read_whole
from paceline.checkpoints.snapshot import read_snapshot
from paceline.core.errors import PacelineError
from paceline.core.ids import Rank
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Dtype, Evaluation, FsdpPrecision, OptimizerChoice, Plan, StrategyOptions
from paceline.strategies.fsdp import Fsdp
from paceline.strategies.port import Links
from paceline.worker.entry.export_weights import weights_of
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay

DIGITS = {
    "task": "digits",
    "task_options": {"hidden": 33},
    "optimizer": OptimizerChoice(name="momentum", lr=0.1),
}
CHARLM = {"task": "charlm", "task_options": {"layers": 2, "width": 16, "heads": 2, "context": 8}}
TORCH_ADAM = "tests.fixtures.tasks.user_tasks:TorchAdamTask"


def weights(run_dir: Path, steps: int) -> dict[str, Tensor]:
    folder = run_dir / "checkpoints" / f"at-{steps:08d}"
    saved = read_snapshot(folder, "worker-0")
    return weights_of(read_whole(folder) if "parts" in saved.facts else saved)


def ends(plan: Plan, run_dir: Path, launcher: LocalLauncher) -> dict[str, Tensor]:
    real(plan, run_dir, launcher)
    result = weights(run_dir, plan.steps)
    return {name: result[name] for name in sorted(result)}


@pytest.mark.parametrize("work", [DIGITS, CHARLM], ids=["digits", "charlm"])
def test_two_workers_end_where_ssgd_ends(
    work: dict[str, object], launcher: LocalLauncher, tmp_path: Path
) -> None:
    same = {**work, "steps": 20, "batch_sizes": (16, 16), "dtype": Dtype.FLOAT32}
    split = ends(small_plan("fsdp", **same), tmp_path / "fsdp", launcher)
    whole = ends(small_plan("ssgd", **same), tmp_path / "ssgd", launcher)
    assert distance(split, whole) < 1e-6


@pytest.mark.parametrize("clip_norm", [None, 0.3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_ends_where_one_does(
    workers: int, clip_norm: float | None, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Also with more workers than some tensors have rows."""
    plan = small_plan(
        "fsdp",
        num_workers=workers,
        batch_sizes=(8 // workers,) * workers,
        clip_norm=clip_norm,
        optimizer=OptimizerChoice(name="adam", lr=0.05),
    )
    alone = replace(plan, mode="single", num_workers=1, batch_sizes=(8,))
    expected = virtual(alone).final_state()
    result = ends(plan, tmp_path, launcher)
    assert distance(result, {name: expected[name] for name in sorted(expected)}) < 1e-12


def test_all_workers_report_the_bits_of_the_whole_model(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("fsdp", steps=3)
    run = real(plan, tmp_path, launcher)
    result = weights(tmp_path, 3)
    in_order = {name: result[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias")}
    assert run.sha256 == state_hash(in_order)


def test_each_worker_keeps_and_saves_only_its_part(launcher: LocalLauncher, tmp_path: Path) -> None:
    real(small_plan("fsdp", steps=2, optimizer=OptimizerChoice(name="adam", lr=0.01)), tmp_path, launcher)
    folder = tmp_path / "checkpoints" / "at-00000002"
    parts = [read_snapshot(folder, f"worker-{rank}").tensors for rank in range(2)]
    assert [len(part["0.weight"]) for part in parts] == [3, 2]
    assert [len(part["optimizer.slots.first_moment.0"]) for part in parts] == [3, 2]


def test_batch_norm_statistics_are_the_mean_of_the_workers(launcher: LocalLauncher, tmp_path: Path) -> None:
    options = {"batch_norm": True}
    split = ends(small_plan("fsdp", task_options=options), tmp_path, launcher)
    whole = virtual(small_plan("ssgd", task_options=options)).final_state()
    assert distance(split, {name: whole[name] for name in sorted(whole)}) < 1e-12


def test_a_task_may_bring_an_optimizer_of_torchs_own(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("fsdp")
    torchs = ends(replace(plan, task=TORCH_ADAM), tmp_path / "torch", launcher)
    ours = ends(replace(plan, optimizer=OptimizerChoice(name="adam", lr=0.05)), tmp_path / "own", launcher)
    assert distance(torchs, ours) < 1e-14


def test_blocks_may_compute_in_bf16_while_parameters_are_kept_whole(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    options = StrategyOptions(fsdp_precision=FsdpPrecision.BF16)
    plan = small_plan("fsdp", strategy=options, dtype=Dtype.FLOAT32, steps=20)
    coarse = ends(plan, tmp_path / "bf16", launcher)
    fine = ends(replace(plan, strategy=StrategyOptions()), tmp_path / "own", launcher)
    assert {tensor.dtype for tensor in coarse.values()} == {torch.float32}
    assert 0 < distance(coarse, fine) < 0.05


def test_a_split_model_is_evaluated_by_all_workers_together_while_it_trains(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    same = {**DIGITS, "steps": 6, "evaluation": Evaluation(every=2)}
    results = []
    for mode in ("fsdp", "ssgd"):
        evaluations = real(small_plan(mode, **same), tmp_path / mode, launcher).result["evaluations"]
        assert isinstance(evaluations, list)
        results.append(evaluations)
    for split, whole in zip(*results, strict=True):
        assert isinstance(split, dict)
        assert isinstance(whole, dict)
        assert split["step"] == whole["step"]
        assert split["metrics"] == pytest.approx(whole["metrics"], rel=1e-9)


def test_unequal_batches_are_refused(wording: Wording) -> None:
    with wording.raises(PacelineError):
        Fsdp(small_plan("fsdp", batch_sizes=(2, 6)), Links(rank=Rank(0), world_size=2))


def test_only_torch_could_replay_it(launcher: LocalLauncher, tmp_path: Path, wording: Wording) -> None:
    plan = small_plan("fsdp", steps=2)
    run = real(plan, tmp_path, launcher)
    with wording.raises(PacelineError):
        replay(plan, run.history, run.sha256)

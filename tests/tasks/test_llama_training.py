"""A Llama trains the same alone, sharded, in micro-batches, in bf16, and after a change of workers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import RealRun, Watching, distance, real
from torch import Tensor

from paceline.checkpoints.sharded import read_whole
from paceline.checkpoints.snapshot import read_snapshot
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Dtype, FsdpPrecision, Plan, StrategyOptions
from paceline.training.run import load_resumable, train
from paceline.worker.entry.export_weights import weights_of

SHORT = {"seq_len": 16}


def llama_plan(mode: str, **changes: object) -> Plan:
    options = {**SHORT, **changes.pop("task_options", {})}  # type: ignore[dict-item]  # a mapping, if said
    same = {"task": "llama", "steps": 6, "dtype": Dtype.FLOAT64, "lr": 0.01, **changes}
    return small_plan(mode, task_options=options, **same)


def ends(run: RealRun, steps: int) -> dict[str, Tensor]:
    folder = run.run_dir / "checkpoints" / f"at-{steps:08d}"
    saved = read_snapshot(folder, "worker-0")
    result = weights_of(read_whole(folder) if "parts" in saved.facts else saved)
    return {name: result[name] for name in sorted(result)}


def losses(run: RealRun) -> list[float]:
    """Of each step, over all workers."""
    rows = run.history.steps.values()
    return [sum(row.loss for row in step) / len(step) for step in zip(*rows, strict=True)]


@pytest.fixture(scope="module")
def alone(launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory) -> RealRun:
    """Every other run below does the same work."""
    return real(llama_plan("single", batch_sizes=(8,)), tmp_path_factory.mktemp("alone"), launcher)


@pytest.mark.parametrize("keeps", ["none", "selective"])
def test_two_ranks_of_fsdp_end_where_one_worker_ends(
    keeps: str, alone: RealRun, launcher: LocalLauncher, tmp_path: Path
) -> None:
    options = {"activation_checkpointing": keeps}
    split = real(llama_plan("fsdp", task_options=options), tmp_path, launcher)
    assert losses(split) == pytest.approx(losses(alone), rel=1e-9)
    assert distance(ends(split, 6), ends(alone, 6)) < 1e-9


@pytest.mark.parametrize("mode", ["single", "fsdp", "ssgd"])
def test_a_batch_in_parts_makes_the_same_update(
    mode: str, alone: RealRun, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Three parts of a batch are not equally large: the mean is that of samples, not of parts."""
    sizes = (8,) if mode == "single" else (4, 4)
    plan = llama_plan(mode, batch_sizes=sizes, grad_accumulation=3)
    run = real(plan, tmp_path, launcher)
    assert losses(run) == pytest.approx(losses(alone), rel=1e-9)
    assert distance(ends(run, 6), ends(alone, 6)) < 1e-9


def _go_on(run_dir: Path, launcher: LocalLauncher, *, steps: int, workers: int) -> RealRun:
    """The same run, made longer, with so many workers from here on."""
    plan, checkpoint = load_resumable(run_dir, workers)
    result = train(
        replace(plan, steps=steps), run_dir, Watching(launcher), warm=launcher, resume_from=checkpoint
    )
    return RealRun(result, read_history(run_dir / "events.jsonl"), run_dir)


def test_resharding_from_two_to_one_to_two_changes_no_bit_of_the_model(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Where no step is left to make, what is reported is what was read."""
    of_two = real(llama_plan("fsdp", steps=2, dtype=Dtype.FLOAT32), tmp_path, launcher)
    assert _go_on(tmp_path, launcher, steps=2, workers=1).sha256 == of_two.sha256
    of_one = _go_on(tmp_path, launcher, steps=3, workers=1)
    assert [path.name for path in (tmp_path / "checkpoints" / "at-00000003").glob("*.json")] == [
        "worker-0.json"
    ]
    assert _go_on(tmp_path, launcher, steps=3, workers=2).sha256 == of_one.sha256 != of_two.sha256


def test_a_run_that_changes_its_workers_twice_ends_where_one_worker_ends(
    alone: RealRun, launcher: LocalLauncher, tmp_path: Path
) -> None:
    real(llama_plan("fsdp", steps=2), tmp_path, launcher)
    _go_on(tmp_path, launcher, steps=4, workers=1)
    run = _go_on(tmp_path, launcher, steps=6, workers=2)
    assert distance(ends(run, 6), ends(alone, 6)) < 1e-9


def test_a_resumed_run_ends_with_the_bits_of_one_that_never_stopped(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = llama_plan("fsdp", dtype=Dtype.FLOAT32)
    whole = real(plan, tmp_path / "whole", launcher)
    real(replace(plan, steps=3), tmp_path / "parts", launcher)
    assert _go_on(tmp_path / "parts", launcher, steps=6, workers=2).sha256 == whole.sha256


def test_bf16_parameters_and_fp32_masters_both_train(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = llama_plan("fsdp", dtype=Dtype.FLOAT32, steps=12)
    fine = real(plan, tmp_path / "fine", launcher)
    masters = replace(plan, strategy=StrategyOptions(fsdp_precision=FsdpPrecision.BF16))
    kept = real(masters, tmp_path / "masters", launcher)
    coarse = replace(plan, task_options={**SHORT, "dtype": "bfloat16"})
    low = real(coarse, tmp_path / "low", launcher)
    assert {tensor.dtype for tensor in ends(kept, 12).values()} == {torch.float32}
    assert {tensor.dtype for tensor in ends(low, 12).values()} == {torch.bfloat16}
    assert losses(kept)[-1] == pytest.approx(losses(fine)[-1], rel=0.02)
    assert losses(low)[-1] == pytest.approx(losses(fine)[-1], rel=0.05)

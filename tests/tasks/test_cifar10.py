"""The picture task learns, replays bit by bit, and ends with equal statistics on every worker."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import RealRun, real, virtual_hash
from tests.fixtures.tasks.cifar_folder import cifar_folder
from tests.fixtures.wording import Wording
from torch import nn

from paceline.core.errors import ConfigError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Dtype, Launcher, Option, Plan, Transport
from paceline.tasks.cifar10.task import Cifar10Task, flipped_and_shifted
from paceline.tasks.load import load_task
from paceline.tasks.port import Validating
from paceline.worker.replay.schedule import replay

TINY: Mapping[str, Option] = {"data": "synthetic", "width": 4, "hidden": 16, "test_subset": 200}


def cifar_plan(mode: str, **changes: object) -> Plan:
    options = changes.pop("task_options", {})
    assert isinstance(options, dict)
    return small_plan(mode, task="cifar10", task_options={**TINY, **options}, **changes)


def test_the_network_has_three_blocks_and_about_three_million_parameters() -> None:
    model = Cifar10Task(seed=0, data="synthetic", subset=10, test_subset=10).model()
    filters = [part.out_channels for part in model.modules() if isinstance(part, nn.Conv2d)]
    assert filters == [64, 64, 128, 128, 256, 256]
    assert [part.out_features for part in model.modules() if isinstance(part, nn.Linear)] == [512, 10]
    assert 3.0e6 < sum(p.numel() for p in model.parameters()) < 3.5e6


def test_a_short_run_learns_the_patterns_and_states_that_they_are_not_cifar(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    options = {"lr": 0.01, "dropout": 0.0}
    plan = cifar_plan("single", steps=40, batch_sizes=(32,), dtype=Dtype.FLOAT32, task_options=options)
    result = real(plan, tmp_path, launcher).result
    assert result["data"] == "synthetic"
    metrics = result["metrics"]
    assert isinstance(metrics, dict)
    assert float(str(metrics["test_accuracy"])) > 0.5  # a guess is right one time in ten
    assert float(str(metrics["test_loss"])) < 1.5


@pytest.mark.parametrize("mode", ["ssgd", "ddp"])
def test_workers_end_with_the_same_bits_and_a_replay_finds_them_again(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    transport = Transport.GLOO if mode == "ddp" else Transport.SHM
    run = real(cifar_plan(mode, steps=4, transport=transport), tmp_path, launcher)
    assert replay(cifar_plan(mode, steps=4, transport=transport), run.history, run.sha256).is_equal


def test_ddp_and_ssgd_of_two_workers_end_with_the_same_bits(launcher: LocalLauncher, tmp_path: Path) -> None:
    ssgd = real(cifar_plan("ssgd", steps=3), tmp_path / "ssgd", launcher)
    ddp = real(cifar_plan("ddp", steps=3, transport=Transport.GLOO), tmp_path / "ddp", launcher)
    assert ssgd.sha256 == ddp.sha256


@pytest.mark.parametrize("mode", ["ps", "localsgd", "asgd"])
def test_other_modes_train_it_too(mode: str, launcher: LocalLauncher, tmp_path: Path) -> None:
    run: RealRun = real(cifar_plan(mode, steps=4), tmp_path, launcher)
    assert isinstance(run.result["metrics"], dict)
    assert np.isfinite(float(str(run.result["metrics"]["test_loss"])))


def test_pictures_are_flipped_and_shifted_alike_each_time_and_only_if_wanted() -> None:
    def ended(*, augment: bool) -> str:
        options = {"augment": augment, "dropout": 0.0}
        return virtual_hash(cifar_plan("ssgd", steps=2, task_options=options))

    assert ended(augment=True) == ended(augment=True)
    assert ended(augment=True) != ended(augment=False)


def test_a_picture_is_mirrored_or_not_and_moved_by_at_most_four_pixels() -> None:
    torch.manual_seed(0)
    inputs = torch.zeros(400, 3, 32, 32)
    inputs[:, :, 16, 10] = 1.0
    moved = flipped_and_shifted(inputs)
    result = moved[:, 0].flatten(1).argmax(dim=1)
    rows, columns = result // 32, result % 32
    assert set(rows.tolist()) == set(range(12, 21))
    assert set(columns.tolist()) == set(range(6, 15)) | set(range(17, 26))  # 31 - 10 is the mirrored place
    assert torch.equal(moved.sum(dim=(1, 2, 3)), torch.full((400,), 3.0))


def test_inputs_are_normalised_by_the_training_images(tmp_path: Path) -> None:
    task = Cifar10Task(seed=0, data=str(cifar_folder(tmp_path, 50)), width=4, hidden=8)
    pictures, _ = task.samples().columns
    assert pictures.dtype == torch.uint8
    normalised = task._normalised(pictures)
    assert normalised.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (normalised.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-3


def test_metrics_are_over_all_test_images_whatever_the_batches() -> None:
    task = Cifar10Task(seed=0, data="synthetic", subset=20, test_subset=503, width=4, hidden=8)
    model = task.model().eval()
    pictures, labels = task._test.columns
    with torch.no_grad():
        scores = model(task._normalised(pictures))
    values = task.metrics(model)
    assert values["test_accuracy"] == pytest.approx(float((scores.argmax(1) == labels).double().mean()))
    assert values["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(scores, labels)), rel=1e-5)


@pytest.mark.parametrize(("valid", "rows", "name"), [(0, 37, "test"), (50, 50, "valid")])
def test_the_evaluation_during_training_states_whether_it_uses_the_test_images(
    valid: int, rows: int, name: str
) -> None:
    task = Cifar10Task(seed=0, data="synthetic", subset=80, test_subset=37, valid=valid, width=4, hidden=8)
    assert isinstance(task, Validating)
    assert task.validation_size() == rows
    assert len(task.samples()) == 80 - valid
    model = task.model().eval()
    with torch.no_grad():
        parts = [task.validate(model, part) for part in (range(20), range(20, rows))]
    sums = {key: parts[0][key] + parts[1][key] for key in parts[0]}
    assert sums.keys() == {f"{name}_loss", f"{name}_accuracy"}
    if not valid:
        metrics = task.metrics(model)
        assert sums["test_accuracy"] / rows == pytest.approx(metrics["test_accuracy"])
        assert sums["test_loss"] / rows == pytest.approx(metrics["test_loss"], rel=1e-5)


def test_epochs_are_counted_on_what_is_trained_on(
    launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    options = {**TINY, "subset": 80, "valid": 16}
    assert launcher.count_samples("cifar10", options=options, seed=0, dtype="float32") == 64
    nowhere = {"data": str(tmp_path / "nowhere")}
    with wording.raises(ConfigError):
        launcher.count_samples("cifar10", options=nowhere, seed=0, dtype="float32")


def test_half_precision_computes_nearly_the_same() -> None:
    losses = []
    for amp in ("full", "bf16"):
        task = Cifar10Task(seed=0, data="synthetic", subset=20, width=4, hidden=8, augment=False, amp=amp)
        torch.manual_seed(0)
        pictures, labels = task.samples().columns
        losses.append(float(task.loss(task.model().eval(), (pictures, labels)).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


def test_virtual_workers_may_be_computed_at_once(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = cifar_plan("ssgd", steps=2, launcher=Launcher.VIRTUAL, transport=Transport.NONE, pace_s=0.01)
    run = real(replace(plan, vmap=True), tmp_path, launcher)
    assert len(run.history.steps[1]) == 2


def problem(**options: Option) -> str:
    with pytest.raises(ConfigError) as caught:
        load_task("cifar10", seed=0, options={"data": "synthetic", **options})
    (only,) = caught.value.problems
    assert only.hint
    return only.what


def test_options_that_cannot_be_are_refused(wording: Wording) -> None:
    wording(problem(subset=0))
    wording(problem(dropout=0.5))
    wording(problem(augment="no"))
    wording(problem(valid=-1))
    wording(problem(subset=10, valid=10))
    wording(problem(amp="fp8"))


def test_a_run_without_data_is_refused_before_any_worker_starts(
    launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    plan = cifar_plan("ssgd", task_options={"data": str(tmp_path / "nowhere")})
    with wording.raises(ConfigError):
        real(plan, tmp_path / "run", launcher)
    assert not (tmp_path / "run" / "logs").exists()


def test_a_run_on_a_folder_reads_it_and_reports_where_it_is(launcher: LocalLauncher, tmp_path: Path) -> None:
    folder = str(cifar_folder(tmp_path, python2=True))
    result = real(
        cifar_plan("ssgd", steps=2, task_options={"data": folder}), tmp_path / "run", launcher
    ).result
    assert result["data"] == folder

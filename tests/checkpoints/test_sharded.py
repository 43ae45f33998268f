"""Sharded checkpoints: they fit any number of workers, bit by bit."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import RealRun, Watching, real
from tests.fixtures.wording import ANY_WORKER, Wording

from paceline.checkpoints.catalog import newest_complete
from paceline.checkpoints.sharded import read_whole
from paceline.checkpoints.snapshot import write_snapshot
from paceline.core.clock import SystemClock
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.ids import Rank
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import OptimizerChoice, Plan
from paceline.training.checkpoints import verify_checkpoints
from paceline.training.run import load_resumable, train
from paceline.training.verify import verify_run
from paceline.transport.torch_dist import join_group, leave_group
from paceline.worker.sharded_replica import ShardedReplica
from paceline.worker.wiring import build_task, set_up_torch

ADAM = OptimizerChoice(name="adam", lr=0.01)
TORCH_ADAM = "tests.fixtures.tasks.user_tasks:TorchAdamTask"


def plan_of(steps: int, **changes: object) -> Plan:
    return small_plan("fsdp", **{"steps": steps, "optimizer": ADAM, **changes})


def went_on(run_dir: Path, steps: int, launcher: LocalLauncher, *, workers: int | None = None) -> RealRun:
    """The run, resumed and with more steps to do than it was planned for."""
    plan, checkpoint = load_resumable(run_dir, workers)
    result = train(
        replace(plan, steps=steps), run_dir, Watching(launcher), warm=launcher, resume_from=checkpoint
    )
    return RealRun(result, read_history(run_dir / "events.jsonl"), run_dir)


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    join_group("gloo", store_path=str(tmp_path / "meet"), rank=Rank(0), world_size=1, timeout_s=30)
    yield
    leave_group()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    "changes",
    [{}, {"task_options": {"batch_norm": True}}, {"task": TORCH_ADAM, "optimizer": None}],
    ids=["adam", "batch-norm", "torchs"],
)
def test_two_parts_become_one_and_two_again_with_the_same_bits(
    changes: dict[str, object], launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = plan_of(8, **changes)
    real(plan, tmp_path / "two", launcher)
    before = tmp_path / "two" / "checkpoints" / "at-00000008"
    set_up_torch(plan)
    sharded_replica = ShardedReplica(plan, build_task(plan), torch.device("cpu"), SystemClock())
    facts = sharded_replica.restore_from(before, 0).facts
    live = sharded_replica.live()
    after = tmp_path / "one" / "checkpoints" / "at-00000008"
    write_snapshot(after, "worker-0", replace(live, facts={**facts, **live.facts}))
    whole, again = read_whole(before), read_whole(after)
    assert whole.tensors.keys() == again.tensors.keys()
    assert all(torch.equal(whole.tensors[name], again.tensors[name]) for name in whole.tensors)
    assert whole.facts["optimizer"] == again.facts["optimizer"]
    shutil.copy(tmp_path / "two" / "plan.json", tmp_path / "one")
    straight, through_one = (went_on(tmp_path / name, 16, launcher) for name in ("two", "one"))
    assert straight.sha256 == through_one.sha256


def test_a_run_resumes_with_fewer_and_with_more_workers(launcher: LocalLauncher, tmp_path: Path) -> None:
    unchanged = real(plan_of(24), tmp_path / "unchanged", launcher)
    run_dir = tmp_path / "changed"
    real(plan_of(8), run_dir, launcher)
    went_on(run_dir, 16, launcher, workers=1)
    result = went_on(run_dir, 24, launcher, workers=4)
    ends = [read_whole(run / "checkpoints" / "at-00000024").tensors for run in (unchanged.run_dir, run_dir)]
    assert max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0]) < 1e-12
    assert result.result["num_workers"] == 4
    findings = verify_run(run_dir)
    assert all(finding.ok for finding in findings), findings
    assert any(finding.seen.startswith("24 steps of 8 samples") for finding in findings)


def test_what_was_done_after_the_checkpoint_by_workers_that_are_no_more_does_not_count(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    real(plan_of(8, checkpoint_every=4), tmp_path, launcher)
    shutil.rmtree(tmp_path / "checkpoints" / "at-00000008")
    went_on(tmp_path, 8, launcher, workers=1)
    assert all(finding.ok for finding in verify_run(tmp_path))


def test_workers_that_cannot_share_the_batch_are_refused(
    launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    real(plan_of(2), tmp_path, launcher)
    with wording.raises(ConfigError):
        load_resumable(tmp_path, 3)


def test_in_other_modes_the_number_stays(launcher: LocalLauncher, tmp_path: Path, wording: Wording) -> None:
    real(small_plan("ssgd", steps=2), tmp_path, launcher)
    with wording.raises(ConfigError):
        load_resumable(tmp_path, 1)


def test_a_checkpoint_counts_only_with_all_its_parts(launcher: LocalLauncher, tmp_path: Path) -> None:
    real(plan_of(8, checkpoint_every=4), tmp_path, launcher)
    root = tmp_path / "checkpoints"
    (root / "at-00000008" / "worker-1.json").unlink()
    checkpoint = newest_complete(root, 1)  # also for a single worker
    assert checkpoint is not None
    assert (checkpoint.folder.name, checkpoint.clocks) == ("at-00000004", (4,))


def test_parts_of_two_moments_do_not_make_a_checkpoint(launcher: LocalLauncher, tmp_path: Path) -> None:
    real(plan_of(8, checkpoint_every=4), tmp_path, launcher)
    old, new = (tmp_path / "checkpoints" / name for name in ("at-00000004", "at-00000008"))
    for suffix in (".json", ".safetensors"):
        shutil.copy(old / f"worker-1{suffix}", new / f"worker-1{suffix}")
    checkpoint = newest_complete(tmp_path / "checkpoints", 2)
    assert checkpoint is not None
    assert (checkpoint.folder.name, checkpoint.passed_over) == ("at-00000004", ("at-00000008",))


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_any_changed_byte_of_a_part_is_noticed(suffix: str, launcher: LocalLauncher, tmp_path: Path) -> None:
    real(plan_of(2), tmp_path, launcher)
    folder = tmp_path / "checkpoints" / "at-00000002"
    file = folder / f"worker-1{suffix}"
    good = file.read_bytes()
    for place in range(0, len(good), max(1, len(good) // 50)):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert not all(finding.ok for finding in verify_checkpoints(tmp_path)), f"byte {place}"
        with pytest.raises(PacelineError):
            read_whole(folder)
    file.write_bytes(good)
    assert all(finding.ok for finding in verify_checkpoints(tmp_path))


def test_what_was_made_with_another_model_is_refused(
    launcher: LocalLauncher, tmp_path: Path, wording: Wording
) -> None:
    real(plan_of(2), tmp_path, launcher)
    plan, checkpoint = load_resumable(tmp_path)
    other = replace(plan, steps=4, task_options={"batch_norm": True})
    with wording.raises(PacelineError, hide=ANY_WORKER):
        train(other, tmp_path, Watching(launcher), warm=launcher, resume_from=checkpoint)

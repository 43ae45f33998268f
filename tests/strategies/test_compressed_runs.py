"""Compressed runs on real processes, over every transport. (Laws C1-C12 prove the rest.)"""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import RANDOM_SPEEDS, small_plan
from tests.fixtures.runs.run_plans import real, resumed, virtual
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, PacelineError, TrainingError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import (
    AsgdVariant,
    Codec,
    Compression,
    OptimizerChoice,
    Plan,
    StrategyOptions,
    Transport,
)
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay

INT8, SIGN, BF16 = (Compression(codec=c) for c in (Codec.INT8, Codec.SIGN, Codec.BF16))
RANDOM_INT8 = Compression(codec=Codec.INT8, error_feedback=False)
TOPK = Compression(codec=Codec.TOPK, amount=0.1)
DGC = Compression(codec=Codec.DGC, amount=0.1, warmup=8)
POWERSGD = Compression(codec=Codec.POWERSGD, amount=1.0)
ADAM = OptimizerChoice(name="adam", lr=0.01)
ONEBIT = {"optimizer": ADAM, "strategy": StrategyOptions(freeze_after=5)}
MEETING = [
    small_plan("ssgd", num_workers=3, compress=c, batch_sizes=(2, 3, 5))
    for c in (INT8, RANDOM_INT8, SIGN, BF16, TOPK, DGC, POWERSGD)
] + [
    small_plan("localsgd", num_workers=3, compress=INT8),
    small_plan("diloco", num_workers=3, compress=INT8, strategy=StrategyOptions(sync_every=4, fragments=2)),
    small_plan("diloco", num_workers=3, compress=POWERSGD, strategy=StrategyOptions(sync_every=4)),
    small_plan("onebit", num_workers=3, **ONEBIT),
]


def name(plan: Plan) -> str:
    codec = "" if plan.compress is None else f"-{plan.compress.codec}-{plan.compress.error_feedback}"
    return f"{plan.mode}{codec}"


@pytest.mark.parametrize("plan", MEETING, ids=name)
def test_workers_that_synchronize_end_equal_and_replay(
    plan: Plan, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = replace(plan, task_options={"batch_norm": True})
    run = real(plan, tmp_path / "run", launcher)
    verdict = replay(plan, run.history, run.sha256)
    assert verdict.is_equal, verdict.parted
    assert state_hash(virtual(plan).final_state()) == run.sha256


@pytest.mark.parametrize("plan", [MEETING[0], MEETING[4], MEETING[6]], ids=name)
def test_two_workers_over_gloo_end_with_the_bits_of_shared_memory(
    plan: Plan, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = replace(plan, num_workers=2, batch_sizes=(3, 5))
    shm = real(plan, tmp_path / "shm", launcher)
    gloo = real(replace(plan, transport=Transport.GLOO), tmp_path / "gloo", launcher)
    assert shm.sha256 == gloo.sha256
    assert shm.result["bytes"] == gloo.result["bytes"]


@pytest.mark.parametrize("compress", [INT8, RANDOM_INT8, SIGN, BF16, TOPK], ids=lambda c: c.codec.value)
@pytest.mark.parametrize("transport", [Transport.SHM, Transport.TCP])
@pytest.mark.parametrize("mode", ["ps", "asgd", "ssp"])
def test_pushes_are_smaller_and_a_server_run_still_replays(
    mode: str, transport: Transport, compress: Compression, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan(mode, num_workers=3, batch_sizes=(2, 3, 5), task_options={"batch_norm": True})
    plan = replace(plan, transport=transport, compress=compress)
    run = real(plan, tmp_path / "run", launcher)
    moved, seen = run.result["bytes"], run.result["compression"]
    assert isinstance(moved, dict)
    assert isinstance(seen, dict)
    assert int(str(moved["out"])) < int(str(moved["in"])) == int(str(seen["bytes_out_plain"]))
    verdict = replay(plan, run.history, run.sha256)
    assert verdict.is_equal, verdict.parted
    assert verdict.gradients == plan.total_gradients


def test_what_was_discarded_is_still_in_the_memory_that_a_replay_rebuilds() -> None:
    options = StrategyOptions(asgd=AsgdVariant.RINGMASTER, max_staleness=2)
    plan = small_plan("asgd", num_workers=3, steps=20, compress=TOPK, strategy=options, pace_s=0.01)
    plan = replace(plan, stragglers=RANDOM_SPEEDS)
    run = virtual(plan)
    assert any(row.op == "discard" for row in run.history.server)
    verdict = replay(plan, run.history, state_hash(run.final_state()))
    assert verdict.is_equal, verdict.parted


@pytest.mark.parametrize("mode", ["ps", "asgd"])
def test_behind_a_server_a_resumed_run_begins_with_empty_memories_and_replays(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan(mode, steps=60, pace_s=0.005, compress=SIGN)
    first = real(plan, tmp_path, launcher, stop_at=3)
    assert first.result["stopped_early"] is True
    again = resumed(tmp_path, launcher)
    assert again.positions() == list(range(plan.total_gradients))
    verdict = replay(plan, again.history, again.sha256)
    assert verdict.is_equal, verdict.parted


@pytest.mark.parametrize(
    "plan",
    [
        small_plan("ssgd", steps=60, pace_s=0.005, compress=DGC),
        small_plan("ssgd", steps=60, pace_s=0.005, compress=POWERSGD),
        small_plan("ssgd", steps=60, pace_s=0.005, compress=RANDOM_INT8),
        small_plan("ssgd", steps=60, pace_s=0.005, compress=SIGN),
        small_plan("onebit", steps=60, pace_s=0.005, **ONEBIT),
    ],
    ids=name,
)
def test_a_stopped_and_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    plan: Plan, launcher: LocalLauncher, tmp_path: Path
) -> None:
    real(plan, tmp_path / "stopped", launcher, stop_at=8)
    through = real(replace(plan, pace_s=0.0), tmp_path / "through", launcher)
    assert resumed(tmp_path / "stopped", launcher).sha256 == through.sha256


@pytest.mark.parametrize(
    ("compress", "plain_steps", "numbers"),
    [
        (Compression(codec=Codec.FP16, error_feedback=False), 0, None),
        (POWERSGD, 2, 5 + 3 + 2 + 5 + 5 + 2),  # 5x3 and 2x5 as thin ones, and the two biases
    ],
    ids=["fp16", "powersgd"],
)
def test_ddp_counts_what_torchs_hooks_really_send(
    compress: Compression,
    plain_steps: int,
    numbers: int | None,
    launcher: LocalLauncher,
    tmp_path: Path,
    wording: Wording,
) -> None:
    plan = small_plan("ddp", compress=compress)
    run = real(plan, tmp_path / "run", launcher)
    whole = (15 + 5 + 10 + 2) * 8
    small = whole // 4 if numbers is None else numbers * 8
    rows = run.history.steps[0]
    assert [row.bytes_out for row in rows] == [whole] * plain_steps + [small] * (len(rows) - plain_steps)
    assert {row.bytes_out + row.bytes_saved for row in rows} == {whole}
    with wording.raises(PacelineError):
        replay(plan, run.history, run.sha256)


def test_ddp_with_fp16_comes_near_plain_ddp(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("ddp")
    half = replace(plan, compress=Compression(codec=Codec.FP16, error_feedback=False))
    losses = [
        real(p, tmp_path / p.run / str(number), launcher).result["loss"]
        for number, p in enumerate((plan, half))
    ]
    assert float(str(losses[0])) == pytest.approx(float(str(losses[1])), rel=1e-3)
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    "plan",
    [
        small_plan("ssgd", compress=DGC, task="tests.fixtures.tasks.user_tasks:TorchMomentumTask"),
        small_plan("ssgd", compress=DGC, task="tests.fixtures.tasks.user_tasks:TorchAdamTask"),
        small_plan("onebit", optimizer=None, task="tests.fixtures.tasks.user_tasks:TorchAdamTask"),
    ],
    ids=["dgc-momentum", "dgc-adam", "onebit-torch-adam"],
)
def test_a_tasks_own_optimizer_that_does_not_fit_is_refused_with_advice(plan: Plan, wording: Wording) -> None:
    with pytest.raises(PacelineError) as caught:
        virtual(plan)
    assert "--optimizer" in caught.value.hint
    wording(caught.value.what)


def test_a_gradient_too_large_for_fp16_ends_the_run_with_advice(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    half = Compression(codec=Codec.FP16, error_feedback=False)
    plan = small_plan("ssgd", compress=half, optimizer=OptimizerChoice(name="sgd", lr=1e6))
    with pytest.raises((TrainingError, ConfigError)) as caught:
        real(plan, tmp_path / "run", launcher)
    assert "torch.float16" in caught.value.what
    assert "bf16" in caught.value.hint

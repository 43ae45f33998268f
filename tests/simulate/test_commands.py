"""Predictions of a plan and of a recorded run mean the same work in every mode."""

from pathlib import Path

from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, PacelineError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Codec, Compression
from paceline.simulate.strategy_models import PREDICTABLE_MODES
from paceline.simulate.what_if import (
    Conditions,
    advise_on,
    command_for,
    input_from_plan,
    input_from_run,
    simulate_modes,
)
from paceline.sync.fault_rules import StragglerRule

ONE_SLOW = (StragglerRule(worker=1, factor=3.0),)
PLAN = small_plan("ssgd", num_workers=4, steps=100, pace_s=0.01, stragglers=ONE_SLOW)


def test_every_mode_does_the_same_work_for_any_number_of_workers() -> None:
    rows = simulate_modes(input_from_plan(PLAN, Conditions()), [1, 2, 4])
    assert {row.num_workers for row in rows} == {1, 2, 4}
    for row in rows:
        assert sum(row.prediction.steps) == PLAN.total_gradients, row.label
    assert {row.mode for row in rows} == PREDICTABLE_MODES


def test_a_slow_link_and_large_parameters_cost_time_and_bytes() -> None:
    near = simulate_modes(input_from_plan(PLAN, Conditions()))
    network = Conditions(latency_s=0.001, bytes_per_s=1e8, parameter_bytes=10**6)
    for fast, slow in zip(near, simulate_modes(input_from_plan(PLAN, network)), strict=True):
        if fast.mode != "single":
            assert slow.prediction.total_s > fast.prediction.total_s
            assert slow.prediction.bytes_out > 0


def test_step_times_may_vary_around_the_pace() -> None:
    steady = simulate_modes(input_from_plan(PLAN, Conditions()))
    varied = simulate_modes(input_from_plan(PLAN, Conditions(spread="exponential")))
    ssgd = next(i for i, row in enumerate(steady) if row.mode == "ssgd")
    assert varied[ssgd].prediction.total_s > steady[ssgd].prediction.total_s


def test_without_a_pace_there_is_nothing_to_predict(wording: Wording) -> None:
    with wording.raises(ConfigError):
        input_from_plan(small_plan("ssgd"), Conditions())


def test_a_recorded_run_is_learnt_from(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("ssgd", num_workers=2, steps=40, pace_s=0.01, stragglers=ONE_SLOW)
    real(plan, tmp_path / "run", launcher)
    scene = input_from_run(tmp_path / "run")
    advice = advise_on(scene)
    mode = advice.advised.candidate.mode
    assert mode in ("asgd", "easgd")  # no worker waits; which is faster depends on the measured exchanges
    assert advice.workers[0].startswith("worker 1 ")
    command = command_for(scene, advice)
    assert f"--mode {mode} " in command  # easgd also gets its --sync-every
    assert "--num-workers 2 --steps 40 --pace 10ms --straggler worker=1" in command
    assert any("test (ssgd)" in text for text in advice.caveats)


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(PacelineError):
        input_from_run(tmp_path)


def test_a_prediction_refuses_what_it_cannot_model(wording: Wording) -> None:
    plan = small_plan("ssgd", pace_s=0.01, compress=Compression(codec=Codec.INT8))
    with wording.raises(ConfigError):
        input_from_plan(plan, Conditions())

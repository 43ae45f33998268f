"""A real run is predicted from its plan and from its recording."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real, virtual
from tests.fixtures.wording import Wording

from paceline.core.errors import PacelineError
from paceline.events.read import History
from paceline.events.summary import summarise
from paceline.launchers.local import LocalLauncher
from paceline.laws.performance import UPDATE_ERROR, sleeping_plan, slotted_plan, update_error
from paceline.plan.plan import EventDetail, Plan, StrategyOptions
from paceline.simulate.predict import outline
from paceline.simulate.profile import (
    Profile,
    Recorded,
    Resampled,
    dumps,
    loads,
    profile_from_plan,
    resampled,
    with_workers,
)
from paceline.simulate.recording import profile_of
from paceline.simulate.strategy_models import strategy_model_of
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.fault_rules import StragglerRule


def predicted_s(profile: Profile, plan: Plan) -> float:
    return (
        outline(
            profile, strategy_model_of(plan.mode, plan.strategy), steps=plan.steps, seed=plan.seed
        ).total_ns
        / 1e9
    )


@pytest.mark.soak  # it is timed; law M3.local predicts from the recording alone, which load does not upset
@pytest.mark.parametrize("mode", ["ssgd", "asgd", "ssp", "localsgd", "diloco"])
def test_eight_sleepy_processes_take_as_long_as_plan_and_recording_predict(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Every step takes at least 40 ms, so compute and start-up hardly matter."""
    plan = eight_sleepers(mode)
    run = real(plan, tmp_path, launcher)
    applied = [row.rank for row in run.history.server if row.op == "apply"]
    took_s = summarise(run.history).training_s
    for profile in (profile_from_plan(plan), profile_of(run.history, plan)):
        result = outline(
            profile, strategy_model_of(plan.mode, plan.strategy), steps=plan.steps, seed=plan.seed
        )
        assert not applied or result.trace.ranks.tolist() == applied
        assert result.total_ns / 1e9 == pytest.approx(took_s, rel=0.05)


@pytest.mark.parametrize(("staleness", "is_found"), [(0, False), (1, True), (2, False), (4, False)])
def test_the_law_about_recorded_updates_rejects_another_bound(staleness: int, is_found: bool) -> None:
    plan = sleeping_plan(small_plan("ssp", num_workers=8))
    history = virtual(plan).history
    assert plan.strategy.staleness == 1
    off = update_error(history, plan, replace(plan.strategy, staleness=staleness))
    assert (off <= UPDATE_ERROR / 10) is is_found
    assert (off > 2 * UPDATE_ERROR) is not is_found


def eight_sleepers(mode: str) -> Plan:
    plan = small_plan(mode, num_workers=8)
    if mode == "asgd":
        return slotted_plan(plan)
    slow = sleeping_plan(plan)  # its last rule delays all; here the pace does
    options = replace(slow.strategy, sync_every=4)
    return replace(slow, pace_s=0.04, stragglers=slow.stragglers[:-1], strategy=options)


@pytest.mark.parametrize(
    "mode",
    ["single", "ssgd", "ps", "asgd", "ssp", "dssp", "localsgd", "diloco", "adaptive"],
)
def test_a_recording_predicts_itself(mode: str) -> None:
    plan = small_plan(mode, steps=20, pace_s=0.01)
    run = virtual(plan)
    profile = profile_of(run.history, plan)
    assert predicted_s(profile, plan) == pytest.approx(run.elapsed_s, rel=1e-6)
    assert profile.parameter_bytes > 0 or mode == "single"
    assert profile.is_measured


def test_a_profile_survives_json(wording: Wording) -> None:
    plan = small_plan("asgd", steps=5, pace_s=0.01)
    profile = profile_of(virtual(plan).history, plan)
    assert loads(dumps(profile)) == profile
    assert loads(dumps(resampled(profile))) == resampled(profile)
    with wording.raises(PacelineError):
        loads(dumps(profile).replace("paceline.profile/1", "paceline.profile/9"))


def test_more_workers_are_like_those_that_were_recorded() -> None:
    plan = small_plan("ssgd", steps=5, pace_s=0.01)
    wide = with_workers(profile_of(virtual(plan).history, plan), 5)
    assert wide.num_workers == len(wide.step_times) == len(wide.batch_sizes) == 5
    assert wide.step_times[4] == wide.step_times[0]
    assert isinstance(wide.step_times[0], Recorded)
    assert isinstance(resampled(wide).step_times[0], Resampled)


def test_the_pause_before_a_resume_is_not_step_time() -> None:
    plan = small_plan("ssgd", steps=6, pace_s=0.01)
    history = virtual(plan).history
    pause_ns = 10**12
    for rank, rows in history.steps.items():
        late = [row._replace(start_ns=row.start_ns + pause_ns) for row in rows[3:]]
        history.steps[rank] = rows[:3] + late
    history.sessions = [dict.fromkeys(history.steps, 3)]
    assert predicted_s(profile_of(history, plan), plan) == pytest.approx(0.06)


def test_a_recording_of_adaptive_shows_what_planned_batches_would_have_taken(wording: Wording) -> None:
    slow = (StragglerRule(worker=1, factor=3.0),)
    options = StrategyOptions(adaptive=Allowed.BATCH)
    plan = small_plan(
        "adaptive", steps=40, batch_sizes=(16, 16), pace_s=0.01, stragglers=slow, strategy=options
    )
    run = virtual(plan)
    profile = profile_of(run.history, plan)
    assert predicted_s(profile, plan) == pytest.approx(run.elapsed_s, rel=1e-6)
    assert predicted_s(profile, replace(plan, mode="ssgd")) == pytest.approx(40 * 0.03, rel=1e-6)
    local = replace(plan, strategy=StrategyOptions(adaptive=Allowed.LOCAL_STEPS, sync_every=4))
    with wording.raises(PacelineError):
        profile_of(virtual(local).history, local)


def test_a_recording_that_does_not_separate_waiting_from_work_is_refused_with_a_fix(wording: Wording) -> None:
    plan = small_plan("ssgd", steps=3, pace_s=0.01)
    history = virtual(plan).history
    with wording.raises(PacelineError) as hidden:
        profile_of(history, replace(plan, mode="ddp"))
    assert "--mode ssgd" in hidden.value.hint
    for mode in ("gossip", "adpsgd"):
        with wording.raises(PacelineError):
            profile_of(history, replace(plan, mode=mode))
    with wording.raises(PacelineError):
        profile_of(history, replace(plan, mode="my_code:Mine"))
    spared = small_plan("backup", num_workers=3, steps=3, pace_s=0.01)
    with wording.raises(PacelineError) as spared_error:
        profile_of(virtual(spared).history, spared)
    assert "--mode ssgd" in spared_error.value.hint
    with wording.raises(PacelineError):
        profile_of(History(), replace(plan, events=EventDetail.OFF))

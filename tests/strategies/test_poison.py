"""Non-finite means are detected before they are applied, with the same decision on all workers."""

import dataclasses

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.core.errors import HopelessError
from paceline.plan.plan import OnNan, Plan, StrategyOptions
from paceline.sync.fault_rules import Attack, ByzantineRule
from paceline.transport.arena import is_non_finite
from paceline.worker.entry.virtual import VirtualRun, run_virtual

BAD_STEP = 5


def plan(on_nan: OnNan | None, **changes: object) -> Plan:
    rule = ByzantineRule(attack=Attack.NAN, worker=1, first_step=BAD_STEP, end_step=BAD_STEP + 1)
    return small_plan("ssgd", byzantine=(rule,), strategy=StrategyOptions(on_nan=on_nan), **changes)


def run_in_virtual_time(plan: Plan) -> VirtualRun:
    run = run_virtual(plan)
    for error in run.errors:
        if error is not None:
            raise error
    return run


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_number_anywhere_is_noticed(bad: float) -> None:
    vector = torch.arange(1000.0)
    assert not is_non_finite(vector)
    vector[777] = bad
    assert is_non_finite(vector)


def test_without_a_rule_one_bad_gradient_spoils_everything() -> None:
    state = run_in_virtual_time(plan(None)).final_state()
    assert any(bool(torch.isnan(tensor).any()) for tensor in state.values())


def test_with_the_rule_to_stop_the_run_ends_with_an_error_that_names_the_step(wording: Wording) -> None:
    with wording.raises(HopelessError):
        run_in_virtual_time(plan(OnNan.STOP))


def test_with_the_rule_to_skip_exactly_that_update_is_missing() -> None:
    run = run_in_virtual_time(plan(OnNan.SKIP))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.final_state().values())
    skipped = [event for event in run.history.plain if event.kind == "step_skipped"]
    assert {(event.who, event.fields["step"]) for event in skipped} == {
        ("worker-0", BAD_STEP),
        ("worker-1", BAD_STEP),
    }
    before = run_in_virtual_time(plan(OnNan.SKIP, steps=BAD_STEP)).final_state()
    after = run_in_virtual_time(plan(OnNan.SKIP, steps=BAD_STEP + 1)).final_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_looking_changes_nothing_when_all_is_well() -> None:
    healthy = dataclasses.replace(plan(OnNan.SKIP), byzantine=())
    plain = dataclasses.replace(plan(None), byzantine=())
    one, other = run_in_virtual_time(healthy).final_state(), run_in_virtual_time(plain).final_state()
    assert all(torch.equal(one[name], other[name]) for name in one)

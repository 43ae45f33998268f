"""Non-finite means are detected before they are applied, with the same decision on all workers."""

import dataclasses

import pytest
import torch
from tests.fixtures.plans import small_plan

from paceline.core.errors import HopelessError
from paceline.plan.plan import OnNan, Plan, StrategyOptions
from paceline.strategies.allreduce import is_non_finite, non_finite_shards
from paceline.sync.fault_rules import Attack, ByzantineRule
from paceline.worker.entry.virtual import VirtualRun, run_virtual

BAD_STEP = 5


def plan(on_nan: OnNan | None, **changes: object) -> Plan:
    rule = ByzantineRule(attack=Attack.NAN, worker=1, first_step=BAD_STEP, end_step=BAD_STEP + 1)
    return small_plan("ssgd", byzantine=(rule,), strategy=StrategyOptions(on_nan=on_nan), **changes)


def ran(plan: Plan) -> VirtualRun:
    done = run_virtual(plan)
    for error in done.errors:
        if error is not None:
            raise error
    return done


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_number_anywhere_is_noticed(bad: float) -> None:
    vector = torch.arange(1000.0)
    assert not is_non_finite(vector)
    vector[777] = bad
    assert is_non_finite(vector)
    assert non_finite_shards([torch.zeros(1000), vector, torch.ones(1000)]) == [1]


def test_without_a_rule_one_bad_gradient_spoils_everything() -> None:
    state = ran(plan(None)).final_state()
    assert any(bool(torch.isnan(tensor).any()) for tensor in state.values())


def test_with_the_rule_to_stop_the_run_ends_with_an_error_that_names_the_step() -> None:
    with pytest.raises(HopelessError, match=f"step {BAD_STEP} is not finite"):
        ran(plan(OnNan.STOP))


def test_with_the_rule_to_skip_exactly_that_update_is_missing() -> None:
    done = ran(plan(OnNan.SKIP))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in done.final_state().values())
    skipped = [event for event in done.history.plain if event.kind == "step_skipped"]
    assert {(event.who, event.fields["step"]) for event in skipped} == {
        ("worker-0", BAD_STEP),
        ("worker-1", BAD_STEP),
    }
    before = ran(plan(OnNan.SKIP, steps=BAD_STEP)).final_state()
    after = ran(plan(OnNan.SKIP, steps=BAD_STEP + 1)).final_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_looking_changes_nothing_when_all_is_well() -> None:
    healthy = dataclasses.replace(plan(OnNan.SKIP), byzantine=())
    plain = dataclasses.replace(plan(None), byzantine=())
    one, other = ran(healthy).final_state(), ran(plain).final_state()
    assert all(torch.equal(one[name], other[name]) for name in one)

"""Impossible aggregations and attacks are refused; possible ones are explained."""

from typing import Any

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, Problem
from paceline.plan.codec import dumps, loads
from paceline.plan.explain import explain
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve
from paceline.sync.fault_rules import Attack, ByzantineRule

MINE = Facts(modules=frozenset({"mine"}))
BAD = (ByzantineRule(worker=1, attack=Attack.GARBAGE),)


def plan(**options: Any) -> Plan:  # Any: fields of TrainConfig
    return resolve(TrainConfig(**options), MINE)


def problem(**options: Any) -> Problem:  # Any: fields of TrainConfig
    with pytest.raises(ConfigError) as caught:
        plan(**options)
    (only,) = caught.value.problems
    return only


def said_about(topic: str, **options: Any) -> str:  # Any: fields of TrainConfig
    return " | ".join(line.text for line in explain(plan(**options)) if line.topic == topic)


@pytest.mark.parametrize(
    ("way", "tolerance", "fewest"),
    [("median", 1, 3), ("trimmed-mean", 1, 3), ("trimmed-mean", 3, 7), ("krum", 1, 5), ("krum", 2, 7)],
)
def test_each_way_needs_enough_workers(way: str, tolerance: int, fewest: int, wording: Wording) -> None:
    given = {"aggregate": way, "byzantine_tolerance": tolerance}
    assert plan(num_workers=fewest, **given).strategy.aggregate == way
    error = problem(num_workers=fewest - 1, **given)
    assert str(fewest) in error.what
    assert f"num_workers to {fewest}" in error.hint
    wording(error.what)


def test_the_default_tolerates_one_and_case_does_not_matter() -> None:
    options = plan(aggregate="Krum", num_workers=5).strategy
    assert (options.aggregate, options.byzantine_tolerance) == ("krum", 1)


def test_the_hint_names_a_tolerance_that_works() -> None:
    error = problem(num_workers=6, aggregate="krum", byzantine_tolerance=5)
    assert "byzantine_tolerance to 1" in error.hint
    assert plan(num_workers=6, aggregate="krum", byzantine_tolerance=1)
    assert "tolerance" not in problem(num_workers=2, aggregate="krum").hint


def test_an_aggregate_is_built_in_or_a_function_of_a_module_that_exists(wording: Wording) -> None:
    assert plan(aggregate="mine:Thing").strategy.aggregate == "mine:Thing"
    wording(problem(aggregate="other:thing").what)
    assert "module:function" in problem(aggregate="mine:").what
    assert "krum?" in problem(aggregate="krun").hint


def test_only_modes_that_see_all_gradients_of_a_step_read_it(wording: Wording) -> None:
    error = problem(mode="asgd", num_workers=8, aggregate="median")
    assert error.hint.endswith("ssgd, ps")
    wording(error.what)


def test_a_tolerance_without_a_robust_way_is_refused(wording: Wording) -> None:
    wording(problem(byzantine_tolerance=1).what)
    wording(problem(aggregate="mine:thing", byzantine_tolerance=1).what)


@pytest.mark.parametrize("way", ["median", "mine:thing"])
def test_weights_have_no_meaning_for_a_robust_way(way: str, wording: Wording) -> None:
    error = problem(aggregate=way, num_workers=3, batch_size=(8, 8, 16))
    assert "(8, 8, 16)" in error.what
    wording(error.what)


@pytest.mark.parametrize(
    "rule",
    [
        ByzantineRule(worker=2, attack=Attack.ZERO),
        ByzantineRule(attack=Attack.ZERO, scale=2.0),
        ByzantineRule(attack=Attack.SCALE, scale=float("inf")),
        ByzantineRule(attack=Attack.ZERO, probability=0.0),
        ByzantineRule(attack=Attack.ZERO, first_step=-1),
        ByzantineRule(attack=Attack.ZERO, first_step=5, end_step=5),
    ],
)
def test_a_wrong_rule_is_one_problem_at_its_place(rule: ByzantineRule, wording: Wording) -> None:
    error = problem(byzantine=(*BAD, rule), origins={"byzantine": "--b", "byzantine[1]": "t.yaml:3"})
    assert error.where == "t.yaml:3"
    wording(error.what)


def test_torchs_ddp_cannot_be_attacked(wording: Wording) -> None:
    wording(problem(mode="ddp", byzantine=BAD).what)


def test_a_plan_with_attacks_survives_json() -> None:
    whole = plan(byzantine=BAD, num_workers=5, aggregate="krum")
    assert loads(dumps(whole)) == whole


def test_attacks_and_their_cure_are_explained(wording: Wording) -> None:
    rules = (*BAD, ByzantineRule(attack=Attack.SIGN_FLIP, probability=0.1, first_step=5))
    wording(said_about("byzantine", byzantine=rules))
    wording(said_about("aggregate", aggregate="krum", num_workers=8))
    wording(said_about("travels", aggregate="krum", num_workers=8))
    assert said_about("aggregate") == ""


def test_a_mean_is_known_not_to_survive(wording: Wording) -> None:
    mean = said_about("remark", byzantine=BAD)
    assert "--aggregate" in mean
    asynchronous = said_about("remark", byzantine=BAD, mode="asgd")
    assert "--mode ssgd" in asynchronous
    survives = said_about("remark", byzantine=BAD, num_workers=5, aggregate="median")
    many = (*BAD, ByzantineRule(worker=2, attack=Attack.NAN))
    too_many = said_about("remark", byzantine=many, num_workers=5, aggregate="median")
    for text in (mean, asynchronous, survives, too_many):
        wording(text)

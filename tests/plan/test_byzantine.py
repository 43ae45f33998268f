"""Are impossible aggregations and attacks refused, and are the possible ones explained?"""

from typing import Any

import pytest

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


def plan(**said: Any) -> Plan:  # Any: fields of TrainConfig
    return resolve(TrainConfig(**said), MINE)


def problem(**said: Any) -> Problem:  # Any: fields of TrainConfig
    with pytest.raises(ConfigError) as caught:
        plan(**said)
    (only,) = caught.value.problems
    return only


def said_about(topic: str, **said: Any) -> str:  # Any: fields of TrainConfig
    return " | ".join(line.text for line in explain(plan(**said)) if line.topic == topic)


@pytest.mark.parametrize(
    ("way", "tolerance", "fewest"),
    [("median", 1, 3), ("trimmed-mean", 1, 3), ("trimmed-mean", 3, 7), ("krum", 1, 5), ("krum", 2, 7)],
)
def test_each_way_needs_enough_workers(way: str, tolerance: int, fewest: int) -> None:
    said = {"aggregate": way, "byzantine_tolerance": tolerance}
    assert plan(num_workers=fewest, **said).strategy.aggregate == way
    found = problem(num_workers=fewest - 1, **said)
    assert f"among {fewest} or more, but there are {fewest - 1} workers" in found.what
    assert f"set num_workers to {fewest} or more" in found.hint


def test_the_default_tolerates_one_and_case_does_not_matter() -> None:
    options = plan(aggregate="Krum", num_workers=5).strategy
    assert (options.aggregate, options.byzantine_tolerance) == ("krum", 1)


def test_the_hint_names_a_tolerance_that_works() -> None:
    found = problem(num_workers=6, aggregate="krum", byzantine_tolerance=5)
    assert found.hint.endswith("or byzantine_tolerance to 1")
    assert plan(num_workers=6, aggregate="krum", byzantine_tolerance=1)
    assert "tolerance" not in problem(num_workers=2, aggregate="krum").hint


def test_an_aggregate_is_built_in_or_a_function_of_a_module_that_exists() -> None:
    assert plan(aggregate="mine:Thing").strategy.aggregate == "mine:Thing"
    assert "there is no module other" in problem(aggregate="other:thing").what
    assert "must be module:function" in problem(aggregate="mine:").what
    assert "did you mean krum?" in problem(aggregate="krun").hint


def test_only_modes_that_see_all_gradients_of_a_step_read_it() -> None:
    found = problem(mode="asgd", num_workers=8, aggregate="median")
    assert (found.what, found.hint.endswith("ssgd, ps")) == ("mode asgd does not read aggregate", True)


def test_a_tolerance_without_a_robust_way_is_refused() -> None:
    assert problem(byzantine_tolerance=1).what == "aggregate mean does not read byzantine_tolerance"
    assert "does not read" in problem(aggregate="mine:thing", byzantine_tolerance=1).what


@pytest.mark.parametrize("way", ["median", "mine:thing"])
def test_weights_have_no_meaning_for_a_robust_way(way: str) -> None:
    found = problem(aggregate=way, num_workers=3, batch_size=(8, 8, 16))
    assert "gives no worker a weight, but the batches differ: (8, 8, 16)" in found.what


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (ByzantineRule(worker=2, attack=Attack.ZERO), "there is no worker 2 among 2"),
        (ByzantineRule(attack=Attack.ZERO, scale=2.0), "zero has no scale"),
        (ByzantineRule(attack=Attack.SCALE, scale=float("inf")), "scale is inf"),
        (ByzantineRule(attack=Attack.ZERO, probability=0.0), "p is 0"),
        (ByzantineRule(attack=Attack.ZERO, first_step=-1), "from is -1"),
        (ByzantineRule(attack=Attack.ZERO, first_step=5, end_step=5), "before it begins"),
    ],
)
def test_a_wrong_rule_is_one_problem_at_its_place(rule: ByzantineRule, what: str) -> None:
    found = problem(byzantine=(*BAD, rule), origins={"byzantine": "--b", "byzantine[1]": "t.yaml:3"})
    assert what in found.what
    assert found.where == "t.yaml:3"


def test_torchs_ddp_cannot_be_attacked() -> None:
    assert "averages within backward" in problem(mode="ddp", byzantine=BAD).what


def test_a_plan_with_attacks_survives_json() -> None:
    whole = plan(byzantine=BAD, num_workers=5, aggregate="krum")
    assert loads(dumps(whole)) == whole


def test_attacks_and_their_cure_are_explained() -> None:
    rules = (*BAD, ByzantineRule(attack=Attack.SIGN_FLIP, probability=0.1, first_step=5))
    assert said_about("byzantine", byzantine=rules) == (
        "worker 1 sends noise 100 times as long as its gradient, at every step | "
        "every worker sends its gradient times -1 with probability 0.1, from step 5 on"
    )
    assert "1 bad worker of 8 can do no harm" in said_about("aggregate", aggregate="krum", num_workers=8)
    assert "to every worker" in said_about("travels", aggregate="krum", num_workers=8)
    assert said_about("aggregate") == ""


def test_a_mean_is_known_not_to_survive() -> None:
    assert "a mean does not survive even one; use --aggregate" in said_about("remark", byzantine=BAD)
    assert "use --mode ssgd or ps with" in said_about("remark", byzantine=BAD, mode="asgd")
    survives = said_about("remark", byzantine=BAD, num_workers=5, aggregate="median")
    assert "bad" not in survives
    many = (*BAD, ByzantineRule(worker=2, attack=Attack.NAN))
    assert "2 workers are bad, but median is set to survive 1" in said_about(
        "remark", byzantine=many, num_workers=5, aggregate="median"
    )

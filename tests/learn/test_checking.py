"""What must a learner have done, and what is one told who has not? By facts, without a run."""

from dataclasses import replace

import pytest

from paceline.learn.course import PARTS
from paceline.learn.lesson import Facts, Finding, KillFacts, Part, RuleFacts, RunFacts
from paceline.learn.progress import PartProgress, Progress, check, current, skipped

BEGAN_S = 1000.0
ALONE = RunFacts(
    folder="runs/alone",
    began_unix_s=BEGAN_S,
    mode="single",
    workers=1,
    steps=160,
    pace_s=0.025,
    samples=5120,
    samples_per_s=1200.0,
    updates=160,
    phases_s={"data": 0.1, "forward": 0.1, "backward": 0.1, "delay": 3.6, "wait": 0.0},
)
FOUR = replace(ALONE, folder="runs/four", mode="ssgd", workers=4, steps=40, samples_per_s=4440.0, updates=40)
SLOW = replace(
    FOUR,
    folder="runs/slow",
    slow={1: 3.0},
    samples_per_s=1570.0,
    phases_s={"delay": 4.9, "wait": 5.1},
    own_s={0: 0.026, 1: 0.078, 2: 0.026, 3: 0.026},
    wait_s={0: 2.0, 1: 0.1, 2: 2.0, 3: 2.0},
    speeds={0: 1.0, 1: 0.33, 2: 1.0, 3: 1.0},
)
STRUCK = RunFacts(
    folder="runs/struck",
    began_unix_s=BEGAN_S,
    mode="ssgd",
    workers=3,
    steps=20000,
    pace_s=0.025,
    is_elastic=True,
    outcome="stopped",
    generations={1: BEGAN_S + 1, 2: BEGAN_S + 5, 3: BEGAN_S + 6},
    lost=("worker-1",),
    healed_from=("worker-0",),
    steps_unix_s=(BEGAN_S + 2, BEGAN_S + 4, BEGAN_S + 10),
    proofs=((True, "every step once"),),
)
LED = replace(STRUCK, folder="runs/led", workers=2, generations={1: BEGAN_S + 1}, lost=(), healed_from=())
RULE = RuleFacts(name="SomebodyIsSlow", conditions=2, fired={"slow": ("worker-1",), "four": ()})


def _done(part: Part, answers: dict[int, str], facts: Facts, guess: str = "1") -> list[Finding]:
    said = Progress().begin(part.number, 0.0).predict(part.number, guess, 1.0)
    for number, value in answers.items():
        said = said.answer(part.number, number, value, 2.0)
    return check(part, said.of(part.number), facts)


def _missing(findings: list[Finding]) -> list[str]:
    return [found.what for found in findings if not found.ok]


@pytest.mark.parametrize(
    ("part", "answers"),
    [
        (1, {1: "5120", 2: "c"}),
        (2, {1: "3.7", 2: "93", 3: "40"}),
        (3, {1: "2.8", 2: "1", 3: "51"}),
        (5, {1: "3", 2: "b"}),
    ],
)
def test_a_part_is_done_when_all_was_seen_and_answered(part: int, answers: dict[int, str]) -> None:
    facts = Facts(runs={"alone": ALONE, "four": FOUR, "slow": SLOW, "struck": STRUCK})
    assert _missing(_done(PARTS[part - 1], answers, facts)) == []
    for number in answers:
        wrong = {**answers, number: "a" if answers[number].isalpha() else "0"}
        missing = _missing(_done(PARTS[part - 1], wrong, facts))
        assert len(missing) == 1
        assert f"question {number}: " in missing[0]


def test_nothing_is_done_before_it_was_begun_predicted_and_run() -> None:
    assert _missing(check(PARTS[0], None, Facts())) == ["part 1 was not begun"]
    begun = check(PARTS[0], PartProgress(begun_unix_s=0.0), Facts())
    assert _missing(begun)[:2] == ["nothing was predicted", "there is no run called alone that is over"]
    assert all(found.hint for found in begun if not found.ok)


def test_a_run_that_began_before_the_prediction_does_not_count() -> None:
    said = Progress().begin(1, 0.0).predict(1, "1280", BEGAN_S + 1)
    missing = _missing(check(PARTS[0], said.of(1), Facts(runs={"alone": ALONE})))
    assert "runs/alone began before the prediction" in missing


def test_another_run_under_the_right_name_is_recognised() -> None:
    other = replace(SLOW, mode="asgd", slow={2: 3.0}, samples=100)
    missing = _missing(_done(PARTS[2], {}, Facts(runs={"four": FOUR, "slow": other})))
    assert "its mode is asgd, not ssgd" in missing[0]
    assert "worker 2 by 3, not worker 1 by 3" in missing[0]
    assert "it saw 100 samples" in missing[0]


def test_a_worker_that_was_never_killed_is_told() -> None:
    quiet = replace(STRUCK, generations={1: BEGAN_S + 1}, lost=(), healed_from=())
    missing = _missing(_done(PARTS[4], {}, Facts(runs={"struck": quiet})))
    assert "killed in runs/struck: nobody" in missing
    assert "generations of runs/struck: 1" in missing


def test_only_a_leader_that_was_killed_while_the_run_trained_counts() -> None:
    first = KillFacts(node=3, was_leader=True, term=1, at_unix_s=BEGAN_S + 2, leader=2, new_term=2)
    second = KillFacts(node=2, was_leader=True, term=2, at_unix_s=BEGAN_S + 3, leader=None)
    answers = {1: "2", 2: "1", 3: "2"}
    facts = Facts(runs={"led": LED}, kills=(first, second), nodes=3)
    assert _missing(_done(PARTS[5], answers, facts)) == []
    late = replace(facts, kills=(replace(first, at_unix_s=BEGAN_S + 60),))
    assert "no leader was killed" in _missing(_done(PARTS[5], answers, late))[0]
    assert len(_missing(_done(PARTS[5], answers, replace(facts, kills=(first,))))) == 1


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        (RULE, ""),
        (replace(RULE, conditions=1), "has 1 condition"),
        (replace(RULE, fired={"slow": (), "four": ()}), "on the record of `slow`: silent"),
        (replace(RULE, fired={"slow": ("worker-0", "worker-1"), "four": ()}), "accuses nobody but worker-1"),
        (replace(RULE, fired={"slow": ("worker-1", "worker-1"), "four": ()}), "fires once"),
        (replace(RULE, fired={"slow": ("worker-1",), "four": ("worker-2",)}), "on the record of `four`"),
    ],
)
def test_a_rule_must_find_the_slow_worker_and_nobody_else(rule: RuleFacts, missing: str) -> None:
    facts = Facts(runs={"four": FOUR, "slow": SLOW}, rules=(rule,))
    found = _missing(_done(PARTS[6], {1: "0.3", 2: "1"}, facts, guess="a"))
    assert found == [] if not missing else any(missing in what for what in found)


def test_without_rules_the_learner_is_told_why() -> None:
    facts = Facts(runs={"four": FOUR, "slow": SLOW}, rules_problem="rules.yaml: line 3 is no rule")
    assert "rules.yaml: line 3 is no rule" in _missing(_done(PARTS[6], {}, facts, guess="a"))


def test_parts_that_were_skipped_are_named_and_the_first_open_one_is_next() -> None:
    said = Progress().begin(1, 0.0).judged(1, 5.0, is_done=True).begin(3, 6.0)
    assert skipped(4, said) == [2, 3]
    found = current(PARTS, said)
    assert found is not None
    assert found.number == 2
    assert [said.state(number) for number in (1, 2, 3)] == ["done", "not begun", "begun"]
    assert said.judged(1, 9.0, is_done=False).state(1) == "begun"


def test_tries_are_counted() -> None:
    said = Progress().begin(1, 0.0).answer(1, 1, "7", 1.0).answer(1, 1, "8", 2.0)
    assert said.parts["1"].answers["1"].tries == 2

"""The checker of the exercises: what must be done, and the message if it is not; without a run."""

from dataclasses import replace

import pytest
from tests.fixtures.wording import Wording

from paceline.learn.course import PARTS
from paceline.learn.lesson import Facts, Finding, KillFacts, LeaderSample, Part, RuleFacts, RunFacts
from paceline.learn.progress import Moment, PartProgress, Progress, check, current, dumps, loads, skipped

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
LED = replace(
    STRUCK,
    folder="runs/led",
    workers=2,
    generations={1: BEGAN_S + 1},
    lost=(),
    healed_from=(),
    leaders=(
        LeaderSample(leader=3, term=1),
        LeaderSample(leader=2, term=2),
        LeaderSample(leader=None, term=None),
    ),
)
RULE = RuleFacts(name="WorkerIsSlow", conditions=2, fired={"slow": ("worker-1",), "four": ()})


def _check_part(part: Part, answers: dict[int, str], facts: Facts, guess: str = "1") -> list[Finding]:
    progress = Progress().begin(part.number, 0.0).predict(part.number, guess, at(1.0))
    for number, value in answers.items():
        progress = progress.answer(part.number, number, value, 2.0)
    return check(part, progress.of(part.number), facts)


def at(unix_s: float, monotonic_ns: int = 0, boot_id: str = "") -> Moment:
    return Moment(unix_s=unix_s, monotonic_ns=monotonic_ns, boot_id=boot_id)


def _missing(findings: list[Finding]) -> list[str]:
    return [finding.what for finding in findings if not finding.ok]


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
    assert _missing(_check_part(PARTS[part - 1], answers, facts)) == []
    for number in answers:
        wrong = {**answers, number: "a" if answers[number].isalpha() else "0"}
        missing = _missing(_check_part(PARTS[part - 1], wrong, facts))
        assert len(missing) == 1
        assert f"question {number}: " in missing[0]


def test_nothing_is_complete_before_it_was_started_predicted_and_run(wording: Wording) -> None:
    (not_begun,) = _missing(check(PARTS[0], None, Facts()))
    wording(not_begun)
    begun = check(PARTS[0], PartProgress(begun_unix_s=0.0), Facts())
    wording("\n".join(_missing(begun)))
    assert all(finding.hint for finding in begun if not finding.ok)


def test_a_run_that_began_before_the_prediction_does_not_count(wording: Wording) -> None:
    progress = Progress().begin(1, 0.0).predict(1, "1280", at(BEGAN_S + 1))
    missing = _missing(check(PARTS[0], progress.of(1), Facts(runs={"alone": ALONE})))
    (early,) = (what for what in missing if "runs/alone" in what)
    wording(early)


@pytest.mark.parametrize(
    ("existing", "first_step_ns", "boot_id", "is_after"),
    [
        ((), 200, "this", True),
        (("same",), 200, "this", False),  # the run existed
        ((), 50, "this", False),  # its steps ran before the prediction
        (("same",), 200, "other", False),
        ((), 50, "other", True),  # clocks of another boot cannot be compared: the header decides
    ],
)
def test_the_header_of_a_run_does_not_decide_whether_it_is_new(
    existing: tuple[str, ...], first_step_ns: int, boot_id: str, *, is_after: bool
) -> None:
    forged = replace(ALONE, began_unix_s=BEGAN_S + 100, first_step_ns=first_step_ns, fingerprint="same")
    progress = Progress().begin(1, 0.0).predict(1, "1280", at(BEGAN_S + 1, 100, "this"), existing)
    facts = Facts(runs={"alone": forged}, boot_id=boot_id)
    missing = _missing(check(PARTS[0], progress.of(1), facts))
    assert any("runs/alone" in what for what in missing) != is_after


def test_a_run_whose_result_was_changed_is_recognised(wording: Wording) -> None:
    changed = replace(ALONE, is_consistent=False)
    missing = _missing(_check_part(PARTS[0], {1: "5120", 2: "c"}, Facts(runs={"alone": changed})))
    wording("\n".join(missing))
    assert len(missing) == 1


def test_an_edited_progress_file_is_recognised_and_stays_invalid(wording: Wording) -> None:
    written = dumps(Progress().begin(1, 0.0).predict(1, "1280", at(BEGAN_S + 1)))
    progress, is_valid = loads(written)
    assert is_valid
    assert dumps(progress) == written
    forged, is_valid = loads(written.replace(str(BEGAN_S + 1), "1.0"))
    assert not is_valid
    assert not loads(dumps(forged, is_valid=is_valid))[1]
    missing = _missing(check(PARTS[0], forged.of(1), Facts(runs={"alone": ALONE}), is_valid=is_valid))
    wording(missing[0])


def test_a_progress_file_of_the_first_schema_is_read_and_not_trusted() -> None:
    old = (
        '{"parts": {"1": {"begun_unix_s": 1.0, "prediction": {"value": "7", "at_unix_s": 2.0, "tries": 1},'
        ' "answers": {}, "done_unix_s": null}}, "schema": "paceline.learn/1"}'
    )
    progress, is_valid = loads(old)
    assert progress.state(1) == "predicted"
    assert not is_valid


def test_another_run_under_the_right_name_is_recognised(wording: Wording) -> None:
    other = replace(SLOW, mode="asgd", slow={2: 3.0}, samples=100)
    missing = _missing(_check_part(PARTS[2], {}, Facts(runs={"four": FOUR, "slow": other})))
    for name in ("asgd", "worker 2 by 3", "100 samples"):
        assert name in missing[0]
    wording(missing[0])


def test_a_worker_that_was_never_killed_is_reported(wording: Wording) -> None:
    quiet = replace(STRUCK, generations={1: BEGAN_S + 1}, lost=(), healed_from=())
    missing = _missing(_check_part(PARTS[4], {}, Facts(runs={"struck": quiet})))
    wording("\n".join(description for description in missing if "runs/struck" in description))


def test_only_a_leader_that_was_killed_while_the_run_trained_counts(wording: Wording) -> None:
    first = KillFacts(node=3, was_leader=True, term=1, at_unix_s=BEGAN_S + 2, leader=2, new_term=2)
    second = KillFacts(node=2, was_leader=True, term=2, at_unix_s=BEGAN_S + 3, leader=None)
    answers = {1: "2", 2: "1", 3: "2"}
    facts = Facts(runs={"led": LED}, kills=(first, second), nodes=3)
    assert _missing(_check_part(PARTS[5], answers, facts)) == []
    late = replace(facts, kills=(replace(first, at_unix_s=BEGAN_S + 60),))
    wording(_missing(_check_part(PARTS[5], answers, late))[0])
    invented = replace(facts, runs={"led": replace(LED, leaders=(LeaderSample(leader=3, term=1),))})
    assert len(_missing(_check_part(PARTS[5], answers, invented))) > 1, (
        "the log of the run knows no other leader"
    )
    assert len(_missing(_check_part(PARTS[5], answers, replace(facts, kills=(first,))))) == 1


@pytest.mark.parametrize(
    ("rule", "is_enough"),
    [
        (RULE, True),
        (replace(RULE, conditions=1), False),
        (replace(RULE, fired={"slow": (), "four": ()}), False),
        (replace(RULE, fired={"slow": ("worker-0", "worker-1"), "four": ()}), False),
        (replace(RULE, fired={"slow": ("worker-1", "worker-1"), "four": ()}), False),
        (replace(RULE, fired={"slow": ("worker-1",), "four": ("worker-2",)}), False),
    ],
)
def test_a_rule_must_find_the_slow_worker_and_no_other(
    rule: RuleFacts, *, is_enough: bool, wording: Wording
) -> None:
    facts = Facts(runs={"four": FOUR, "slow": SLOW}, rules=(rule,))
    result = _missing(_check_part(PARTS[6], {1: "0.3", 2: "1"}, facts, guess="a"))
    assert (result == []) == is_enough
    if not is_enough:
        wording("\n".join(result))


def test_without_rules_the_learner_gets_the_reason() -> None:
    problem = "rules.yaml: line 3 is no rule"
    facts = Facts(runs={"four": FOUR, "slow": SLOW}, rules_problem=problem)
    assert problem in _missing(_check_part(PARTS[6], {}, facts, guess="a"))


def test_parts_that_were_skipped_are_named_and_the_first_open_one_is_next() -> None:
    text = Progress().begin(1, 0.0).judged(1, 5.0, is_done=True).begin(3, 6.0)
    assert skipped(4, text) == [2, 3]
    part = current(PARTS, text)
    assert part is not None
    assert part.number == 2
    assert [text.state(number) for number in (1, 2, 3)] == ["done", "not begun", "begun"]
    assert text.judged(1, 9.0, is_done=False).state(1) == "begun"


def test_tries_are_counted() -> None:
    response = Progress().begin(1, 0.0).answer(1, 1, "7", 1.0).answer(1, 1, "8", 2.0)
    assert response.parts["1"].answers["1"].tries == 2

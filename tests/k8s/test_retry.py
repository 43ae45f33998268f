"""Retry budgets: which one pays for an attempt, and when retries end. On a virtual clock."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.classify import FAILURES, UNKNOWN
from paceline.k8s.diagnose.findings import Failure, FailureClass, Finding, Remedy
from paceline.k8s.diagnose.retry import Attempts, Resubmit, RetryPolicy, Stop, decide
from paceline.k8s.diagnose.rules.application import LISTED_EXIT_CODE, USER_EXCEPTION
from paceline.k8s.diagnose.rules.images import IMAGE_NOT_FOUND
from paceline.k8s.diagnose.rules.nodes import NODE_LOST, OOM_KILLED, PREEMPTED


def finding(failure: Failure, *, step: int | None = None, rank: int = 0, node: str = "node-a") -> Finding:
    return Finding(
        failure=failure,
        cause=failure.what,
        evidence=("seen",),
        why="",
        command="",
        rank=rank,
        step=step,
        node=node,
    )


def life(failures: list[Finding], policy: RetryPolicy) -> tuple[list[Resubmit | Stop], Attempts]:
    past, decisions, now_s = Attempts(), list[Resubmit | Stop](), 0.0
    for failure in failures:
        decision, past = decide(failure, past, policy, 100, now_s, 1.0)
        decisions.append(decision)
        if isinstance(decision, Stop):
            break
        now_s = decision.not_before_s + 60
    return decisions, past


def test_the_cluster_s_failures_have_a_budget_of_three_with_growing_pauses(wording: Wording) -> None:
    failures = [finding(NODE_LOST, step=10 * n, node=f"node-{n}") for n in range(4)]
    decisions, past = life(failures, RetryPolicy())
    again = [decision for decision in decisions if isinstance(decision, Resubmit)]
    assert [item.attempt for item in again] == [2, 3, 4]
    assert again[2].excluded == ("node-0", "node-1", "node-2")
    assert "step 100" in again[0].says
    assert isinstance(decisions[3], Stop)
    wording(decisions[3].says)
    assert (past.infra_used, past.app_used) == (3, 0)


def test_pauses_double_up_to_five_minutes_and_are_spread(wording: Wording) -> None:
    policy, past, pauses = RetryPolicy(infra=9), Attempts(), []
    for n in range(7):
        decision, past = decide(finding(NODE_LOST, step=10 * n), past, policy, None, 0.0, 1.0)
        assert isinstance(decision, Resubmit)
        wording(decision.says)
        pauses.append(decision.not_before_s)
    assert pauses == [15, 30, 60, 120, 240, 300, 300]
    early, _ = decide(finding(NODE_LOST), Attempts(), policy, None, 0.0, 0.0)
    assert isinstance(early, Resubmit)
    assert early.not_before_s == 0.75 * 15


def test_the_two_budgets_do_not_pay_for_each_other() -> None:
    policy = RetryPolicy(infra=1, app=1)
    failures = [finding(NODE_LOST, step=1), finding(USER_EXCEPTION, step=9), finding(USER_EXCEPTION, step=20)]
    decisions, past = life(failures, policy)
    assert [decision.action for decision in decisions] == ["resubmit", "resubmit", "stop"]
    assert [decision.budget for decision in decisions if isinstance(decision, Resubmit)] == ["infra", "app"]
    assert (past.infra_used, past.app_used) == (1, 1)


def test_the_same_failure_at_about_the_same_step_twice_stops_it(wording: Wording) -> None:
    failures = [finding(NODE_LOST, step=51), finding(NODE_LOST, step=52)]
    decisions, _ = life(failures, RetryPolicy())
    assert isinstance(decisions[1], Stop)
    wording(decisions[1].says)
    elsewhere = [finding(NODE_LOST, step=51), finding(NODE_LOST, step=52, rank=3)]
    assert [item.action for item in life(elsewhere, RetryPolicy())[0]] == ["resubmit", "resubmit"]


def test_preemption_costs_nothing_and_never_ends_a_job() -> None:
    decisions, past = life([finding(PREEMPTED, step=7)] * 20, RetryPolicy())
    assert {decision.action for decision in decisions} == {"resubmit"}
    assert (past.number, past.infra_used) == (21, 0)


def test_a_listed_exit_code_costs_nothing_but_not_twice_at_one_step() -> None:
    on_its_way = [finding(LISTED_EXIT_CODE, step=10 * n) for n in range(5)]
    assert {item.action for item in life(on_its_way, RetryPolicy())[0]} == {"resubmit"}
    stuck = [finding(LISTED_EXIT_CODE, step=10)] * 2
    assert [item.action for item in life(stuck, RetryPolicy())[0]] == ["resubmit", "stop"]


def test_memory_is_raised_once_and_only_with_leave() -> None:
    refused, _ = life([finding(OOM_KILLED, step=1)], RetryPolicy())
    assert "--allow memory" in refused[0].says
    allowed = RetryPolicy(allowed_changes=frozenset({"memory"}))
    decisions, past = life([finding(OOM_KILLED, step=1), finding(OOM_KILLED, step=99)], allowed)
    assert [decision.action for decision in decisions] == ["resubmit", "stop"]
    assert past.changes == ("memory",)


def test_exit_codes_distinguish_wrong_settings_from_failed_training() -> None:
    wrong, _ = life([finding(IMAGE_NOT_FOUND)], RetryPolicy())
    failed, _ = life([finding(USER_EXCEPTION)], RetryPolicy())
    assert isinstance(wrong[0], Stop)
    assert isinstance(failed[0], Stop)
    assert (wrong[0].exit_code, failed[0].exit_code) == (ExitCode.BAD_CONFIG, ExitCode.TRAINING_FAILED)


EVENTS = st.lists(
    st.tuples(st.sampled_from([*FAILURES, UNKNOWN]), st.integers(0, 5), st.integers(0, 2)), max_size=12
)


@settings(max_examples=80)
@given(events=EVENTS, infra=st.integers(0, 3), app=st.integers(0, 2))
def test_no_life_spends_more_than_its_budgets(
    events: list[tuple[Failure, int, int]], infra: int, app: int
) -> None:
    policy = RetryPolicy(infra=infra, app=app)
    failures = [finding(failure, step=10 * step, rank=rank) for failure, step, rank in events]
    decisions, past = life(failures, policy)
    assert past.infra_used <= infra
    assert past.app_used <= app
    assert past.number == 1 + sum(isinstance(decision, Resubmit) for decision in decisions)
    for item, decision in zip(failures, decisions, strict=False):
        if isinstance(decision, Resubmit):
            assert item.failure.remedy in (Remedy.RESUBMIT, Remedy.FIX)
            assert item.kind not in (FailureClass.WAIT, FailureClass.NONE)
            counted = replace(item.failure, counted=True) == item.failure
            assert decision.budget == ("none" if not counted else decision.budget)

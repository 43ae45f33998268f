"""The quorum rule of torchft jobs, as a pure function of requests and time."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.torchft.state import Issue, QuorumRequest, Rule, Wait, next_quorum

RULE = Rule(min_replicas=2, join_timeout_s=60.0, heartbeat_timeout_s=5.0)
NOW_S = 1_000.0
NO_MEMBERS = frozenset[str]()


def asking(*names: str, since_s: float = NOW_S, shrink_only: bool = False) -> dict[str, QuorumRequest]:
    return {
        name: QuorumRequest(torchft.QuorumMember(replica_id=name, shrink_only=shrink_only), since_s)
        for name in names
    }


def heartbeats(*names: str, at_s: float = NOW_S) -> dict[str, float]:
    return dict.fromkeys(names, at_s)


def test_the_first_quorum_is_all_live_replicas_sorted_by_name(wording: Wording) -> None:
    decision = next_quorum(RULE, NO_MEMBERS, asking("c", "a", "b"), heartbeats("a", "b", "c"), NOW_S)
    assert isinstance(decision, Issue)
    assert decision.replicas == ("a", "b", "c")
    wording(decision.reason)


def test_too_few_are_no_quorum_however_long_they_wait(wording: Wording) -> None:
    decision = next_quorum(RULE, NO_MEMBERS, asking("a", since_s=0.0), heartbeats("a"), NOW_S)
    assert isinstance(decision, Wait)
    wording(decision.reason)


def test_when_all_members_are_back_the_quorum_waits_for_no_other_replica() -> None:
    living = heartbeats("a", "b", "c", "d", "e", "f")
    decision = next_quorum(RULE, frozenset("ab"), asking("a", "b"), living, NOW_S)
    assert isinstance(decision, Issue)
    assert decision.replicas == ("a", "b")


def test_a_replica_that_requests_when_all_members_are_back_joins() -> None:
    decision = next_quorum(RULE, frozenset("ab"), asking("a", "b", "new"), heartbeats("a", "b", "new"), NOW_S)
    assert isinstance(decision, Issue)
    assert decision.replicas == ("a", "b", "new")


def test_a_live_member_without_a_request_is_waited_for_until_the_join_timeout(wording: Wording) -> None:
    living, who = heartbeats("a", "b", "c"), asking("a", "b", since_s=NOW_S)
    decision = next_quorum(RULE, frozenset("abc"), who, living, NOW_S + 1)
    assert isinstance(decision, Wait)
    assert decision.until_s == NOW_S + 5.0
    wording(decision.reason)
    later_s = NOW_S + 60.0
    decision = next_quorum(RULE, frozenset("abc"), who, heartbeats("a", "b", "c", at_s=later_s), later_s)
    assert isinstance(decision, Issue)
    assert decision.replicas == ("a", "b")


def test_a_member_that_is_silent_for_too_long_is_left_out_at_once() -> None:
    living = {**heartbeats("a", "b"), "c": NOW_S - 5.0}
    decision = next_quorum(RULE, frozenset("abc"), asking("a", "b"), living, NOW_S)
    assert isinstance(decision, Issue)
    assert decision.replicas == ("a", "b")


def test_half_of_the_live_replicas_are_not_enough() -> None:
    rule = Rule(min_replicas=1, join_timeout_s=1.0, heartbeat_timeout_s=5.0)
    who = asking("a", "b", since_s=0.0)
    assert isinstance(next_quorum(rule, NO_MEMBERS, who, heartbeats("a", "b", "c", "d"), NOW_S), Wait)
    assert isinstance(next_quorum(rule, NO_MEMBERS, who, heartbeats("a", "b", "c"), NOW_S), Issue)


def test_a_replica_that_requests_without_heartbeats_is_not_counted() -> None:
    decision = next_quorum(RULE, NO_MEMBERS, asking("a", "b"), {"a": NOW_S, "b": NOW_S - 9}, NOW_S)
    assert isinstance(decision, Wait)
    assert decision.until_s == NOW_S + 5.0


def test_a_quorum_that_may_only_shrink_accepts_no_new_replica() -> None:
    who = {**asking("a", shrink_only=True), **asking("b", "new")}
    decision = next_quorum(RULE, frozenset("ab"), who, heartbeats("a", "b", "new"), NOW_S)
    assert isinstance(decision, Issue)
    assert decision.replicas == ("a", "b")
    # torchft would issue an empty quorum here.
    strangers = asking("x", "y", shrink_only=True)
    assert isinstance(next_quorum(RULE, frozenset("ab"), strangers, heartbeats("x", "y"), NOW_S), Wait)


def test_no_replica_at_all_is_no_quorum(wording: Wording) -> None:
    decision = next_quorum(RULE, NO_MEMBERS, {}, {}, NOW_S)
    assert isinstance(decision, Wait)
    assert decision.until_s is None
    wording(decision.reason)


NAMES = st.sampled_from("abcdefg")
TIMES = st.floats(0, 20).map(lambda age_s: NOW_S - age_s)
ASKING = st.dictionaries(NAMES, st.tuples(TIMES, st.booleans()), max_size=7).map(
    lambda result: {
        name: QuorumRequest(torchft.QuorumMember(replica_id=name, shrink_only=shrinks), since_s)
        for name, (since_s, shrinks) in result.items()
    }
)
RULES = st.builds(
    Rule,
    min_replicas=st.integers(1, 4),
    join_timeout_s=st.floats(0, 15),
    heartbeat_timeout_s=st.floats(0.1, 10),
)
HEARD = st.dictionaries(NAMES, TIMES, max_size=7)


@settings(max_examples=500)
@given(RULES, st.frozensets(NAMES, max_size=7), ASKING, HEARD)
def test_a_quorum_is_never_weaker_than_torchfts(
    rule: Rule, last: frozenset[str], who: dict[str, QuorumRequest], heard_s: dict[str, float]
) -> None:
    decision = next_quorum(rule, last, who, heard_s, NOW_S)
    living = {name for name, at_s in heard_s.items() if NOW_S - at_s < rule.heartbeat_timeout_s}
    present = living & who.keys()
    may_only_shrink = bool(last) and any(who[name].member.shrink_only for name in present)
    if isinstance(decision, Wait):
        are_all_back = bool(last) and last <= present
        assert not are_all_back or len(last if may_only_shrink else present) < rule.min_replicas
        return
    assert list(decision.replicas) == sorted(set(decision.replicas))
    assert present.issuperset(decision.replicas)
    assert len(decision.replicas) >= rule.min_replicas
    if may_only_shrink:
        assert last.issuperset(decision.replicas)
    if not last or not last <= present:
        assert 2 * len(present) > len(living)
        first_s = min(who[name].since_s for name in present)
        assert present == living or first_s + rule.join_timeout_s <= NOW_S


@settings(max_examples=500)
@given(RULES, st.frozensets(NAMES, max_size=7), ASKING, HEARD, st.floats(0, 1, exclude_max=True))
def test_before_the_time_it_names_waiting_stays_waiting(
    rule: Rule, last: frozenset[str], who: dict[str, QuorumRequest], heard_s: dict[str, float], share: float
) -> None:
    """So the leader need not look in between."""
    decision = next_quorum(rule, last, who, heard_s, NOW_S)
    if isinstance(decision, Issue):
        return
    until_s = NOW_S + 100 if decision.until_s is None else decision.until_s
    between_s = NOW_S + share * (until_s - NOW_S)
    if not math.isclose(between_s, until_s, abs_tol=1e-6):
        assert isinstance(next_quorum(rule, last, who, heard_s, between_s), Wait)

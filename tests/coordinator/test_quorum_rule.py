"""The quorum rule of torchft jobs, as a pure function of requests and time."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.torchft.state import Issue, QuorumRequest, Rule, Wait, next_quorum

RULE = Rule(min_replicas=2, join_timeout_s=60.0, heartbeat_timeout_s=5.0)
NOW_S = 1_000.0
NOBODY = frozenset[str]()


def asking(*names: str, since_s: float = NOW_S, shrink_only: bool = False) -> dict[str, QuorumRequest]:
    return {
        name: QuorumRequest(torchft.QuorumMember(replica_id=name, shrink_only=shrink_only), since_s)
        for name in names
    }


def heard(*names: str, at_s: float = NOW_S) -> dict[str, float]:
    return dict.fromkeys(names, at_s)


def test_the_first_quorum_is_all_who_live_sorted_by_name() -> None:
    found = next_quorum(RULE, NOBODY, asking("c", "a", "b"), heard("a", "b", "c"), NOW_S)
    assert found == Issue(("a", "b", "c"), "all who live are here")


def test_too_few_are_no_quorum_however_long_they_wait() -> None:
    found = next_quorum(RULE, NOBODY, asking("a", since_s=0.0), heard("a"), NOW_S)
    assert isinstance(found, Wait)
    assert "2 are needed" in found.reason


def test_when_all_members_are_back_nobody_else_is_waited_for() -> None:
    living = heard("a", "b", "c", "d", "e", "f")
    found = next_quorum(RULE, frozenset("ab"), asking("a", "b"), living, NOW_S)
    assert isinstance(found, Issue)
    assert found.replicas == ("a", "b")


def test_whoever_asks_when_all_members_are_back_comes_in() -> None:
    found = next_quorum(RULE, frozenset("ab"), asking("a", "b", "new"), heard("a", "b", "new"), NOW_S)
    assert isinstance(found, Issue)
    assert found.replicas == ("a", "b", "new")


def test_a_member_that_lives_but_does_not_ask_is_waited_for_until_the_join_timeout() -> None:
    living, who = heard("a", "b", "c"), asking("a", "b", since_s=NOW_S)
    found = next_quorum(RULE, frozenset("abc"), who, living, NOW_S + 1)
    assert found == Wait("1 replicas live but do not ask yet", NOW_S + 5.0)
    later_s = NOW_S + 60.0
    found = next_quorum(RULE, frozenset("abc"), who, heard("a", "b", "c", at_s=later_s), later_s)
    assert isinstance(found, Issue)
    assert found.replicas == ("a", "b")


def test_a_member_that_is_silent_for_too_long_is_left_out_at_once() -> None:
    living = {**heard("a", "b"), "c": NOW_S - 5.0}
    found = next_quorum(RULE, frozenset("abc"), asking("a", "b"), living, NOW_S)
    assert isinstance(found, Issue)
    assert found.replicas == ("a", "b")


def test_half_of_those_who_live_are_not_enough() -> None:
    rule = Rule(min_replicas=1, join_timeout_s=1.0, heartbeat_timeout_s=5.0)
    who = asking("a", "b", since_s=0.0)
    assert isinstance(next_quorum(rule, NOBODY, who, heard("a", "b", "c", "d"), NOW_S), Wait)
    assert isinstance(next_quorum(rule, NOBODY, who, heard("a", "b", "c"), NOW_S), Issue)


def test_who_asks_but_is_silent_is_not_counted() -> None:
    found = next_quorum(RULE, NOBODY, asking("a", "b"), {"a": NOW_S, "b": NOW_S - 9}, NOW_S)
    assert isinstance(found, Wait)
    assert found.until_s == NOW_S + 5.0


def test_a_quorum_that_may_only_shrink_takes_nobody_in() -> None:
    who = {**asking("a", shrink_only=True), **asking("b", "new")}
    found = next_quorum(RULE, frozenset("ab"), who, heard("a", "b", "new"), NOW_S)
    assert isinstance(found, Issue)
    assert found.replicas == ("a", "b")
    # torchft would issue an empty quorum here.
    strangers = asking("x", "y", shrink_only=True)
    assert isinstance(next_quorum(RULE, frozenset("ab"), strangers, heard("x", "y"), NOW_S), Wait)


def test_nobody_at_all_is_no_quorum() -> None:
    assert next_quorum(RULE, NOBODY, {}, {}, NOW_S) == Wait(
        "0 replicas may take part, and 2 are needed", None
    )


NAMES = st.sampled_from("abcdefg")
TIMES = st.floats(0, 20).map(lambda age_s: NOW_S - age_s)
ASKING = st.dictionaries(NAMES, st.tuples(TIMES, st.booleans()), max_size=7).map(
    lambda found: {
        name: QuorumRequest(torchft.QuorumMember(replica_id=name, shrink_only=shrinks), since_s)
        for name, (since_s, shrinks) in found.items()
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
    found = next_quorum(rule, last, who, heard_s, NOW_S)
    living = {name for name, at_s in heard_s.items() if NOW_S - at_s < rule.heartbeat_timeout_s}
    present = living & who.keys()
    may_only_shrink = bool(last) and any(who[name].member.shrink_only for name in present)
    if isinstance(found, Wait):
        are_all_back = bool(last) and last <= present
        assert not are_all_back or len(last if may_only_shrink else present) < rule.min_replicas
        return
    assert list(found.replicas) == sorted(set(found.replicas))
    assert present.issuperset(found.replicas)
    assert len(found.replicas) >= rule.min_replicas
    if may_only_shrink:
        assert last.issuperset(found.replicas)
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
    found = next_quorum(rule, last, who, heard_s, NOW_S)
    if isinstance(found, Issue):
        return
    until_s = NOW_S + 100 if found.until_s is None else found.until_s
    between_s = NOW_S + share * (until_s - NOW_S)
    if not math.isclose(between_s, until_s, abs_tol=1e-6):
        assert isinstance(next_quorum(rule, last, who, heard_s, between_s), Wait)

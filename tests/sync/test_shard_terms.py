"""Adaptive shards of elastic runs: whole shards, and speeds that outlive a generation."""

from paceline.sync.adaptive_setting import AdaptiveSetting, Allowed, SyncPolicy
from paceline.sync.shard_balancing import FEWEST, AdaptiveMemory, AdaptiveShares, ShardTerms

SLOW, FAST = [0.4] * 8, [0.1] * 8


def terms(
    *names: str, shards: int = 8, allowed: Allowed = Allowed.AUTO, are_equal: bool = True
) -> ShardTerms:
    return ShardTerms(
        allowed=allowed,
        batch_sizes=(1,) * len(names),
        period=4,
        shards=shards,
        names=names,
        are_equal=are_equal,
    )


def test_shards_are_whole_and_a_round_has_as_many_steps_of_each() -> None:
    three = terms("a", "b", "c")
    assert three.as_planned(SyncPolicy.SSGD) == AdaptiveSetting(SyncPolicy.SSGD, (2, 3, 3))
    assert three.as_planned(SyncPolicy.LOCAL_STEPS) == AdaptiveSetting(SyncPolicy.LOCAL_STEPS, (8, 12, 12))
    dealt = three.by_speed(SyncPolicy.LOCAL_STEPS, [0.1, 0.1, 0.4])
    assert three.counts(dealt) == (4, 3, 1)
    assert three.counts(three.by_speed(SyncPolicy.BATCH, [0.1, 0.1, 9.0])) == (4, 3, 1), (
        "every worker keeps one"
    )


def test_a_lasting_slow_worker_gets_fewer_shards_after_two_windows() -> None:
    shares = AdaptiveShares(terms("a", "b"), None)
    assert (shares.policy, shares.counts) == (SyncPolicy.SSGD, (4, 4))
    assert shares.observe([FAST, SLOW]) is not None
    assert shares.counts == (4, 4)
    decision = shares.observe([FAST, SLOW])
    assert decision is not None
    assert decision.reason is not None
    assert decision.reason.startswith("b ")
    assert "4.0 times" in decision.reason
    assert (shares.policy, shares.counts) == (SyncPolicy.BATCH, (7, 1))


def test_too_few_times_decide_nothing() -> None:
    shares = AdaptiveShares(terms("a", "b"), None)
    few = [own[: FEWEST - 1] for own in (FAST, SLOW)]
    assert shares.observe(few) is None
    assert shares.memory == AdaptiveMemory(policy=SyncPolicy.SSGD)


def test_where_shards_differ_in_size_they_are_not_averaged_by_parameters() -> None:
    assert terms("a", "b", are_equal=False).policies == (SyncPolicy.SSGD, SyncPolicy.BATCH)
    assert terms("a", "b").policies == tuple(SyncPolicy)


def test_the_dead_leave_their_speed_and_a_joining_worker_starts_at_the_median() -> None:
    seconds = {"a": 0.1, "b": 0.2, "c": 0.4}
    memory = AdaptiveMemory(
        policy=SyncPolicy.LOCAL_STEPS, preferred=SyncPolicy.BATCH, is_by_speed=True, seconds=seconds
    )
    after = AdaptiveShares(terms("a", "c", "d"), memory)
    assert after.policy is SyncPolicy.LOCAL_STEPS
    middle_s = (0.1 + 0.4) / 2  # of those who are left
    adaptive_setting = terms("a", "c", "d").by_speed(SyncPolicy.LOCAL_STEPS, [0.1, 0.4, middle_s])
    assert after.counts == terms("a", "c", "d").counts(adaptive_setting)
    # Another process under the name of one that died is a newcomer.
    again = AdaptiveShares(terms("a", "b", "c"), memory, newcomers=["c"])
    alone = terms("a", "b", "c").by_speed(SyncPolicy.LOCAL_STEPS, [0.1, 0.2, (0.1 + 0.2) / 2])
    assert again.counts == terms("a", "b", "c").counts(alone)


def test_nothing_is_forgotten_or_learnt_by_entering_a_generation() -> None:
    memory = AdaptiveMemory(
        policy=SyncPolicy.BATCH, preferred=None, is_by_speed=True, seconds={"a": 0.1, "b": 0.4}
    )
    assert AdaptiveShares(terms("a", "z"), memory).memory is memory


def test_without_a_measured_survivor_shares_are_equal() -> None:
    memory = AdaptiveMemory(policy=SyncPolicy.BATCH, is_by_speed=True, seconds={"a": 0.1, "b": 0.4})
    assert AdaptiveShares(terms("x", "y"), memory).counts == (4, 4)

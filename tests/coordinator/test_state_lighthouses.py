"""Quorums of torchft jobs: numbering, fencing, persistence."""

import pytest
from tests.fixtures.coordinator.commands import Cluster, changed

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.proto import torchft_pb2 as torchft
from paceline.coordinator.state import queries
from paceline.coordinator.state.machine import CoordinatorState
from paceline.coordinator.torchft import state as lighthouses


def opened(min_replicas: int = 1) -> Cluster:
    cluster = Cluster()
    cluster.ok(pb.OpenLighthouse(job="j", min_replicas=min_replicas), pb.Lighthouse)
    return cluster


def issue(*names: str, previous: int = 0, step: int = 0, failures: int = 0) -> pb.IssueQuorum:
    command = pb.IssueQuorum(job="j", previous=previous)
    for name in names:
        member = torchft.QuorumMember(replica_id=name, step=step, commit_failures=failures, data='{"k": 1}')
        command.seats.add(member=member, nonce=f"{name}-{step}")
    return command


def test_a_job_has_the_settings_of_its_first_proxy_and_defaults() -> None:
    lighthouse = Cluster().ok(pb.OpenLighthouse(job="j", join_timeout_ms=7), pb.Lighthouse)
    assert (lighthouse.min_replicas, lighthouse.join_timeout_ms, lighthouse.heartbeat_timeout_ms) == (
        1,
        7,
        5_000,
    )


def test_opening_again_returns_the_job_and_other_settings_are_refused() -> None:
    cluster = opened(min_replicas=2)
    before = cluster.ok(pb.OpenLighthouse(job="j"), pb.Lighthouse)
    assert cluster.ok(pb.OpenLighthouse(job="j", min_replicas=2), pb.Lighthouse) == before
    refusal = cluster.refused(pb.OpenLighthouse(job="j", min_replicas=3))
    assert refusal.why == pb.EXISTS
    assert "min_replicas 2, not 3" in refusal.what
    assert cluster.refused(pb.OpenLighthouse(job="j", heartbeat_timeout_ms=1)).why == pb.EXISTS


@pytest.mark.parametrize(
    "open_lighthouse",
    [
        pb.OpenLighthouse(job=""),
        pb.OpenLighthouse(job="UPPER"),
        pb.OpenLighthouse(job="k", min_replicas=10_001),
        pb.OpenLighthouse(job="k", join_timeout_ms=86_400_001),
    ],
)
def test_what_could_never_work_is_refused(open_lighthouse: pb.OpenLighthouse) -> None:
    assert opened().refused(open_lighthouse).why == pb.INVALID


def test_only_so_many_jobs_are_kept() -> None:
    cluster = Cluster()
    for number in range(lighthouses.MAX_JOBS):
        cluster.ok(pb.OpenLighthouse(job=f"j{number}"), pb.Lighthouse)
    assert cluster.refused(pb.OpenLighthouse(job="one-more")).why == pb.NOT_NOW
    cluster.ok(pb.ForgetLighthouse(job="j7"), pb.Lighthouse)
    cluster.ok(pb.OpenLighthouse(job="one-more"), pb.Lighthouse)


def test_the_number_changes_only_with_the_members_or_after_a_failed_commit() -> None:
    cluster = opened()
    first = cluster.ok(issue("a", "b"), pb.IssuedQuorum)
    same = cluster.ok(issue("a", "b", previous=first.round, step=1), pb.IssuedQuorum)
    grown = cluster.ok(issue("a", "b", "c", previous=same.round, step=2), pb.IssuedQuorum)
    failed = cluster.ok(issue("a", "b", "c", previous=grown.round, step=2, failures=1), pb.IssuedQuorum)
    shrunk = cluster.ok(issue("a", previous=failed.round, step=2), pb.IssuedQuorum)
    numbers = [result.quorum_id for result in (first, same, grown, failed, shrunk)]
    assert numbers == [first.round, first.round, grown.round, failed.round, shrunk.round]


def test_a_number_is_not_used_again_after_a_job_was_forgotten() -> None:
    cluster = opened()
    before = cluster.ok(issue("a"), pb.IssuedQuorum)
    cluster.ok(pb.ForgetLighthouse(job="j"), pb.Lighthouse)
    cluster.ok(pb.OpenLighthouse(job="j"), pb.Lighthouse)
    assert cluster.ok(issue("a"), pb.IssuedQuorum).quorum_id > before.quorum_id


def test_steps_alone_are_no_news_for_watchers() -> None:
    cluster = opened()
    first = cluster.say(issue("a", "b"))
    assert [list(lighthouse.replicas) for lighthouse in changed(first, pb.Lighthouse)] == [["a", "b"]]
    assert cluster.say(issue("a", "b", previous=first.outcome.index, step=1)).changes == ()


def test_a_decision_on_an_older_round_is_refused() -> None:
    cluster = opened()
    first = cluster.ok(issue("a"), pb.IssuedQuorum)
    assert cluster.refused(issue("a", "b")).why == pb.FENCED
    assert cluster.refused(issue("a", "b", previous=first.round + 1)).why == pb.FENCED


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ((), pb.NOT_NOW),
        (("a",), pb.NOT_NOW),
        (("b", "a"), pb.INVALID),
        (("a", "a"), pb.INVALID),
        (("", "a"), pb.INVALID),
    ],
)
def test_a_quorum_has_enough_members_once_each_and_in_order(names: tuple[str, ...], why: pb.Why) -> None:
    assert opened(min_replicas=2).refused(issue(*names)).why == why


def test_a_job_that_was_not_opened_accepts_no_request() -> None:
    assert Cluster().refused(issue("a")).why == pb.NOT_FOUND
    assert Cluster().refused(pb.ForgetLighthouse(job="j")).why == pb.NOT_FOUND


def test_the_newest_quorum_survives_a_snapshot_with_its_nonces() -> None:
    cluster = opened()
    cluster.ok(issue("a", "b", step=5), pb.IssuedQuorum)
    restored = CoordinatorState.restore(cluster.state.snapshot())
    kept, result = (state.lighthouses["j"].issued for state in (cluster.state, restored))
    assert kept is not None
    assert result is not None
    assert [entry.nonce for entry in result.seats] == ["a-5", "b-5"]
    assert lighthouses.answer(result).SerializeToString() == lighthouses.answer(kept).SerializeToString()


def test_the_response_has_the_form_of_torchft() -> None:
    cluster = opened()
    issued = cluster.ok(issue("a", "b", step=5), pb.IssuedQuorum)
    quorum = lighthouses.answer(issued).quorum
    assert quorum.quorum_id == issued.quorum_id
    assert [(m.replica_id, m.step, m.data) for m in quorum.participants] == [
        ("a", 5, '{"k": 1}'),
        ("b", 5, '{"k": 1}'),
    ]
    assert quorum.created.ToMilliseconds() == cluster.now_ms


def test_fields_of_a_newer_torchft_are_preserved() -> None:
    """A field that is not in our proto is passed on."""
    unknown = torchft.QuorumMember(replica_id="a").SerializeToString() + bytes([15 << 3 | 2, 2, 104, 105])
    command = pb.IssueQuorum(job="j", seats=[pb.QuorumSeat(member=torchft.QuorumMember.FromString(unknown))])
    issued = opened().ok(command, pb.IssuedQuorum)
    assert lighthouses.answer(issued).quorum.participants[0].SerializeToString() == unknown


def test_jobs_are_listed_by_name() -> None:
    cluster = opened()
    cluster.ok(pb.OpenLighthouse(job="a"), pb.Lighthouse)
    cluster.ok(issue("r"), pb.IssuedQuorum)
    result = queries.lighthouses(cluster.state).lighthouses
    assert [(state.lighthouse.job, len(state.issued.seats)) for state in result] == [("a", 0), ("j", 1)]

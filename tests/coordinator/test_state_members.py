"""Workers join and leave, and the consequences for the others."""

import pytest
from tests.fixtures.cluster import Cluster, changed

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import runs


def test_a_worker_that_joins_waits_and_is_known_by_its_log_index() -> None:
    cluster = Cluster()
    cluster.run()
    said = pb.JoinRun(run="r", worker="w", address="h:1", role="spare", facts={"gpu": "none"})
    found = cluster.ok(said, pb.Worker)
    assert found == pb.Worker(
        run="r",
        worker="w",
        incarnation=cluster.index,
        phase=pb.WORKER_JOINED,
        address="h:1",
        role="spare",
        facts={"gpu": "none"},
        joined_ms=cluster.now_ms,
    )


def test_who_says_no_role_is_a_worker() -> None:
    cluster = Cluster()
    cluster.run()
    assert cluster.join("w", role="").role == "worker"


@pytest.mark.parametrize(
    ("worker", "role"), [("", "worker"), ("a/b", "worker"), ("a" * 129, ""), ("w", "boss")]
)
def test_odd_names_and_roles_are_refused(worker: str, role: str) -> None:
    cluster = Cluster()
    cluster.run()
    assert cluster.refused(pb.JoinRun(run="r", worker=worker, role=role)).why == pb.INVALID


def test_nobody_joins_a_run_that_does_not_exist_or_has_ended() -> None:
    cluster = Cluster()
    assert cluster.refused(pb.JoinRun(run="r", worker="w")).why == pb.NOT_FOUND
    cluster.run()
    cluster.say(pb.EndRun(run="r", phase=pb.RUN_FAILED))
    assert cluster.refused(pb.JoinRun(run="r", worker="w")).why == pb.NOT_NOW


def test_a_living_name_that_joins_again_replaces_itself_with_all_consequences() -> None:
    cluster = Cluster().working("a", "b", samples=10)
    first = cluster.state.runs["r"].workers["a"].incarnation
    cluster.ok(pb.LeaseSamples(run="r", generation=1, worker="b", count=3), pb.SampleLease)
    cluster.ok(pb.PlaceServer(run="r", primary="a", backup="b"), pb.ServerPlace)
    applied = cluster.say(pb.JoinRun(run="r", worker="a"))
    lost, joined = changed(applied, pb.Worker)
    assert (lost.incarnation, lost.phase) == (first, pb.WORKER_LOST)
    assert lost.reason == "replaced by a new incarnation"
    assert (joined.incarnation, joined.phase) == (cluster.index, pb.WORKER_JOINED)
    assert changed(applied, pb.Generation)[0].revoked_because.startswith("worker a was lost")
    assert changed(applied, pb.SampleLease)[0].is_returned
    assert changed(applied, pb.ServerPlace)[0].primary == "b"


def test_only_living_workers_of_that_role_count_against_the_limit() -> None:
    cluster = Cluster()
    cluster.run(max_workers=2)
    cluster.join("s", role="server")
    cluster.join("p", role="spare")
    cluster.join("a")
    cluster.join("b")
    assert cluster.refused(pb.JoinRun(run="r", worker="c")).why == pb.NOT_NOW
    cluster.join("b")  # replaces itself, so there are not more
    cluster.join("q", role="spare")
    cluster.lose("a")
    cluster.join("c")


def test_the_living_are_bounded_in_all_roles_together() -> None:
    cluster = Cluster()
    cluster.run()
    for number in range(runs.MAX_LIVE_WORKERS):
        cluster.join(f"w{number}", role=runs.WORKER_ROLES[number % 3])
    assert cluster.refused(pb.JoinRun(run="r", worker="c", role="spare")).why == pb.NOT_NOW


def test_a_member_that_is_lost_revokes_the_generation_and_is_named() -> None:
    cluster = Cluster().working("a", "b")
    applied = cluster.lose("b")
    assert (applied.outcome.worker.phase, applied.outcome.worker.ended_ms) == (pb.WORKER_LOST, cluster.now_ms)
    assert [found.revoked_because for found in changed(applied, pb.Generation)] == [
        "worker b was lost: silent"
    ]


def test_a_member_that_leaves_revokes_the_generation_too() -> None:
    cluster = Cluster().working("a", "b")
    living = cluster.state.runs["r"].workers["a"].incarnation
    applied = cluster.say(pb.LeaveRun(run="r", worker="a", incarnation=living))
    assert applied.outcome.worker.phase == pb.WORKER_LEFT
    assert [found.revoked_because for found in changed(applied, pb.Generation)] == ["worker a left"]


def test_who_is_no_member_is_lost_without_disturbing_the_others() -> None:
    cluster = Cluster().working("a")
    cluster.join("spare", role="spare")
    assert not changed(cluster.lose("spare"), pb.Generation)
    newest = cluster.state.runs["r"].newest
    assert newest is not None
    assert not newest.is_revoked


def test_a_second_loss_does_not_revoke_again() -> None:
    cluster = Cluster().working("a", "b")
    cluster.lose("a")
    assert not changed(cluster.lose("b"), pb.Generation)
    assert cluster.state.runs["r"].generations[1].revoked_because == "worker a was lost: silent"


@pytest.mark.parametrize("said", [pb.LeaveRun, pb.LoseWorker])
def test_what_is_said_of_an_earlier_incarnation_does_not_touch_the_living_one(
    said: type[pb.LeaveRun] | type[pb.LoseWorker],
) -> None:
    cluster = Cluster()
    cluster.run()
    first = cluster.join("w").incarnation
    second = cluster.join("w").incarnation
    assert cluster.refused(said(run="r", worker="w", incarnation=first)).why == pb.FENCED
    cluster.ok(said(run="r", worker="w", incarnation=second), pb.Worker)
    assert cluster.refused(said(run="r", worker="w", incarnation=second)).why == pb.FENCED
    assert cluster.refused(said(run="r", worker="z", incarnation=1)).why == pb.NOT_FOUND


def test_only_the_newest_ended_workers_are_kept() -> None:
    cluster = Cluster()
    cluster.run()
    for _ in range(runs.MAX_ENDED_WORKERS + 50):
        cluster.join("w")
    ended = cluster.state.runs["r"].ended_workers
    assert len(ended) == runs.MAX_ENDED_WORKERS
    assert max(ended) == cluster.index - 1

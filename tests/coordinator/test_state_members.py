"""Workers join and leave, and the consequences for the others."""

import pytest
from tests.fixtures.coordinator.commands import Cluster, changed
from tests.fixtures.wording import Wording

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import runs


def test_a_worker_that_joins_waits_and_is_known_by_its_log_index() -> None:
    cluster = Cluster()
    cluster.run()
    command = pb.JoinRun(run="r", worker="w", address="h:1", role="spare", facts={"gpu": "none"})
    worker = cluster.ok(command, pb.Worker)
    assert worker == pb.Worker(
        run="r",
        worker="w",
        incarnation=cluster.index,
        phase=pb.WORKER_JOINED,
        address="h:1",
        role="spare",
        facts={"gpu": "none"},
        joined_ms=cluster.now_ms,
    )


def test_a_member_without_a_role_is_a_worker() -> None:
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


def test_a_run_that_does_not_exist_or_has_ended_cannot_be_joined() -> None:
    cluster = Cluster()
    assert cluster.refused(pb.JoinRun(run="r", worker="w")).why == pb.NOT_FOUND
    cluster.run()
    cluster.say(pb.EndRun(run="r", phase=pb.RUN_FAILED))
    assert cluster.refused(pb.JoinRun(run="r", worker="w")).why == pb.NOT_NOW


def test_a_living_name_that_joins_again_replaces_itself_with_all_consequences(wording: Wording) -> None:
    cluster = Cluster().working("a", "b", samples=10)
    first = cluster.state.runs["r"].workers["a"].incarnation
    cluster.ok(pb.LeaseSamples(run="r", generation=1, worker="b", count=3), pb.SampleLease)
    cluster.ok(pb.PlaceServer(run="r", primary="a", backup="b"), pb.ServerPlace)
    applied = cluster.say(pb.JoinRun(run="r", worker="a"))
    lost, joined = changed(applied, pb.Worker)
    assert (lost.incarnation, lost.phase) == (first, pb.WORKER_LOST)
    wording(lost.reason)
    assert (joined.incarnation, joined.phase) == (cluster.index, pb.WORKER_JOINED)
    wording(changed(applied, pb.Generation)[0].revoked_because)
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


def test_a_member_that_is_lost_revokes_the_generation_and_is_named(wording: Wording) -> None:
    cluster = Cluster().working("a", "b")
    applied = cluster.lose("b")
    assert (applied.outcome.worker.phase, applied.outcome.worker.ended_ms) == (pb.WORKER_LOST, cluster.now_ms)
    (generation,) = changed(applied, pb.Generation)
    wording(generation.revoked_because)


def test_a_member_that_leaves_revokes_the_generation_too() -> None:
    cluster = Cluster().working("a", "b")
    living = cluster.state.runs["r"].workers["a"].incarnation
    applied = cluster.say(pb.LeaveRun(run="r", worker="a", incarnation=living))
    assert applied.outcome.worker.phase == pb.WORKER_LEFT
    assert [generation.revoked_because for generation in changed(applied, pb.Generation)] == ["worker a left"]


def test_losing_a_non_member_does_not_disturb_the_others() -> None:
    cluster = Cluster().working("a")
    cluster.join("spare", role="spare")
    assert not changed(cluster.lose("spare"), pb.Generation)
    newest = cluster.state.runs["r"].newest
    assert newest is not None
    assert not newest.is_revoked


def test_a_second_loss_does_not_revoke_again(wording: Wording) -> None:
    cluster = Cluster().working("a", "b")
    cluster.lose("a")
    assert not changed(cluster.lose("b"), pb.Generation)
    wording(cluster.state.runs["r"].generations[1].revoked_because)


@pytest.mark.parametrize("text", [pb.LeaveRun, pb.LoseWorker])
def test_a_command_about_an_earlier_incarnation_does_not_affect_the_living_one(
    text: type[pb.LeaveRun] | type[pb.LoseWorker],
) -> None:
    cluster = Cluster()
    cluster.run()
    first = cluster.join("w").incarnation
    second = cluster.join("w").incarnation
    assert cluster.refused(text(run="r", worker="w", incarnation=first)).why == pb.FENCED
    cluster.ok(text(run="r", worker="w", incarnation=second), pb.Worker)
    assert cluster.refused(text(run="r", worker="w", incarnation=second)).why == pb.FENCED
    assert cluster.refused(text(run="r", worker="z", incarnation=1)).why == pb.NOT_FOUND


def test_only_the_newest_ended_workers_are_kept() -> None:
    cluster = Cluster()
    cluster.run()
    for _ in range(runs.MAX_ENDED_WORKERS + 50):
        cluster.join("w")
    ended = cluster.state.runs["r"].ended_workers
    assert len(ended) == runs.MAX_ENDED_WORKERS
    assert max(ended) == cluster.index - 1

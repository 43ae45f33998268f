"""Queries of the replicated state."""

from tests.fixtures.coordinator.commands import Cluster

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import queries


def view_of_run(cluster: Cluster) -> pb.RunView:
    result = queries.run(cluster.state, "r")
    assert isinstance(result, pb.RunView)
    return result


def test_a_run_is_shown_with_all_that_lives_in_it() -> None:
    cluster = Cluster().working("a", "b", samples=10)
    cluster.join("gone")
    cluster.lose("gone")
    for shard in (1, 0):
        cluster.ok(pb.PlaceServer(run="r", shard=shard, primary="a"), pb.ServerPlace)
    sample_lease = cluster.ok(pb.LeaseSamples(run="r", generation=1, worker="a", count=3), pb.SampleLease)
    held = cluster.ok(pb.LeaseSamples(run="r", generation=1, worker="b", count=3), pb.SampleLease)
    cluster.ok(pb.CommitSamples(run="r", generation=1, lease=sample_lease.lease), pb.SampleLease)
    run_view = view_of_run(cluster)
    assert (run_view.run.run, run_view.generation.number) == ("r", 1)
    assert [worker.worker for worker in run_view.workers] == ["a", "b"]
    assert [place.shard for place in run_view.servers] == [0, 1]
    assert list(run_view.leases) == [held]
    assert run_view.samples == pb.SampleCursor(next=6, committed=3)
    cluster.lose("a")
    assert list(view_of_run(cluster).samples.returned) == [pb.SampleRange(first=3, end=6)]


def test_a_run_without_a_generation_shows_none() -> None:
    cluster = Cluster()
    cluster.run()
    assert not view_of_run(cluster).HasField("generation")


def test_a_query_for_an_unknown_object_is_refused_instead_of_returning_an_empty_list() -> None:
    state = Cluster().state
    answers = [
        queries.run(state, "r"),
        queries.workers(state, "r", with_ended=False),
        queries.checkpoints(state, "r", with_open=False),
        queries.actions(state, "r"),
        queries.alerts(state, "r"),
    ]
    for answer in answers:
        assert isinstance(answer, pb.Refusal)
        assert answer.why == pb.NOT_FOUND


def test_ended_runs_and_workers_are_listed_on_request() -> None:
    cluster = Cluster().working("a", "b")
    cluster.lose("a")
    cluster.run("s")
    cluster.say(pb.EndRun(run="s", phase=pb.RUN_FINISHED))
    assert [run.run for run in queries.runs(cluster.state, with_ended=False).runs] == ["r"]
    assert [run.run for run in queries.runs(cluster.state, with_ended=True).runs] == ["r", "s"]
    living, all_workers = (queries.workers(cluster.state, "r", with_ended=ended) for ended in (False, True))
    assert isinstance(living, pb.WorkerList)
    assert isinstance(all_workers, pb.WorkerList)
    assert [worker.worker for worker in living.workers] == ["b"]
    assert [worker.worker for worker in all_workers.workers] == ["b", "a"]


def test_actions_are_listed_of_one_run_or_of_all() -> None:
    cluster = Cluster()
    for name in ("r", "s"):
        cluster.run(name)
        cluster.say(pb.RequestAction(run=name, kind="pause"))
    first, both = queries.actions(cluster.state, "s"), queries.actions(cluster.state, "")
    assert isinstance(first, pb.ActionList)
    assert isinstance(both, pb.ActionList)
    assert [action.run for action in first.actions] == ["s"]
    assert [action.run for action in both.actions] == ["r", "s"]


def test_the_living_of_all_runs_and_the_nodes_are_known() -> None:
    cluster = Cluster().working("a", "b")
    cluster.lose("b")
    alive = cluster.state.runs["r"].workers["a"].incarnation
    assert list(queries.living(cluster.state)) == [("r", "a", alive)]
    assert queries.is_living(cluster.state, "r", "a", alive)
    assert not queries.is_living(cluster.state, "r", "a", alive + 1)
    assert not queries.is_living(cluster.state, "r", "b", alive + 1)
    assert not queries.is_living(cluster.state, "z", "a", alive)
    for node in (3, 1):
        cluster.say(pb.NodeAddress(node=node, address=f"h:{node}"))
    assert queries.addresses(cluster.state) == {1: "h:1", 3: "h:3"}


def test_a_view_is_a_copy() -> None:
    cluster = Cluster().working("a")
    before = cluster.state.snapshot()
    run_view = view_of_run(cluster)
    run_view.run.plan = "other"
    run_view.workers[0].address = "other"
    run_view.generation.workers.append("other")
    assert cluster.state.snapshot() == before

"""Runs begin, form generations, commit steps and end."""

import pytest
from tests.fixtures.coordinator.commands import Cluster, changed

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import runs
from paceline.coordinator.state.machine import CoordinatorState


def test_a_new_run_waits_for_workers_and_holds_its_settings() -> None:
    cluster = Cluster()
    command = pb.CreateRun(
        run="r", plan="{}", min_workers=2, max_workers=4, samples=10, launcher="local", external_id="x"
    )
    run = cluster.ok(command, pb.Run)
    assert run == pb.Run(
        run="r",
        phase=pb.RUN_WAITING,
        plan="{}",
        min_workers=2,
        max_workers=4,
        samples=10,
        launcher="local",
        external_id="x",
        created_ms=cluster.now_ms,
    )


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a b", "a/b", "a" * 64, "a\n", "ä", "..", "1\x00"])
def test_a_name_that_is_not_safe_in_paths_and_keys_is_refused(name: str) -> None:
    assert Cluster().refused(pb.CreateRun(run=name, min_workers=1)).why == pb.INVALID


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "xor-8.retry_2"])
def test_plain_names_are_taken(name: str) -> None:
    assert Cluster().run(name).run == name


@pytest.mark.parametrize(("least", "most"), [(0, 0), (0, 3), (3, 2)])
def test_limits_that_no_run_can_keep_are_refused(least: int, most: int) -> None:
    command = pb.CreateRun(run="r", min_workers=least, max_workers=most)
    assert Cluster().refused(command).why == pb.INVALID


def test_a_name_is_used_once_also_when_its_run_has_ended() -> None:
    cluster = Cluster()
    cluster.run()
    assert cluster.refused(pb.CreateRun(run="r", min_workers=1)).why == pb.EXISTS
    cluster.ok(pb.EndRun(run="r", phase=pb.RUN_STOPPED), pb.Run)
    assert cluster.refused(pb.CreateRun(run="r", min_workers=1)).why == pb.EXISTS


def test_there_are_at_most_so_many_open_runs() -> None:
    cluster = Cluster()
    for number in range(runs.MAX_OPEN_RUNS):
        cluster.run(f"r{number}")
    assert cluster.refused(pb.CreateRun(run="b", min_workers=1)).why == pb.NOT_NOW


def test_a_generation_has_ranks_a_fresh_prefix_and_makes_its_members_active() -> None:
    cluster = Cluster()
    cluster.run()
    for name in ("a", "b", "c"):
        cluster.join(name)
    applied = cluster.say(
        pb.FormGeneration(run="r", workers=["b", "a"], step=0, data_plan="d", reason="first")
    )
    generation = applied.outcome.generation
    assert (generation.number, list(generation.workers), generation.store_prefix) == (1, ["b", "a"], "r/1")
    assert (generation.data_plan, generation.reason, generation.formed_ms) == ("d", "first", cluster.now_ms)
    active = {worker.worker for worker in changed(applied, pb.Worker) if worker.phase == pb.WORKER_ACTIVE}
    assert active == {"a", "b"}
    run = changed(applied, pb.Run)[-1]
    assert (run.phase, run.generation) == (pb.RUN_RUNNING, 1)


def test_the_next_generation_revokes_the_one_before_and_sends_the_others_back_to_waiting() -> None:
    cluster = Cluster().working("a", "b")
    applied = cluster.say(pb.FormGeneration(run="r", previous=1, workers=["a"]))
    assert applied.outcome.generation.number == 2
    assert applied.outcome.generation.store_prefix == "r/2"
    first = cluster.state.runs["r"].generations[1]
    assert first.is_revoked
    assert "2" in first.revoked_because
    assert cluster.state.runs["r"].workers["b"].phase == pb.WORKER_JOINED
    assert cluster.state.runs["r"].workers["a"].phase == pb.WORKER_ACTIVE


def test_of_two_concurrent_generations_the_second_is_refused() -> None:
    cluster = Cluster().working("a", "b")
    refusal = cluster.refused(pb.FormGeneration(run="r", previous=0, workers=["a"]))
    assert refusal.why == pb.FENCED
    assert "1" in refusal.what


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        (["a"], pb.NOT_NOW),
        ([], pb.NOT_NOW),
        (["a", "a"], pb.INVALID),
        (["a", "z"], pb.NOT_FOUND),
        (["a", "gone"], pb.NOT_FOUND),
        (["a", "server"], pb.INVALID),
        (["a", "b", "c", "spare"], pb.INVALID),
    ],
)
def test_a_generation_needs_enough_distinct_living_workers(workers: list[str], why: pb.Why) -> None:
    cluster = Cluster()
    cluster.run(min_workers=2, max_workers=3)
    cluster.join("gone")
    cluster.lose("gone")
    for name in ("a", "b", "c"):
        cluster.join(name)
    cluster.join("server", role="server")
    cluster.join("spare", role="spare")
    assert cluster.refused(pb.FormGeneration(run="r", workers=workers)).why == why


def test_a_spare_may_be_called_up() -> None:
    cluster = Cluster()
    cluster.run()
    cluster.join("s", role="spare")
    cluster.form(["s"])
    assert cluster.state.runs["r"].workers["s"].phase == pb.WORKER_ACTIVE


def test_a_run_never_goes_back_behind_what_it_committed() -> None:
    cluster = Cluster().working("a")
    cluster.ok(pb.CommitStep(run="r", generation=1, step=50), pb.Run)
    assert cluster.refused(pb.FormGeneration(run="r", previous=1, workers=["a"], step=49)).why == pb.NOT_NOW
    assert cluster.form(["a"], previous=1, step=50).step == 50


def test_steps_are_committed_forward_only_and_a_repeated_commit_counts_once() -> None:
    cluster = Cluster().working("a")
    assert cluster.ok(pb.CommitStep(run="r", generation=1, step=5), pb.Run).committed_step == 5
    again = cluster.say(pb.CommitStep(run="r", generation=1, step=5))
    assert (again.outcome.run.committed_step, again.changes) == (5, ())
    assert cluster.refused(pb.CommitStep(run="r", generation=1, step=4)).why == pb.NOT_NOW


def test_a_step_before_the_generation_began_is_refused() -> None:
    cluster = Cluster().working("a")
    cluster.form(["a"], previous=1, step=10)
    assert cluster.refused(pb.CommitStep(run="r", generation=2, step=9)).why == pb.NOT_NOW
    assert cluster.ok(pb.CommitStep(run="r", generation=2, step=10), pb.Run).committed_step == 10


def test_a_generation_is_revoked_once_and_for_a_reason() -> None:
    cluster = Cluster().working("a")
    generation = cluster.ok(pb.RevokeGeneration(run="r", generation=1, reason="too slow"), pb.Generation)
    assert (generation.is_revoked, generation.revoked_because, generation.revoked_ms) == (
        True,
        "too slow",
        cluster.now_ms,
    )
    assert cluster.refused(pb.RevokeGeneration(run="r", generation=1)).why == pb.FENCED
    assert cluster.refused(pb.RevokeGeneration(run="r", generation=2)).why == pb.FENCED


def test_only_the_newest_generations_are_kept() -> None:
    cluster = Cluster().working("a")
    for number in range(1, 40):
        cluster.form(["a"], previous=number)
    assert list(cluster.state.runs["r"].generations) == list(range(25, 41))


@pytest.mark.parametrize("phase", [pb.RUN_FINISHED, pb.RUN_FAILED, pb.RUN_STOPPED])
def test_a_run_ends_once_in_one_of_three_ways(phase: pb.RunPhase) -> None:
    cluster = Cluster()
    cluster.run()
    run = cluster.ok(pb.EndRun(run="r", phase=phase, reason="so"), pb.Run)
    assert (run.phase, run.reason, run.ended_ms) == (phase, "so", cluster.now_ms)
    assert cluster.refused(pb.EndRun(run="r", phase=pb.RUN_FINISHED)).why == pb.NOT_NOW


@pytest.mark.parametrize("phase", [pb.RUN_UNKNOWN, pb.RUN_WAITING, pb.RUN_RUNNING])
def test_a_run_cannot_end_as_something_that_is_no_end(phase: pb.RunPhase) -> None:
    cluster = Cluster()
    cluster.run()
    assert cluster.refused(pb.EndRun(run="r", phase=phase)).why == pb.INVALID


def test_the_end_of_a_run_ends_all_that_was_going_on_in_it() -> None:
    cluster = Cluster().working("a", "b", samples=10)
    cluster.ok(pb.PlaceServer(run="r", shard=0, primary="a", backup="b"), pb.ServerPlace)
    cluster.ok(pb.LeaseSamples(run="r", generation=1, worker="a", count=4), pb.SampleLease)
    cluster.ok(pb.BeginCheckpoint(run="r", generation=1, step=3, shards=2), pb.Checkpoint)
    applied = cluster.say(pb.EndRun(run="r", phase=pb.RUN_FINISHED))
    assert [generation.is_revoked for generation in changed(applied, pb.Generation)] == [True]
    assert [sample_lease.is_returned for sample_lease in changed(applied, pb.SampleLease)] == [True]
    assert [checkpoint.phase for checkpoint in changed(applied, pb.Checkpoint)] == [pb.CHECKPOINT_ABANDONED]
    assert [worker.phase for worker in changed(applied, pb.Worker)] == [pb.WORKER_LEFT] * 2
    places = changed(applied, pb.ServerPlace)
    assert [(result.primary, result.backup, result.epoch) for result in places] == [("", "", 2)]
    record = cluster.state.ended_runs["r"]
    assert not record.workers
    assert not record.leases
    assert record.samples.returned == [(0, 4)]


def end_many(cluster: Cluster) -> None:
    for number in range(runs.MAX_ENDED_RUNS):
        cluster.run(f"r{number}")
        cluster.say(pb.EndRun(run=f"r{number}", phase=pb.RUN_FINISHED))


def test_only_the_newest_ended_runs_are_kept_by_when_they_ended() -> None:
    cluster = Cluster()
    for name in ("first", "second"):
        cluster.run(name)
    cluster.say(pb.EndRun(run="second", phase=pb.RUN_FINISHED))
    end_many(cluster)
    cluster.say(pb.EndRun(run="first", phase=pb.RUN_FINISHED))
    assert len(cluster.state.ended_runs) == runs.MAX_ENDED_RUNS
    assert list(cluster.state.ended_runs)[-1] == "first"
    assert "second" not in cluster.state.ended_runs


def test_a_name_that_comes_back_after_being_forgotten_gets_no_prefix_and_no_number_twice() -> None:
    cluster = Cluster().working("w")
    cluster.form(["w"], previous=1)
    cluster.say(pb.RequestAction(run="r", kind="stop"))
    cluster.say(pb.EndRun(run="r", phase=pb.RUN_FINISHED))
    assert cluster.state.actions
    end_many(cluster)
    assert not cluster.state.actions
    cluster.state = CoordinatorState.restore(cluster.state.snapshot())
    cluster.run("r")
    cluster.join("w")
    assert cluster.refused(pb.CommitStep(run="r", generation=2, step=1)).why == pb.FENCED
    result = cluster.form(["w"], previous=0)
    assert (result.number, result.store_prefix) == (3, "r/3")
    assert cluster.form(["w"], previous=3).number == 4


def test_nodes_have_addresses_until_these_are_cleared() -> None:
    cluster = Cluster()
    assert cluster.say(pb.NodeAddress(node=1, address="a:1")).changes
    assert not cluster.say(pb.NodeAddress(node=1, address="a:1")).changes
    assert cluster.say(pb.NodeAddress(node=1, address="a:2")).changes
    assert cluster.state.nodes[1].address == "a:2"
    gone = cluster.say(pb.NodeAddress(node=1))
    assert [node_address.address for node_address in changed(gone, pb.NodeAddress)] == [""]
    assert not cluster.say(pb.NodeAddress(node=1)).changes
    assert not cluster.state.nodes
    assert cluster.refused(pb.NodeAddress(address="a:1")).why == pb.INVALID


def test_not_more_nodes_are_named_than_a_cluster_can_have() -> None:
    cluster = Cluster()
    for number in range(1, 101):
        cluster.say(pb.NodeAddress(node=number, address="a"))
    assert cluster.refused(pb.NodeAddress(node=101, address="a")).why == pb.NOT_NOW
    assert cluster.say(pb.NodeAddress(node=5, address="b")).changes

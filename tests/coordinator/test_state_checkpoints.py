"""A checkpoint is committed exactly when every shard of it is durable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.coordinator.commands import Cluster, changed

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import checkpoints, queries

SHA = "0123456789abcdef" * 4


def begin(step: int = 10, shards: int = 2, generation: int = 1) -> pb.BeginCheckpoint:
    return pb.BeginCheckpoint(run="r", generation=generation, step=step, shards=shards, facts="f")


def durable(
    number: int, step: int = 10, generation: int = 1, sha: str = SHA, uri: str = "u"
) -> pb.ShardDurable:
    shard = pb.Shard(shard=number, uri=uri, bytes=5, sha256=sha)
    return pb.ShardDurable(run="r", generation=generation, step=step, shard=shard)


def listed(cluster: Cluster, with_open: bool = False) -> list[int]:
    result = queries.checkpoints(cluster.state, "r", with_open)
    assert isinstance(result, pb.CheckpointList)
    return [checkpoint.step for checkpoint in result.checkpoints]


def commit(cluster: Cluster, step: int, generation: int = 1) -> None:
    cluster.ok(begin(step, 1, generation), pb.Checkpoint)
    cluster.ok(durable(0, step, generation), pb.Checkpoint)


@settings(deadline=None)
@given(shards=st.integers(1, 8), data=st.data())
def test_a_checkpoint_exists_when_the_last_missing_shard_is_durable_in_any_order(
    shards: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(shards)))
    cluster = Cluster().working("w")
    cluster.ok(begin(shards=shards), pb.Checkpoint)
    for number in order:
        assert listed(cluster) == []
        checkpoint = cluster.ok(durable(number), pb.Checkpoint)
    assert checkpoint.phase == pb.CHECKPOINT_COMMITTED
    assert checkpoint.committed_ms == cluster.now_ms
    assert [shard.shard for shard in checkpoint.shards] == list(range(shards))
    assert listed(cluster) == [10]


def test_an_open_checkpoint_is_visible_only_on_request() -> None:
    cluster = Cluster().working("w")
    cluster.ok(begin(), pb.Checkpoint)
    assert (listed(cluster), listed(cluster, with_open=True)) == ([], [10])


def test_a_shard_reported_twice_is_fine_if_it_is_the_same() -> None:
    cluster = Cluster().working("w")
    cluster.ok(begin(), pb.Checkpoint)
    cluster.ok(durable(1), pb.Checkpoint)
    again = cluster.say(durable(1, sha=SHA.upper()))
    assert (again.outcome.checkpoint.phase, again.changes) == (pb.CHECKPOINT_OPEN, ())
    assert cluster.refused(durable(1, uri="other")).why == pb.EXISTS
    assert cluster.refused(durable(1, sha="f" * 64)).why == pb.EXISTS
    cluster.ok(durable(0), pb.Checkpoint)
    assert cluster.say(durable(1)).outcome.checkpoint.phase == pb.CHECKPOINT_COMMITTED


@pytest.mark.parametrize(
    "shard_durable",
    [durable(2), durable(0, uri=""), durable(0, sha=""), durable(0, sha="x" * 64), durable(0, sha=SHA + "0")],
)
def test_a_shard_that_cannot_be_found_or_verified_is_refused(shard_durable: pb.ShardDurable) -> None:
    cluster = Cluster().working("w")
    cluster.ok(begin(), pb.Checkpoint)
    assert cluster.refused(shard_durable).why == pb.INVALID


@pytest.mark.parametrize("shards", [0, checkpoints.MAX_SHARDS + 1])
def test_a_checkpoint_has_shards_but_not_without_end(shards: int) -> None:
    assert Cluster().working("w").refused(begin(shards=shards)).why == pb.INVALID


def test_a_shard_of_a_checkpoint_that_was_not_started_is_refused() -> None:
    assert Cluster().working("w").refused(durable(0)).why == pb.NOT_FOUND


def test_a_step_is_not_checkpointed_twice() -> None:
    cluster = Cluster().working("w")
    cluster.ok(begin(), pb.Checkpoint)
    assert cluster.refused(begin()).why == pb.EXISTS
    commit(cluster, 20)
    assert cluster.refused(begin(20)).why == pb.EXISTS
    cluster.form(["w"], previous=1)
    assert cluster.refused(begin(20, generation=2)).why == pb.EXISTS


def test_shards_of_two_generations_are_never_in_one_checkpoint() -> None:
    cluster = Cluster().working("w")
    cluster.ok(begin(), pb.Checkpoint)
    cluster.ok(durable(0), pb.Checkpoint)
    applied = cluster.say(pb.FormGeneration(run="r", previous=1, workers=["w"]))
    assert [result.phase for result in changed(applied, pb.Checkpoint)] == [pb.CHECKPOINT_ABANDONED]
    assert cluster.refused(durable(1, generation=1)).why == pb.FENCED
    assert cluster.refused(durable(1, generation=2)).why == pb.NOT_FOUND
    checkpoint = cluster.ok(begin(generation=2), pb.Checkpoint)
    assert (checkpoint.phase, checkpoint.generation, len(checkpoint.shards)) == (pb.CHECKPOINT_OPEN, 2, 0)
    cluster.ok(durable(1, generation=2), pb.Checkpoint)
    assert listed(cluster) == []


def test_a_committed_checkpoint_outlives_its_generation() -> None:
    cluster = Cluster().working("w")
    commit(cluster, 10)
    cluster.lose("w")
    assert listed(cluster) == [10]


def test_an_older_checkpoint_is_dropped_without_a_trace_but_the_change() -> None:
    cluster = Cluster().working("w")
    commit(cluster, 10)
    commit(cluster, 20)
    applied = cluster.say(pb.DropCheckpoint(run="r", step=10))
    assert [checkpoint.phase for checkpoint in changed(applied, pb.Checkpoint)] == [pb.CHECKPOINT_DROPPED]
    assert listed(cluster, with_open=True) == [20]
    assert cluster.refused(pb.DropCheckpoint(run="r", step=10)).why == pb.NOT_FOUND


def test_the_newest_one_stays_as_long_as_its_run_may_have_to_resume() -> None:
    cluster = Cluster().working("w")
    commit(cluster, 20)
    commit(cluster, 10)
    assert cluster.refused(pb.DropCheckpoint(run="r", step=20)).why == pb.NOT_NOW
    cluster.say(pb.EndRun(run="r", phase=pb.RUN_FINISHED))
    cluster.ok(pb.DropCheckpoint(run="r", step=20), pb.Checkpoint)
    cluster.ok(pb.DropCheckpoint(run="r", step=10), pb.Checkpoint)
    assert listed(cluster) == []


def test_what_was_never_complete_cannot_be_dropped() -> None:
    cluster = Cluster().working("w")
    cluster.ok(begin(), pb.Checkpoint)
    assert cluster.refused(pb.DropCheckpoint(run="r", step=10)).why == pb.NOT_FOUND


def test_the_catalogue_is_bounded() -> None:
    cluster = Cluster().working("w")
    last = checkpoints.MAX_CHECKPOINTS
    for step in range(last):
        commit(cluster, step)
    assert cluster.refused(begin(last)).why == pb.NOT_NOW
    cluster.ok(pb.DropCheckpoint(run="r", step=1), pb.Checkpoint)
    commit(cluster, last)


def test_only_the_newest_abandoned_ones_are_kept() -> None:
    cluster = Cluster().working("w")
    for number in range(1, 30):
        cluster.ok(begin(number, generation=number), pb.Checkpoint)
        cluster.form(["w"], previous=number)
    assert list(cluster.state.runs["r"].pending) == list(range(30 - checkpoints.MAX_ABANDONED, 30))
    oldest = 30 - checkpoints.MAX_ABANDONED
    cluster.ok(begin(oldest, generation=30), pb.Checkpoint)  # tried again, so it is the newest now
    cluster.ok(begin(99, generation=30), pb.Checkpoint)
    cluster.form(["w"], previous=30)
    assert list(cluster.state.runs["r"].pending) == [*range(oldest + 2, 30), oldest, 99]


def served() -> Cluster:
    """A run whose state is held by servers: part 0 is placed, in epoch 1."""
    cluster = Cluster().working("w")
    cluster.ok(pb.JoinRun(run="r", worker="a", role="server"), pb.Worker)
    cluster.ok(pb.JoinRun(run="r", worker="b", role="server"), pb.Worker)
    place = cluster.ok(pb.PlaceServer(run="r", shard=0, primary="a", epoch=0), pb.ServerPlace)
    assert place.epoch == 1
    return cluster


def test_servers_save_under_the_epoch_of_their_slot_whichever_worker_leaves() -> None:
    cluster = served()
    cluster.ok(begin(10, 1, generation=1), pb.Checkpoint)
    cluster.ok(pb.RevokeGeneration(run="r", generation=1, reason="a worker was lost"), pb.Generation)
    assert cluster.refused(durable(0, 10, generation=1)).why == pb.NOT_FOUND, "it was abandoned"
    commit(cluster, 10)  # and is begun again, in no generation
    assert listed(cluster) == [10]


def test_a_checkpoint_that_a_former_primary_started_blocks_no_other() -> None:
    cluster = served()
    cluster.ok(pb.RevokeGeneration(run="r", generation=1, reason="a worker was lost"), pb.Generation)
    cluster.ok(begin(10, 1, generation=1), pb.Checkpoint)
    cluster.ok(pb.PlaceServer(run="r", shard=0, primary="b", epoch=1), pb.ServerPlace)
    refused = cluster.refused(durable(0, 10, generation=1))
    assert refused.why == pb.FENCED
    commit(cluster, 10, generation=2)
    assert listed(cluster) == [10]

"""Every shard of the parameters has one primary, and each change fences the previous one."""

import pytest
from tests.fixtures.coordinator.commands import Cluster, changed

from paceline.coordinator.proto import cluster_pb2 as pb


def placed(backup: str = "b") -> Cluster:
    cluster = Cluster().working("a", "b", "c")
    cluster.ok(pb.PlaceServer(run="r", shard=7, primary="a", backup=backup), pb.ServerPlace)
    return cluster


def where(cluster: Cluster) -> tuple[str, str, int]:
    servers = cluster.state.runs["r"].servers[7]
    return servers.primary, servers.backup, servers.epoch


def test_a_shard_is_placed_with_and_without_a_backup() -> None:
    assert where(placed()) == ("a", "b", 1)
    assert where(placed(backup="")) == ("a", "", 1)


def test_placing_again_needs_the_current_epoch() -> None:
    cluster = placed()
    for epoch in (0, 2):
        command = pb.PlaceServer(run="r", shard=7, primary="c", backup="b", epoch=epoch)
        assert cluster.refused(command).why == pb.FENCED
    cluster.ok(pb.PlaceServer(run="r", shard=7, primary="c", backup="a", epoch=1), pb.ServerPlace)
    assert where(cluster) == ("c", "a", 2)
    assert cluster.refused(pb.PlaceServer(run="r", shard=8, primary="c", epoch=1)).why == pb.FENCED


@pytest.mark.parametrize(
    ("primary", "backup", "why"),
    [
        ("a", "a", pb.INVALID),
        ("", "", pb.INVALID),
        ("", "a", pb.NOT_FOUND),
        ("z", "a", pb.NOT_FOUND),
        ("a", "z", pb.NOT_FOUND),
    ],
)
def test_primary_and_backup_are_two_living_workers(primary: str, backup: str, why: pb.Why) -> None:
    cluster = placed()
    command = pb.PlaceServer(run="r", shard=1, primary=primary, backup=backup)
    assert cluster.refused(command).why == why


def test_shard_numbers_are_bounded() -> None:
    assert placed().refused(pb.PlaceServer(run="r", shard=1 << 20, primary="a")).why == pb.INVALID


def test_a_backup_is_promoted_in_the_epoch_that_is_known() -> None:
    cluster = placed()
    assert cluster.refused(pb.PromoteBackup(run="r", shard=7, epoch=3)).why == pb.FENCED
    cluster.ok(pb.PromoteBackup(run="r", shard=7, epoch=1), pb.ServerPlace)
    assert where(cluster) == ("b", "", 2)
    assert cluster.refused(pb.PromoteBackup(run="r", shard=7, epoch=2)).why == pb.NOT_NOW
    assert cluster.refused(pb.PromoteBackup(run="r", shard=9, epoch=0)).why == pb.NOT_FOUND


def test_the_backup_of_a_lost_primary_takes_over_at_once() -> None:
    cluster = placed()
    applied = cluster.lose("a")
    assert [server_place.primary for server_place in changed(applied, pb.ServerPlace)] == ["b"]
    assert where(cluster) == ("b", "", 2)


def test_without_a_backup_the_shard_has_no_server_and_its_former_primary_is_fenced() -> None:
    cluster = placed(backup="")
    cluster.lose("a")
    assert where(cluster) == ("", "", 2)
    cluster.ok(pb.PlaceServer(run="r", shard=7, primary="c", epoch=2), pb.ServerPlace)
    assert where(cluster) == ("c", "", 3)


def test_a_lost_backup_is_taken_off() -> None:
    cluster = placed()
    cluster.lose("b")
    assert where(cluster) == ("a", "", 2)


def test_a_server_that_leaves_hands_over_like_one_that_is_lost() -> None:
    cluster = placed()
    living = cluster.state.runs["r"].workers["a"].incarnation
    cluster.say(pb.LeaveRun(run="r", worker="a", incarnation=living))
    assert where(cluster) == ("b", "", 2)


def test_a_server_without_a_shard_changes_no_slot() -> None:
    cluster = placed()
    assert not changed(cluster.lose("c"), pb.ServerPlace)

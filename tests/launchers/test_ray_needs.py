"""Does a plan fit on a cluster, and is it said what is missing?"""

from dataclasses import replace

from tests.fixtures.plans import small_plan

from paceline.launchers.ray_needs import Bundle, Node, bundles_of, fits, placement_of, table
from paceline.plan.plan import Device, OnRay, Placement, Transport

TWO = [Node(name="a", cpus=2), Node(name="b", cpus=2)]


def _workers(count: int, cpus: int = 1) -> list[Bundle]:
    return [Bundle(who=f"worker-{rank}", cpus=cpus) for rank in range(count)]


def test_a_bundle_does_not_straddle_nodes() -> None:
    assert fits(_workers(4), TWO, Placement.PACK)
    assert not fits(_workers(5), TWO, Placement.PACK)
    assert not fits(_workers(1, cpus=3), TWO, Placement.PACK)


def test_strict_placements_need_what_they_say() -> None:
    assert fits(_workers(2), TWO, Placement.STRICT_PACK)
    assert not fits(_workers(3), TWO, Placement.STRICT_PACK)
    assert fits(_workers(2), TWO, Placement.STRICT_SPREAD)
    assert not fits(_workers(3), TWO, Placement.STRICT_SPREAD)


def test_workers_without_a_gpu_leave_those_that_have_one_alone() -> None:
    nodes = [Node(name="a", cpus=1, gpus=1), Node(name="b", cpus=1)]
    assert fits(
        [Bundle(who="server-0", cpus=1), Bundle(who="worker-0", cpus=1, gpus=1)], nodes, Placement.PACK
    )


def test_a_server_is_a_bundle_of_its_own_apart_from_workers_where_there_are_nodes() -> None:
    plan = replace(small_plan("asgd"), transport=Transport.TCP, device=Device.CUDA, threads_per_worker=2)
    server, *workers = bundles_of(plan)
    assert (server.who, server.as_ray()) == ("server-0", {"CPU": 2.0})
    assert [w.as_ray() for w in workers] == [{"CPU": 2.0, "GPU": 1.0}] * plan.num_workers
    assert placement_of(plan, TWO) is Placement.SPREAD
    assert placement_of(plan, TWO[:1]) is Placement.PACK
    said = replace(plan, ray=OnRay(address="local", placement=Placement.STRICT_PACK))
    assert placement_of(said, TWO) is Placement.STRICT_PACK


def test_the_table_shows_needs_beside_has() -> None:
    lines = table(_workers(5), TWO, Placement.PACK).splitlines()
    assert lines[0].split() == ["CPU", "GPU"]
    assert lines[1].split() == ["needs,", "pack", "5", "0"]
    assert lines[-3].split() == ["has,", "2", "nodes", "4", "0"]
    assert "and 2 more" in table(_workers(10), TWO, Placement.PACK)

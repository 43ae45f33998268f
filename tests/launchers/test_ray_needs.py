"""Whether a plan fits on a Ray cluster, and what is missing."""

from dataclasses import replace

from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.core.errors import NotReadyError
from paceline.launchers.ray.resources import (
    Bundle,
    Node,
    bundles_of,
    capacity_table,
    check_nodes,
    cpus_for_own_ray,
    fits,
    placement_of,
)
from paceline.plan.plan import Device, Elastic, Launcher, OnRay, Placement, Transport

TWO = [Node(name="a", cpus=2), Node(name="b", cpus=2)]


def _workers(count: int, cpus: int = 1) -> list[Bundle]:
    return [Bundle(who=f"worker-{rank}", cpus=cpus) for rank in range(count)]


def test_a_bundle_does_not_straddle_nodes() -> None:
    assert fits(_workers(4), TWO, Placement.PACK)
    assert not fits(_workers(5), TWO, Placement.PACK)
    assert not fits(_workers(1, cpus=3), TWO, Placement.PACK)


def test_strict_placements_need_what_they_declare() -> None:
    assert fits(_workers(2), TWO, Placement.STRICT_PACK)
    assert not fits(_workers(3), TWO, Placement.STRICT_PACK)
    assert fits(_workers(2), TWO, Placement.STRICT_SPREAD)
    assert not fits(_workers(3), TWO, Placement.STRICT_SPREAD)


def test_workers_without_a_gpu_leave_those_that_have_one_alone() -> None:
    nodes = [Node(name="a", cpus=1, gpus=1), Node(name="b", cpus=1)]
    assert fits(
        [Bundle(who="server-0", cpus=1), Bundle(who="worker-0", cpus=1, gpus=1)], nodes, Placement.PACK
    )


def test_a_server_has_its_own_bundle_separate_from_workers_where_there_are_nodes() -> None:
    plan = replace(small_plan("asgd"), transport=Transport.TCP, device=Device.CUDA, threads_per_worker=2)
    server, *workers = bundles_of(plan)
    assert (server.who, server.as_ray()) == ("server-0", {"CPU": 2.0})
    assert [w.as_ray() for w in workers] == [{"CPU": 2.0, "GPU": 1.0}] * plan.num_workers
    assert placement_of(plan, TWO) is Placement.SPREAD
    assert placement_of(plan, TWO[:1]) is Placement.PACK
    text = replace(plan, ray=OnRay(address="local", placement=Placement.STRICT_PACK))
    assert placement_of(text, TWO) is Placement.STRICT_PACK


def test_the_table_shows_needs_beside_has() -> None:
    lines = capacity_table(_workers(5), TWO, Placement.PACK).splitlines()
    assert lines[0].split() == ["CPU", "GPU"]
    assert lines[1].split() == ["needs,", "pack", "5", "0"]
    assert lines[-3].split() == ["has,", "2", "nodes", "4", "0"]
    assert "and 2 more" in capacity_table(_workers(10), TWO, Placement.PACK)


def test_an_elastic_plan_needs_both_servers_and_may_grow_on_its_own_ray() -> None:
    crew = Elastic(workers=2, min_workers=1, max_workers=4)
    plan = replace(small_plan("asgd", num_workers=4), transport=Transport.TCP, elastic=crew)
    assert [b.who for b in bundles_of(plan)] == ["server-0-a", "server-0-b", "worker-0", "worker-1"]
    assert cpus_for_own_ray(plan, processors=1) == 6
    assert cpus_for_own_ray(plan, processors=8) == 8


def test_elastic_workers_are_refused_where_a_node_is_another_machine(wording: Wording) -> None:
    plan = small_plan("ssgd", elastic=Elastic(workers=2, min_workers=1, max_workers=2))
    here, there = Node(name="127.0.0.1", cpus=2), Node(name="192.0.2.1", cpus=2)
    check_nodes(plan, "auto", [here, here])
    with wording.raises(NotReadyError):
        check_nodes(plan, "auto", [here, there])
    check_nodes(replace(plan, elastic=None), "auto", [here, there])


def test_elastic_workers_over_tcp_may_be_anywhere_and_begin_with_the_fewest(wording: Wording) -> None:
    crew = Elastic(workers=3, min_workers=2, max_workers=3)
    plan = small_plan("ssgd", num_workers=3, elastic=crew, transport=Transport.TCP, launcher=Launcher.RAY)
    here, there = Node(name="127.0.0.1", cpus=1), Node(name="192.0.2.1", cpus=1)
    check_nodes(plan, "auto", [here, there])
    with wording.raises(NotReadyError):
        check_nodes(plan, "auto", [there])

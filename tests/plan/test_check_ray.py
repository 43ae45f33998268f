"""Runs that Ray cannot launch are refused, with the reason."""

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.plan import Device, Launcher, OnRay, Placement, Plan, Transport
from paceline.plan.resolve import resolve


def _problems(**options: object) -> str:
    with pytest.raises(ConfigError) as refused:
        resolve(TrainConfig(**options), Facts())  # type: ignore[arg-type]  # the keys are its fields
    return str(refused.value)


def _plan(**options: object) -> Plan:
    return resolve(TrainConfig(launcher="ray", **options), Facts())  # type: ignore[arg-type]  # as above


def test_a_plan_states_where_ray_is_and_how_workers_are_placed() -> None:
    plan = _plan(address="h:6379", placement="spread", restarts=3)
    assert plan.launcher is Launcher.RAY
    assert plan.ray == OnRay(address="h:6379", placement=Placement.SPREAD, restarts=3)
    assert plan.checkpoint_every == 100  # there must be something to go on from
    assert _plan().ray == OnRay(address="local")
    assert _plan().checkpoint_every == 0


def test_transports_are_those_that_leave_a_process(wording: Wording) -> None:
    assert _plan(mode="ssgd").transport is Transport.GLOO
    assert _plan(mode="asgd").transport is Transport.TCP
    assert _plan(mode="single").transport is Transport.NONE
    assert _plan(mode="ssgd", device="cuda").transport is Transport.NCCL
    assert _plan(mode="ssgd", device="cuda").device is Device.CUDA
    wording(_problems(launcher="ray", transport="shm"))


@pytest.mark.parametrize("address", ["local", "auto", "h:1", "ray://h.example:10001", "[::1]:6379"])
def test_addresses_that_ray_accepts(address: str) -> None:
    ray = _plan(address=address).ray
    assert ray is not None
    assert ray.address == address


@pytest.mark.parametrize("address", ["", "h", "h:0", "h:70000", "http://h:1", "ray://h", "a b:1"])
def test_other_addresses_are_refused(address: str) -> None:
    assert "ray://HOST:PORT" in _problems(launcher="ray", address=address)


def test_what_only_ray_reads_is_refused_without_it(wording: Wording) -> None:
    wording(_problems(address="auto"))
    wording(_problems(restarts=1, launcher="local"))


def test_an_elastic_run_shares_memory_on_this_machine_and_uses_tcp_on_a_cluster(wording: Wording) -> None:
    assert _plan(elastic=True).transport is Transport.SHM
    for loopback in ("127.0.0.1:6379", "ray://localhost:10001"):
        assert _plan(elastic=True, address=loopback).transport is Transport.SHM
    for cluster in ("auto", "10.0.0.1:6379", "ray://head:10001"):
        assert _plan(elastic=True, address=cluster).transport is Transport.TCP
        assert _plan(elastic=True, address=cluster, transport="shm").transport is Transport.SHM
    strict = {"launcher": "ray", "elastic": True, "placement": "strict_spread"}
    wording(_problems(**strict, address="auto"))
    assert _plan(elastic=True, placement="strict_spread").transport is Transport.SHM
    assert _plan(elastic=True, mode="asgd").transport is Transport.TCP
    assert _plan(elastic=True, mode="fsdp").elastic is not None


def test_what_cannot_be_on_ray_is_refused(wording: Wording) -> None:
    wording(_problems(launcher="ray", elastic=True, restarts=2))
    wording(_problems(launcher="ray", mode="adpsgd"))

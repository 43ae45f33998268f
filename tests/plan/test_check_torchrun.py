"""Runs that torchrun cannot launch are refused, with the reason."""

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts, World, apply_world
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Launcher, Plan, Transport
from paceline.plan.resolve import resolve

HERE = World(rank=0, size=2, local_size=2, host="127.0.0.1", port=1)
FAR = World(rank=0, size=2, local_size=1, host="node-0", port=1)


def _resolved(world: World, *, gpus: int = 0, **options: object) -> Plan:
    config = TrainConfig(**options, origins=dict.fromkeys(options, "here"))  # type: ignore[arg-type]  # by name
    return resolve(apply_world(config, world), Facts(world=world, cuda_devices=gpus))


def _refused(world: World | None, **options: object) -> str:
    config = TrainConfig(**options, origins=dict.fromkeys(options, "here"))  # type: ignore[arg-type]  # by name
    with pytest.raises(ConfigError) as raised:
        resolve(config if world is None else apply_world(config, world), Facts(world=world))
    assert len(raised.value.problems) == 1, raised.value.problems
    return raised.value.what


@pytest.mark.parametrize("world", [HERE, FAR], ids=["one host", "two hosts"])
def test_all_reduce_modes_use_gloo_on_any_number_of_hosts(world: World) -> None:
    for mode in MODES.values():
        if mode.channel in (Channel.COLLECTIVE, Channel.TORCH):
            optimizer = "adam" if mode.optimizers else None
            plan = _resolved(world, mode=mode.name, optimizer=optimizer)
            assert (plan.num_workers, plan.transport, plan.launcher) == (
                2,
                Transport.GLOO,
                Launcher.TORCHRUN,
            )


def test_nccl_is_chosen_when_every_rank_of_a_host_has_its_own_gpu() -> None:
    assert _resolved(HERE, gpus=2).transport is Transport.NCCL
    assert _resolved(HERE, gpus=1).transport is Transport.GLOO
    assert _resolved(FAR, gpus=1).transport is Transport.NCCL  # one rank a host


def test_a_parameter_server_serves_one_host_and_is_refused_on_several(wording: Wording) -> None:
    assert _resolved(HERE, mode="asgd").transport is Transport.TCP
    wording(_refused(FAR, mode="asgd"))


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (HERE, {"num_workers": 4}),
        (World(), {"num_workers": 4}),
        (HERE, {"launcher": "local"}),
        (HERE, {"elastic": True}),
        (HERE, {"mode": "adpsgd"}),
        (HERE, {"mode": "single"}),
        (HERE, {"device": "cuda"}),
        (HERE, {"transport": "shm"}),
        (None, {"launcher": "torchrun"}),
    ],
)
def test_what_cannot_be_is_one_clear_error(
    world: World | None, settings: dict[str, object], wording: Wording
) -> None:
    wording(_refused(world, **settings))


def test_one_process_may_run_any_all_reduce_mode() -> None:
    for mode in ("single", "ssgd", "ddp"):
        assert _resolved(World(), mode=mode).num_workers == 1

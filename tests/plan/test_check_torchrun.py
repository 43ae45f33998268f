"""Is what cannot be trained by processes that somebody else started refused, with the reason?"""

import pytest

from paceline.config.environment import Facts, World, apply_world
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Launcher, Plan, Transport
from paceline.plan.resolve import resolve

HERE = World(rank=0, size=2, local_size=2, host="127.0.0.1", port=1)
FAR = World(rank=0, size=2, local_size=1, host="node-0", port=1)


def _resolved(world: World, *, gpus: int = 0, **said: object) -> Plan:
    config = TrainConfig(**said, origins=dict.fromkeys(said, "here"))  # type: ignore[arg-type]  # by name
    return resolve(apply_world(config, world), Facts(world=world, cuda_devices=gpus))


def _refused(world: World | None, **said: object) -> str:
    config = TrainConfig(**said, origins=dict.fromkeys(said, "here"))  # type: ignore[arg-type]  # by name
    with pytest.raises(ConfigError) as raised:
        resolve(config if world is None else apply_world(config, world), Facts(world=world))
    assert len(raised.value.problems) == 1, raised.value.problems
    return raised.value.what


@pytest.mark.parametrize("world", [HERE, FAR], ids=["one host", "two hosts"])
def test_modes_in_which_all_meet_travel_by_gloo_on_any_number_of_hosts(world: World) -> None:
    for mode in MODES.values():
        if mode.channel in (Channel.COLLECTIVE, Channel.TORCH):
            optimizer = "adam" if mode.optimizers else None
            plan = _resolved(world, mode=mode.name, optimizer=optimizer)
            assert (plan.num_workers, plan.transport, plan.launcher) == (
                2,
                Transport.GLOO,
                Launcher.TORCHRUN,
            )


def test_nccl_is_chosen_when_every_rank_of_a_host_has_a_gpu_of_its_own() -> None:
    assert _resolved(HERE, gpus=2).transport is Transport.NCCL
    assert _resolved(HERE, gpus=1).transport is Transport.GLOO
    assert _resolved(FAR, gpus=1).transport is Transport.NCCL  # one rank a host


def test_a_parameter_server_serves_one_host_and_is_refused_on_several() -> None:
    assert _resolved(HERE, mode="asgd").transport is Transport.TCP
    assert "in the clear" in _refused(FAR, mode="asgd")


@pytest.mark.parametrize(
    ("world", "said", "words"),
    [
        (HERE, {"num_workers": 4}, "num_workers is 4, but WORLD_SIZE is 2"),
        (World(), {"num_workers": 4}, "this is one process"),
        (HERE, {"launcher": "local"}, "launcher is local"),
        (HERE, {"elastic": True}, "replaces its workers itself"),
        (HERE, {"mode": "adpsgd"}, "share from birth"),
        (HERE, {"mode": "single"}, "mode single is one worker, but num_workers is 2"),
        (HERE, {"device": "cuda"}, "no GPU"),
        (HERE, {"transport": "shm"}, "transport shm does not work"),
        (None, {"launcher": "torchrun"}, "torchrun did not start this command"),
    ],
)
def test_what_cannot_be_is_one_clear_error(world: World | None, said: dict[str, object], words: str) -> None:
    assert words in _refused(world, **said)


def test_one_process_may_be_any_mode_in_which_all_meet() -> None:
    for mode in ("single", "ssgd", "ddp"):
        assert _resolved(World(), mode=mode).num_workers == 1

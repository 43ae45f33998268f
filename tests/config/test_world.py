"""torchrun's variables: what they mean, and the errors when they are inconsistent."""

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import World, apply_world, read_world
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError

FULL = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "job-7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchrun_sets_the_rank_and_the_world_size() -> None:
    assert read_world(FULL) == World(
        rank=3,
        size=4,
        local_rank=1,
        local_size=2,
        host="node-0",
        port=29500,
        restarts=2,
        run_id="job-7",
        has_agent=True,
        agent_listens=True,
    )
    assert not read_world(FULL).is_one_host


def test_without_variables_the_process_is_alone() -> None:
    world = read_world({"TORCHELASTIC_RUN_ID": "left over"})
    assert (world.rank, world.size, world.is_alone, world.is_one_host) == (0, 1, True, True)


def test_a_scheduler_that_starts_one_process_per_host_need_not_set_local_ranks() -> None:
    messages = {name: FULL[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    world = read_world(messages)
    assert (world.local_rank, world.local_size, world.is_one_host, world.run_id) == (0, 1, False, None)
    assert read_world({**messages, "LOCAL_RANK": "3"}).local_rank == 3


@pytest.mark.parametrize(
    "change",
    [
        {"MASTER_PORT": None},
        {"RANK": None, "WORLD_SIZE": None},
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "four"},
        {"RANK": "4"},
        {"RANK": "-1"},
        {"MASTER_PORT": "99999"},
        {"LOCAL_RANK": "2"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_one_clear_error(change: dict[str, str | None], wording: Wording) -> None:
    variables = {name: value for name, value in {**FULL, **change}.items() if value is not None}
    with wording.raises(ConfigError) as raised:
        read_world(variables)
    assert len(raised.value.problems) == 1
    assert raised.value.hint


def test_settings_that_the_user_left_out_come_from_the_launcher() -> None:
    config = apply_world(TrainConfig(), World(size=3))
    assert (config.num_workers, config.launcher) == (3, "torchrun")
    assert config.origin("num_workers") == "WORLD_SIZE"
    train_config = apply_world(TrainConfig(num_workers=2, origins={"num_workers": "c.yaml:1"}), World(size=3))
    assert (train_config.num_workers, train_config.origin("num_workers")) == (2, "c.yaml:1")

"""What do torchrun's variables mean, and what is said when they make no sense?"""

import pytest

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


def test_torchrun_says_who_we_are() -> None:
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


def test_a_scheduler_that_starts_one_process_per_host_need_not_speak_of_local_ranks() -> None:
    said = {name: FULL[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    world = read_world(said)
    assert (world.local_rank, world.local_size, world.is_one_host, world.run_id) == (0, 1, False, None)
    assert read_world({**said, "LOCAL_RANK": "3"}).local_rank == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"MASTER_PORT": None}, "MASTER_PORT is not"),
        ({"RANK": None, "WORLD_SIZE": None}, "RANK, WORLD_SIZE are not"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE is 'four'"),
        ({"RANK": "4"}, "RANK is '4', but it must be a number from 0 to 3"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT is '99999'"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK is '2', but it must be a number from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(change: dict[str, str | None], words: str) -> None:
    variables = {name: value for name, value in {**FULL, **change}.items() if value is not None}
    with pytest.raises(ConfigError) as raised:
        read_world(variables)
    assert words in raised.value.what
    assert len(raised.value.problems) == 1
    assert raised.value.hint


def test_what_the_user_left_unsaid_is_taken_from_whoever_started_us() -> None:
    config = apply_world(TrainConfig(), World(size=3))
    assert (config.num_workers, config.launcher) == (3, "torchrun")
    assert config.origin("num_workers") == "WORLD_SIZE"
    said = apply_world(TrainConfig(num_workers=2, origins={"num_workers": "c.yaml:1"}), World(size=3))
    assert (said.num_workers, said.origin("num_workers")) == (2, "c.yaml:1")

"""The table of keys agrees with the config, the plan and the catalog."""

import dataclasses

from tests.fixtures.wording import Wording

from paceline.config.key import Kind
from paceline.config.keys import KEYS
from paceline.config.train_config import TrainConfig
from paceline.plan.catalog import OPTIMIZERS
from paceline.plan.plan import Device, Dtype, EventDetail, GossipVariant, Launcher, Transport
from paceline.sync.topology import Topology


def test_every_field_of_the_config_is_a_key_and_the_other_way_round() -> None:
    fields = [f.name for f in dataclasses.fields(TrainConfig) if f.name != "origins"]
    assert fields == list(KEYS)


def test_the_choices_are_those_that_a_plan_accepts() -> None:
    assert set(KEYS["dtype"].choices) == {d.value for d in Dtype}
    assert set(KEYS["device"].choices) == {"auto", *(d.value for d in Device)}
    assert set(KEYS["transport"].choices) == {"auto", *(t.value for t in Transport)}
    assert set(KEYS["launcher"].choices) == {x.value for x in Launcher}
    assert set(KEYS["events"].choices) == {e.value for e in EventDetail}
    assert KEYS["optimizer"].choices == OPTIMIZERS
    assert KEYS["gossip"].choices == tuple(GossipVariant)
    assert KEYS["topology"].choices == tuple(Topology)


def test_a_key_gives_its_flag_and_its_variable() -> None:
    assert KEYS["num_workers"].flag == "--num-workers"
    assert KEYS["num_workers"].variable == "PACELINE_NUM_WORKERS"
    assert KEYS["task_options"].flag == "--task-option"


def test_every_key_can_be_documented() -> None:
    for key in KEYS.values():
        assert key.help.endswith("."), key.name
        assert key.default, key.name
        assert key.example, key.name
        assert key.choices or key.kind is not Kind.CHOICE, key.name


def test_allowed_values_are_described(wording: Wording) -> None:
    for name in ("steps", "timeout", "num_workers", "events"):
        wording(KEYS[name].allowed)

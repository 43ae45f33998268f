"""Settings of the model reach the task, and are refused where they would have no effect."""

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.keys import KEYS
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.catalog import MODEL_OPTIONS, TASKS, TASKS_WITH_MODELS
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve


def planned(**options: object) -> Plan:
    return resolve(TrainConfig(**options), Facts(modules=frozenset({"mine"})))  # type: ignore[arg-type]  # its names


def test_model_settings_become_options_of_the_task() -> None:
    given = {"model": "llama_v3_1b", "seq_len": 8192, "tokenizer": "t.json", "compile": False}
    plan = planned(task="llama", mode="fsdp", activation_checkpointing="full", grad_accumulation=4, **given)
    options = {"model": "llama_v3_1b", "seq_len": 8192, "tokenizer": "t.json", "compiled": False}
    assert plan.task_options == {**options, "activation_checkpointing": "full"}
    assert plan.grad_accumulation == 4
    assert planned(task="mine:Task", model="large").task_options == {"model": "large"}


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "charlm", "model": "llama_tiny"},
        {"seq_len": 64},
        {"task": "llama", "model": "a", "task_options": {"model": "b"}},
        {"task": "llama", "compile": True, "device": "cpu"},
        {"task": "llama", "activation_checkpointing": "some"},
        {"sync_batchnorm": True, "mode": "ps"},
        {"sync_batchnorm": True, "mode": "fsdp"},
        {"sync_batchnorm": True, "elastic": True},
        {"sync_batchnorm": True, "mode": "ddp", "compress": "fp16"},
        {"sync_batchnorm": True, "aggregate": "median", "num_workers": 3},
        {"sync_batchnorm": True, "launcher": "virtual"},
        {"grad_accumulation": 33},
        {"grad_accumulation": 2, "mode": "ddp"},
        {"grad_accumulation": 2, "elastic": True},
        {"grad_accumulation": 2, "launcher": "virtual"},
    ],
    ids=str,
)
def test_what_would_mean_nothing_is_refused(settings: dict[str, object], wording: Wording) -> None:
    with wording.raises(ConfigError) as caught:
        planned(**settings)
    (only,) = caught.value.problems
    assert only.hint


def test_one_part_is_no_accumulation() -> None:
    assert planned(grad_accumulation=1, mode="ddp").grad_accumulation == 1
    assert planned(grad_accumulation=2, launcher="virtual", vmap=False).grad_accumulation == 2


def test_tables_agree() -> None:
    assert set(MODEL_OPTIONS) <= set(KEYS)
    assert set(TASKS_WITH_MODELS) <= set(TASKS)
    assert KEYS["steps"].also == "--max-steps"

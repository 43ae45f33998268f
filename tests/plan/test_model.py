"""Do settings about the model reach the task, and are they refused where they would mean nothing?"""

import pytest

from paceline.config.environment import Facts
from paceline.config.keys import KEYS
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.catalog import MODEL_OPTIONS, TASKS, TASKS_WITH_MODELS
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve


def planned(**said: object) -> Plan:
    return resolve(TrainConfig(**said), Facts(modules=frozenset({"mine"})))  # type: ignore[arg-type]  # its names


def test_what_is_said_of_a_model_becomes_options_of_the_task() -> None:
    said = {"model": "llama_v3_1b", "seq_len": 8192, "tokenizer": "t.json", "compile": False}
    plan = planned(task="llama", mode="fsdp", activation_checkpointing="full", grad_accumulation=4, **said)
    options = {"model": "llama_v3_1b", "seq_len": 8192, "tokenizer": "t.json", "compiled": False}
    assert plan.task_options == {**options, "activation_checkpointing": "full"}
    assert plan.grad_accumulation == 4
    assert planned(task="mine:Task", model="large").task_options == {"model": "large"}


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"task": "charlm", "model": "llama_tiny"}, "model is llama_tiny, but task charlm does not read it"),
        ({"seq_len": 64}, "seq_len is 64, but task xor does not read it"),
        ({"task": "llama", "model": "a", "task_options": {"model": "b"}}, "model is said twice"),
        ({"task": "llama", "compile": True, "device": "cpu"}, "compile is for GPUs"),
        ({"task": "llama", "activation_checkpointing": "some"}, "must be one of none, selective, full"),
        ({"sync_batchnorm": True, "mode": "ps"}, "mode ps does not read sync_batchnorm"),
        ({"sync_batchnorm": True, "mode": "fsdp"}, "mode fsdp does not read sync_batchnorm"),
        ({"sync_batchnorm": True, "elastic": True}, "an elastic run computes shards one by one"),
        ({"sync_batchnorm": True, "mode": "ddp", "compress": "fp16"}, "torch's compression hooks"),
        (
            {"sync_batchnorm": True, "aggregate": "median", "num_workers": 3},
            "aggregate median excludes bad workers",
        ),
        ({"sync_batchnorm": True, "launcher": "virtual"}, "vmapped workers compute in one pass"),
        ({"grad_accumulation": 33}, "a worker's batch has 32 samples"),
        ({"grad_accumulation": 2, "mode": "ddp"}, "torch's DDP averages after every part"),
        ({"grad_accumulation": 2, "elastic": True}, "an elastic run has shards"),
        ({"grad_accumulation": 2, "launcher": "virtual"}, "vmapped workers compute all at once"),
    ],
)
def test_what_would_mean_nothing_is_refused(said: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(**said)
    (only,) = caught.value.problems
    assert what in only.what
    assert only.hint


def test_one_part_is_no_accumulation() -> None:
    assert planned(grad_accumulation=1, mode="ddp").grad_accumulation == 1
    assert planned(grad_accumulation=2, launcher="virtual", vmap=False).grad_accumulation == 2


def test_tables_agree() -> None:
    assert set(MODEL_OPTIONS) <= set(KEYS)
    assert set(TASKS_WITH_MODELS) <= set(TASKS)
    assert KEYS["steps"].also == "--max-steps"

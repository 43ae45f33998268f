"""The output of two Keras processes becomes the benchmark's own numbers."""

from dataclasses import replace

import pytest
from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.keras_process import end_of, followed
from paceline.comparison.benchmark.keras_schema import (
    KerasSettings,
    ProcessReport,
    format_cluster,
    format_epoch,
    measured_of,
    steady_rate_of,
)
from paceline.core.errors import TrainingError
from paceline.plan.codec import Json

SETTINGS = KerasSettings(num_workers=2, batch_size=32, epochs=3)


def epoch(number: int, began: float, seconds: float) -> dict[str, Json]:
    return {
        "epoch": number,
        "loss": 2.0 / number,
        "accuracy": 0.1 * number,
        "val_loss": 2.1 / number,
        "val_accuracy": 0.1 * number,
        "learning_rate": 0.001,
        "began_unix_s": began,
        "seconds": seconds,
        "training_seconds": 0.9 * seconds,
    }


def ended(**more: Json) -> dict[str, Json]:
    return {
        "tensorflow": "2.21.0",
        "tf_keras": "2.21.0",
        "fit_seconds": 20.0,
        "processor_seconds": 19.0,
        "epochs_completed": 3,
        "test_accuracy": 0.3,
        "test_loss": 1.9,
        "parameters": 3_250_890,
        "weights_sha256": "aa",
        **more,
    }


def answer(cluster: Json = None) -> dict[str, Json]:
    return {
        "images": {"training": 100, "validation": 10, "test": 20},
        "epochs": [epoch(1, 1010.0, 8.0), epoch(2, 1018.0, 4.0), epoch(3, 1022.0, 6.0)],
        "end": ended(),
        "cluster": cluster,
    }


def test_the_baseline_is_one_worker_with_the_whole_batch() -> None:
    measured = measured_of(ProcessReport.of(answer()), SETTINGS, called_unix_s=1000.0, total_s=30.0)
    assert (measured.workers, measured.global_batch, measured.worker_batch) == (1, 32, 32)
    assert (measured.steps, measured.samples, measured.epochs) == (9, 288, 3.0)
    assert measured.first_step_s == 10.0
    assert measured.steady_samples_per_s == pytest.approx(2 * 96 / 10.0)
    assert measured.metrics == {"test_accuracy": 0.3, "test_loss": 1.9}
    assert measured.cluster is None
    assert [seen.seconds for seen in measured.history] == [8.0, 12.0, 18.0]
    assert measured.facts["processors kept busy by fit"] == "0.95"


def test_ray_train_shares_the_same_batch_and_its_cluster_is_kept(wording: Wording) -> None:
    cluster: dict[str, Json] = {
        "nodes": 2,
        "cpus": 4.0,
        "gpus": 0.0,
        "memory_bytes": 1 << 30,
        "ray": "2.60.0",
    }
    measured = measured_of(ProcessReport.of(answer(cluster)), SETTINGS, called_unix_s=1000.0, total_s=30.0)
    assert (measured.workers, measured.global_batch, measured.worker_batch) == (2, 32, 16)
    assert (measured.steps, measured.samples) == (9, 288)
    assert measured.cluster is not None
    assert (measured.cluster.nodes, measured.cluster.cpus, measured.cluster.memory_bytes) == (2, 4.0, 1 << 30)
    wording("\n".join(f"{name}: {text}" for name, text in measured.facts.items()))


def test_the_cluster_is_shown_before_training_starts(wording: Wording) -> None:
    line = format_cluster(
        {"nodes": 2, "cpus": 4.0, "gpus": 0.0, "memory_bytes": 16 << 30, "ray": "2.60.0"}
    ).strip()
    wording(line)


def test_an_epoch_that_ran_again_after_a_failure_counts_once_and_restarts_are_kept(wording: Wording) -> None:
    ends: list[dict[str, Json]] = [ended(rank=rank, replicas=2) for rank in range(2)]
    rounds: list[list[dict[str, Json]]] = [
        [{"ev": "epoch", **epoch(1, 0.0, 4.0)}],
        [{"ev": "epoch", **epoch(2, 4.0, 4.0)}],
        [{"ev": "failure", "ranks": "1"}],
        [{"ev": "epoch", **epoch(2, 20.0, 5.0)}],
        [{"ev": "epoch", **epoch(3, 25.0, 5.0)}],
        [{"ev": "end", **side} for side in ends],
    ]
    said: list[str] = []
    epochs, end = followed(rounds, replace(SETTINGS, max_failures=1), "log.txt", said.append)
    assert [(row["epoch"], row["seconds"]) for row in epochs] == [(1, 4.0), (2, 5.0), (3, 5.0)]
    assert end["restarts"] == 1
    wording(said[2].strip())


def test_one_epoch_has_no_steady_part() -> None:
    assert steady_rate_of([epoch(1, 0.0, 5.0)], 96) is None


def test_a_waiting_user_gets_a_line_for_each_epoch(wording: Wording) -> None:
    line = format_epoch(epoch(2, 0.0, 4.0), 3).strip()
    wording(line)


def test_workers_that_end_with_other_weights_did_not_train_one_model(wording: Wording) -> None:
    first, second = ended(rank=0, replicas=2), ended(rank=1, replicas=2)
    assert end_of([second, first], "log.txt")["rank"] == 0
    assert end_of([first, second], "log.txt")["processor_seconds"] == 38.0
    with wording.raises(TrainingError) as caught:
        end_of([first, {**second, "weights_sha256": "bb"}], "log.txt")
    assert caught.value.hint.endswith(" log.txt")
    with pytest.raises(TrainingError):
        end_of([ended(rank=0, replicas=1), ended(rank=1, replicas=1)], "log.txt")

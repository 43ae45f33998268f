"""`paceline benchmark keras` trains one model in two ways. With real TensorFlow and a real Ray."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.processes.command import ROOT, paceline
from tests.fixtures.waiting import descendants, is_running, kill, until, until_gone

pytestmark = pytest.mark.timeout(400)
# Without dropout both sides compute the same, so what they see must be the same.
TINY = ("--data", "synthetic", "--subset", "80", "--test-subset", "20", "--width", "4", "--dropout", "0")
NOISE = ("oneDNN", "cuInit", "RayTrainWorker", "WARNING")


def read(path: Path) -> Any:  # Any: JSON
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.soak  # TensorFlow is started four times
def test_both_sides_learn_the_same_from_the_same_images(tmp_path: Path) -> None:
    sizes = ("--num-workers", "2", "--epochs", "2", "--batch-size", "16")
    result = paceline("benchmark", "keras", *TINY, *sizes, "--out", str(tmp_path), within_s=380)
    assert result.code == 0, result.err
    assert not [word for word in NOISE if word in result.out + result.err], "it is in the logs"
    assert "cluster: 1 node, " in result.err, "the facts are shown before the first epoch"
    alone, many = read(tmp_path / "baseline_results.json"), read(tmp_path / "ray_results_2workers.json")
    assert (alone["training_type"], many["training_type"]) == ("baseline", "ray_distributed")
    for side, workers in ((alone, 1), (many, 2)):
        assert (side["num_workers"], side["batch_size"]) == (workers, 16)
        assert (side["epochs_completed"], side["samples_trained"]) == (2, 128)
        assert side["steady_samples_per_second"] > 0
        # Three blocks of two convolutions and a dense layer, all normalised: 3.25 million at a width of 64.
        assert (
            side["facts"]["parameters"] == f"{9 * (3 * 4 + 31 * 4**2) + 88 * 4 + 512 * 4**2 + 80 * 4 + 10:,}"
        )
    losses = [[seen["metrics"]["loss"] for seen in side["history"]] for side in (alone, many)]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert many["test_loss"] == pytest.approx(alone["test_loss"], rel=0.01)
    assert (many["ray_cluster_nodes"], many["ray_cluster_cpus"] >= 2) == (1, True)
    assert many["facts"]["weights"]  # workers whose weights differ are an error
    compared = read(tmp_path / "comparison.json")
    assert compared["global_batch"] == 16
    assert compared["speedup"] == pytest.approx(
        alone["training_time_seconds"] / many["training_time_seconds"]
    )
    assert compared["efficiency_steady"] == pytest.approx(compared["speedup_steady"] / 2)
    assert " 16 " in (tmp_path / "report.html").read_text(encoding="utf-8")
    for side in ("baseline-1", "ray-1"):
        log = (tmp_path / "runs" / side / "log.txt").read_text(encoding="utf-8")
        assert any(word in log for word in NOISE), "what TensorFlow says depends on the machine"
    assert list((tmp_path / "plots").glob("*.svg"))


MINE = """
import numpy as np
from tf_keras import Sequential, layers, losses


def model():
    net = Sequential([layers.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(3)])
    net.compile("adam", losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return net


def dataset():
    x = np.random.default_rng(0).normal(size=(400, 4)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    return (x[:320], y[:320]), (x[320:], y[320:])
"""


@pytest.mark.soak  # TensorFlow is started six times
@pytest.mark.timeout(900)
def test_an_own_model_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    own = ("--model", "mine:model", "--dataset", "mine:dataset", "--max-failures", "1")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "paceline",
            "benchmark",
            "keras",
            *own,
            "--epochs",
            "30",
            "--batch-size",
            "16",
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if "epoch 3 of" in line and any("cluster: " in earlier for earlier in said):
                log = (tmp_path / "benchmark/runs/ray-1/log.txt").read_text(
                    encoding="utf-8", errors="replace"
                )
                kill(max(int(pid) for pid in re.findall(r"RayTrainWorker pid=(\d+)", log)))
                break
        said += process.stderr
        assert process.wait() == 0, "".join(said)
    finally:
        for pid in [process.pid, *descendants(process.pid)]:
            if is_running(pid):
                kill(pid)
        process.communicate()
    alone = read(tmp_path / "benchmark/baseline_results.json")
    many = read(tmp_path / "benchmark/ray_results_2workers.json")
    assert (alone["epochs_completed"], many["epochs_completed"]) == (30, 30)
    assert many["facts"]["restarts from a checkpoint"] == "1"
    losses = [[seen["metrics"]["loss"] for seen in side["history"]] for side in (alone, many)]
    assert losses[1] == pytest.approx(losses[0], rel=0.01), "as if there had been no failure"


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    long = ("--epochs", "100000", "--batch-size", "8", "--out", str(tmp_path / "out"))
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "benchmark", "keras", *TINY, *long],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    seen: dict[int, str] = {}
    try:
        runs = tmp_path / "out" / "runs"
        until(lambda: any(p.stat().st_size for p in runs.glob("*/log.txt")), "TensorFlow talks", within_s=90)
        seen = descendants(process.pid)
        assert seen, "a side is a process of its own"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=90)
        assert (process.returncode, out) == (130, ""), err
        assert "stopped by Ctrl-C" in err
        until_gone(seen, within_s=60)
        assert not (tmp_path / "out" / "comparison.json").exists()
    finally:
        for pid in [process.pid, *seen]:
            if is_running(pid):
                kill(pid)
        process.communicate()

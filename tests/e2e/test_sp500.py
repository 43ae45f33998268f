"""Two commands lead from daily closes to a confusion matrix, with the given config file."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.tasks.closes import csv_of

# A name with nothing behind it says nothing: the samples are sp500_classification.npz, the runs in runs/.
AS_ASKED_FOR = """\
data: {npz_path, valid_from_train: 0.1, shuffle_train: false, norm: zscore}
model: {kind: lstm, hidden: 64, layers: 1, dropout: 0.1}
train: {epochs: 25, batch_size: 64, lr: 0.001, early_stop_patience: 5, seed: 42, device: auto}
eval: {threshold: 0.5, save_cm: true}
io: {save_dir, run_name: null}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sp500")
    csv_of(made / "closes.csv", 400)
    (made / "config.yaml").write_text(AS_ASKED_FOR)
    prepared = paceline("data", "prepare", "sp500", "--csv", "closes.csv", "--window", "10", folder=made)
    assert prepared.code == 0, prepared.err
    return made


def test_the_config_file_trains_and_leaves_a_confusion_matrix(folder: Path) -> None:
    result = paceline("train", "-c", "config.yaml", "--json", folder=folder)
    assert result.code == 0, result.err
    data = result.data()
    run_dir, metrics = folder / data["run_dir"], data["result"]["metrics"]
    assert run_dir == folder / "runs" / "sp500-ssgd"
    facts = json.loads((run_dir / "confusion_matrix.json").read_text())
    assert facts["matrix"] == [[metrics["tn"], metrics["fp"]], [metrics["fn"], metrics["tp"]]]
    assert sum(map(sum, facts["matrix"])) == 74  # a fifth of the samples
    assert facts["always_up"] == metrics["always_up"]
    assert (run_dir / "confusion_matrix.svg").read_text().startswith("<svg")


def test_the_same_seed_ends_with_the_same_bits(folder: Path) -> None:
    short = ("train", "-c", "config.yaml", "--json", "--epochs", "2", "--set", "model.hidden=8")
    hashes = [paceline(*short, folder=folder).data()["result"]["state_sha256"] for _ in range(2)]
    assert hashes[0] == hashes[1]


def test_without_its_file_the_next_command_is_named(tmp_path: Path) -> None:
    result = paceline("train", "--task", "sp500", "--steps", "2", folder=tmp_path)
    assert result.code == 3
    assert " sp500_classification.npz" in result.err
    assert "--csv closes.csv --out sp500_classification.npz" in result.err

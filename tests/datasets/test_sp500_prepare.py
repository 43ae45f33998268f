"""The prepared file is complete, deterministic, and split by time."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.tasks.closes import csv_of, made_up
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ConfigError, PacelineError
from paceline.datasets.sp500 import FEATURES, MIN_TRAINING, Closes, prepare
from paceline.training.session import Session


def test_the_same_closes_give_the_same_bytes(tmp_path: Path) -> None:
    made = [prepare(made_up(300), tmp_path / name, window=10, test_fraction=0.2) for name in ("a", "b")]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert made[0].sha256 == made[1].sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]  # nothing half-written is left


def test_the_file_holds_what_the_task_and_a_reader_need(tmp_path: Path) -> None:
    prepared = prepare(made_up(300), tmp_path / "s.npz", window=10, test_fraction=0.2)
    with np.load(tmp_path / "s.npz", allow_pickle=False) as file:
        arrays = dict(file)
    assert arrays["X_train"].shape == (prepared.train.samples, 10, len(FEATURES))
    assert arrays["X_test"].shape == (prepared.test.samples, 10, len(FEATURES))
    assert tuple(arrays["features"]) == FEATURES
    dates = [*arrays["dates_train"], *arrays["dates_test"]]
    assert dates == sorted(dates)
    assert prepared.train.last < prepared.test.first
    assert float(arrays["y_test"].mean()) == pytest.approx(prepared.test.up_rate)
    meta = json.loads(str(arrays["meta"]))
    assert (meta["window"], meta["embargo"]) == (10, 30)
    # Every sample has its place.
    assert prepared.train.samples + prepared.embargo + prepared.test.samples == 300 - 20 - 10


def test_the_message_about_too_few_closes_is_exact(tmp_path: Path, wording: Wording) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(made_up(40), tmp_path / "s.npz", window=30, test_fraction=0.2)
    needed = int(re.findall(r"\d+", caught.value.what)[-1])
    with wording.raises(ConfigError):
        prepare(made_up(needed - 1), tmp_path / "s.npz", window=30, test_fraction=0.2)
    assert "--window" not in caught.value.hint  # none is small enough for 40
    with pytest.raises(ConfigError) as nearly:
        prepare(made_up(100), tmp_path / "s.npz", window=30, test_fraction=0.2)
    smaller = int(nearly.value.hint.split()[-1])
    assert prepare(made_up(100), tmp_path / "s.npz", window=smaller, test_fraction=0.2).window == smaller
    prepared = prepare(made_up(needed), tmp_path / "s.npz", window=30, test_fraction=0.2)
    assert prepared.train.samples == MIN_TRAINING


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PacelineError) as caught:
        prepare(made_up(300), tmp_path / "none" / "s.npz", window=10, test_fraction=0.2)
    assert caught.value.hint.endswith(f"mkdir -p {tmp_path / 'none'}")


def test_a_day_that_did_not_move_counts_as_down(tmp_path: Path) -> None:
    closes = made_up(300)
    still = Closes(dates=closes.dates, values=np.full(300, 5.0), rows_without_close=0)
    assert prepare(still, tmp_path / "s.npz", window=10, test_fraction=0.2).train.up_rate == 0.0


def test_the_command_answers_in_lines_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv_of(tmp_path / "closes.csv", 300)
    command = ["data", "prepare", "sp500", "--csv", "closes.csv", "--out", "s.npz", "--window", "10"]
    assert run(command, Session(folder=tmp_path)) == 0
    captured = capsys.readouterr()
    assert "dropped       30 samples" in captured.out
    assert f"npz_path={tmp_path / 's.npz'}" in captured.err
    assert run([*command, "--json"], Session(folder=tmp_path)) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["train"]["samples"] + data["test"]["samples"] + data["embargo"] == 270


def test_a_gap_ends_the_command_with_the_flag_that_allows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = csv_of(tmp_path / "closes.csv", 300)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:100] + lines[130:]) + "\n")
    command = ["data", "prepare", "sp500", "--csv", "closes.csv", "--out", "s.npz", "--window", "10"]
    assert run(command, Session(folder=tmp_path)) == 3
    stderr = capsys.readouterr().err
    assert f"{path}:101: " in stderr
    assert "--max-gap-days 4" in stderr
    assert not (tmp_path / "s.npz").exists()
    assert run([*command, "--max-gap-days", "60"], Session(folder=tmp_path)) == 0

"""`paceline config` shows each setting with its origin; `paceline explain` explains error codes."""

import json
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.error_catalog.index import ERROR_CATALOG
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]


def test_each_setting_is_shown_with_its_source(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("mode: ssp\nstaleness: 3\nsteps: 9\n")
    session = Session(folder=tmp_path, variables={"seed": "5", "steps": "8"})
    args = ["config", "show", "--origin", "-c", str(file), "--steps", "7", "--straggler", "worker=0,factor=2"]
    assert run(args, session) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"mode = ssp  ({file}:1)",
        "steps = 7  (--steps)",
        "seed = 5  (PACELINE_SEED)",
        f"staleness = 3  ({file}:2)",
        "straggler = worker=0,factor=2.0  (--straggler)",
    ]


def test_an_unset_key_has_its_default(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    assert run(["config", "show", "--all", "--json"], Session(folder=tmp_path)) == 0
    settings = {row["key"]: row for row in json.loads(capsys.readouterr().out)["data"]["settings"]}
    assert settings["mode"] == {"key": "mode", "value": "ssgd", "origin": "default"}
    assert run(["config", "show"], Session(folder=tmp_path)) == 0
    wording(capsys.readouterr().out)


def test_a_setting_that_cannot_be_read_is_an_error_here_too(tmp_path: Path, capsys: Captured) -> None:
    assert run(["config", "show", "--set", "stepz=1"], Session(folder=tmp_path)) == 3
    assert capsys.readouterr().err.startswith("error[E101]: --set stepz: ")
    assert run(["config", "keys", "stepz"], Session(folder=tmp_path)) == 3
    assert " steps?" in capsys.readouterr().err


def test_without_an_argument_all_codes_are_listed(capsys: Captured) -> None:
    assert run(["explain"], Session()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines[: len(ERROR_CATALOG)]] == list(ERROR_CATALOG)
    assert run(["explain", "--json"], Session()) == 0
    assert len(json.loads(capsys.readouterr().out)["data"]["errors"]) == len(ERROR_CATALOG)


def test_exit_codes_and_alerts_are_explained_and_what_is_none_of_them_is_guessed(capsys: Captured) -> None:
    assert run(["explain", "exit", "7"], Session()) == 0
    out = capsys.readouterr().out
    assert " 7: " in out.partition("\n")[0]
    assert "  E501  " in out
    assert run(["explain", "trainingstalled"], Session()) == 0
    out = capsys.readouterr().out
    assert out.startswith("TrainingStalled (critical, progress): ")
    assert "docs/runbooks/TrainingStalled.md" in out
    assert run(["explain", "e201"], Session()) == 0
    assert capsys.readouterr().out.startswith("E201: ")
    assert run(["explain", "TrainingStaled"], Session()) == 3
    assert " TrainingStalled?" in capsys.readouterr().err
    assert run(["explain", "exit", "99"], Session()) == 3


def test_codes_are_three_digits_in_order_and_each_is_fully_explained() -> None:
    assert list(ERROR_CATALOG) == sorted(ERROR_CATALOG)
    for code, row in ERROR_CATALOG.items():
        assert code[0] == "E"
        assert code[1:].isdecimal()
        assert len(code) == 4
        assert row.why
        assert row.causes
        assert row.do
        assert row.example
        assert len(row.why) < 100, "one line"

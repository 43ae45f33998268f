"""`paceline learn` before any run, and with wrong arguments."""

import json
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.learn.evidence import gather, newest
from paceline.training.session import Session


def _learn(folder: Path, *words: str) -> int:
    return run(["learn", *words], Session(folder=folder))


def test_the_list_shows_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _learn(tmp_path, "--json") == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert [row["part"] for row in data["parts"]] == [*range(1, 9), *range(11, 19)]
    assert data["next"].split() == ["paceline", "learn", "start", "1"]
    assert _learn(tmp_path, "start") == 0
    assert _learn(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["data"]["next"].split()[:4] == [
        *("paceline", "learn", "predict", "1")
    ]


def test_progress_is_kept_where_the_learner_wants_it(tmp_path: Path) -> None:
    assert _learn(tmp_path, "predict", "1", "1280", "--dir", "elsewhere/mine") == 0
    kept = json.loads((tmp_path / "elsewhere" / "mine" / "progress.json").read_text())
    assert kept["parts"]["1"]["prediction"]["value"] == "1280"
    assert _learn(tmp_path, "--dir", "mine", "start", "2") == 0
    assert "2" in json.loads((tmp_path / "mine" / "progress.json").read_text())["parts"]
    assert not (tmp_path / "learn").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("start", "9"), 3),
        (("predict", "1", "many"), 3),
        (("predict", "7", "z"), 3),
        (("answer", "1", "7", "1"), 3),
        (("--reset", "start", "1"), 2),
        (("answer", "1", "1", "5120"), 5),
        (("answer", "2", "1", "-4"), 5),
    ],
)
def test_an_invalid_request_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, wording: Wording
) -> None:
    assert _learn(tmp_path, *words) == code
    wording(capsys.readouterr().err)


def test_a_check_reports_everything_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    _learn(tmp_path, "start", "1")
    capsys.readouterr()
    assert _learn(tmp_path, "check", "--json") == 8
    data = json.loads(capsys.readouterr().out)["data"]
    missing = [finding["what"] for finding in data["parts"][0]["findings"] if not finding["ok"]]
    wording("\n".join(missing))


def test_reset_forgets_and_a_damaged_file_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _learn(tmp_path, "predict", "1", "3")
    (tmp_path / "learn" / "progress.json").write_text("{")
    assert _learn(tmp_path) == 5
    assert "paceline learn --reset" in capsys.readouterr().err
    assert _learn(tmp_path, "--reset") == 0
    assert "predicted" not in capsys.readouterr().out


def test_the_newest_run_of_a_name_that_is_over_counts(tmp_path: Path) -> None:
    for name, is_over in (("slow", True), ("slow-2", True), ("slow-3", False), ("slower", True)):
        run_dir = tmp_path / "runs" / name
        run_dir.mkdir(parents=True)
        (run_dir / "plan.json").write_text("{}")
        if is_over:
            (run_dir / "result.json").write_text("{}")
    path = newest(tmp_path, "slow")
    assert path is not None
    assert path.name in ("slow", "slow-2")
    assert newest(tmp_path, "four") is None


def test_rules_that_cannot_be_read_are_reported_with_their_problem(tmp_path: Path, wording: Wording) -> None:
    wording(gather(tmp_path, ()).rules_problem)
    (tmp_path / "rules.yaml").write_text("version: 1\nrules: [{name: Bad, severity: loud}]\n")
    assert gather(tmp_path, ()).rules_problem.startswith("rules.yaml: ")
    (tmp_path / "rules.yaml").write_text("version: 1\ndefaults: true\nrules: []\n")
    wording(gather(tmp_path, ()).rules_problem)

"""All commands: data on stdout, messages on stderr, reliable exit codes."""

import json
import re
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.commands import COMMANDS, GROUPS, RENAMED
from paceline.cli.errors import Terminated, guard
from paceline.cli.main import run
from paceline.config.key import Group
from paceline.config.keys import KEYS
from paceline.core.errors import ExitCode, NotReadyError
from paceline.training.session import Common, Session

THREE_MISTAKES = ["--mode", "ssp", "--staleness", "-1", "--num-workers", "0", "--task", "nope"]
Captured = pytest.CaptureFixture[str]


def session_in(folder: Path, variables: dict[str, str] | None = None) -> Session:
    return Session(folder=folder, variables=variables or {})


def test_a_plan_is_explained_on_stdout(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    assert run(["train", "--dry-run", "--mode", "asgd"], session_in(tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    assert "xor-asgd" in out
    wording(err)


def test_a_run_is_given_by_its_folder_or_its_name(tmp_path: Path, capsys: Captured) -> None:
    run_dir = tmp_path / "runs" / "mine"
    session = session_in(tmp_path)
    assert run(["train", "--dry-run", "--name", "mine", "--json"], session) == 0
    plan = json.loads(capsys.readouterr().out)["data"]["plan"]
    run_dir.mkdir(parents=True)
    (run_dir / "plan.json").write_text(json.dumps(plan))
    for name in ("runs/mine", "mine"):
        assert run(["checkpoint", "list", name], session) == 0
    assert run(["checkpoint", "list", "other"], session) == ExitCode.TRAINING_FAILED
    (tmp_path / "mine").mkdir()  # a folder of this name comes first
    assert run(["checkpoint", "list", "mine"], session) == ExitCode.TRAINING_FAILED
    # So it does for --resume: this run has no checkpoint, and the other is no run.
    (tmp_path / "mine").rmdir()
    capsys.readouterr()
    for name, code in (("mine", "E307"), ("other", "E301")):
        assert run(["train", "--resume", name, "--json"], session) == ExitCode.TRAINING_FAILED
        assert json.loads(capsys.readouterr().out)["error"]["problems"][0]["code"] == code


def test_quiet_leaves_only_the_data(tmp_path: Path, capsys: Captured) -> None:
    run(["-q", "plan"], session_in(tmp_path))
    out, err = capsys.readouterr()
    assert "xor-ssgd" in out
    assert err == ""


def test_a_plan_as_json_is_one_object(tmp_path: Path, capsys: Captured) -> None:
    assert run(["train", "--dry-run", "--json", "--steps", "7"], session_in(tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["schema"] == "paceline.plan/1"
    assert answer["ok"] is True
    assert answer["data"]["plan"]["steps"] == 7
    assert len(answer["data"]["hash"]) == 16
    assert {"topic", "text"} == set(answer["data"]["explanation"][0])
    assert err == ""


def test_three_mistakes_are_three_problems_and_no_traceback(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert run(["train", "--dry-run", *THREE_MISTAKES], session_in(tmp_path)) == ExitCode.BAD_CONFIG
    out, err = capsys.readouterr()
    assert out == ""
    each = ["error[E102]:", "why:", "fix:"]
    assert [line.split()[0] for line in err.splitlines()] == [*each, *each, *each, "more:"]
    wording(err)


@pytest.mark.parametrize("args", [["--json", "plan", *THREE_MISTAKES], ["plan", *THREE_MISTAKES, "--json"]])
def test_problems_as_json_wherever_the_flag_stands(args: list[str], tmp_path: Path, capsys: Captured) -> None:
    assert run(args, session_in(tmp_path)) == ExitCode.BAD_CONFIG
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["schema"] == "paceline.error/1"
    assert answer["ok"] is False
    assert answer["error"]["exit_code"] == 3
    assert [p["where"] for p in answer["error"]["problems"]] == ["--task", "--num-workers", "--staleness"]
    assert err == ""


def test_flag_variable_and_file_work_together(tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "train.yaml"
    config.write_text("steps: 1\nseed: 1\nlr: 1\nnum_workers: -4\n")
    session = session_in(tmp_path, {"steps": "2", "seed": "2"})
    args = ["--config", str(config), "plan", "--steps", "3", "--set", "num_workers=3", "--json"]
    assert run(args, session) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)["data"]["plan"]
    assert (plan["steps"], plan["seed"], plan["lr"], plan["num_workers"]) == (3, 2, 1.0, 3)


def test_a_problem_in_a_file_names_its_line_first(tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "train.toml"
    config.write_text('mode = "ssp"\n\nstaleness = -2\n')
    assert run(["train", "--dry-run", "-c", str(config)], session_in(tmp_path)) == ExitCode.BAD_CONFIG
    assert capsys.readouterr().err.startswith(f"error[E102]: {config}:3: ")


def test_repeatable_flags_and_options_with_commas(tmp_path: Path, capsys: Captured) -> None:
    args = ["plan", "--json", "--task-option", "a=1,2", "--task-option", "b=3"]
    args += ["--straggler", "worker=0,factor=2", "--straggler", "p=0.5,delay=1ms"]
    run(args, session_in(tmp_path))
    plan = json.loads(capsys.readouterr().out)["data"]["plan"]
    assert plan["task_options"] == {"a": "1,2", "b": 3}
    assert [r["factor"] for r in plan["stragglers"]] == [2.0, 1.0]


def test_a_yes_no_flag_has_both_forms(tmp_path: Path, capsys: Captured) -> None:
    for flag, expected in (("--average-optimizer-state", True), ("--no-average-optimizer-state", False)):
        run(["train", "--dry-run", "--json", "--mode", "localsgd", flag], session_in(tmp_path))
        plan = json.loads(capsys.readouterr().out)["data"]["plan"]
        assert plan["strategy"]["average_optimizer_state"] is expected


@pytest.mark.parametrize(
    ("args", "guess"),
    [(["trian"], "train"), (["train", "--num-worker", "2"], "--num-workers"), (["--jsno", "plan"], "--json")],
)
def test_a_misspelt_command_or_flag_gets_a_suggestion(args: list[str], guess: str, capsys: Captured) -> None:
    assert run(args, Session()) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert f" {guess}" in err


@pytest.mark.parametrize(
    "args", [["train", "--json", "--stpes"], ["--json", "nope"], ["plan", "--json", "-c"]]
)
def test_usage_errors_are_json_too(args: list[str], capsys: Captured) -> None:
    assert run(args, Session()) == ExitCode.USAGE
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["exit_code"] == 2
    assert "--help" in answer["error"]["problems"][0]["hint"]


def test_bare_paceline_describes_itself_in_about_ten_lines(capsys: Captured) -> None:
    assert run([], Session()) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert 8 <= len(lines) <= 12
    assert sum(line.startswith("  paceline ") for line in lines) == 2
    assert lines[-1].startswith("Next: ")


def test_version_and_help(capsys: Captured) -> None:
    assert run(["--version"], Session()) == ExitCode.OK
    assert capsys.readouterr().out == "paceline 0.1.0\n"
    assert run(["--help"], Session()) == ExitCode.OK
    help_text = capsys.readouterr().out
    listed = {
        name for line in re.findall(r"(?m)^  (\w+(?:, \w+)*)  ", help_text) for name in line.split(", ")
    }
    assert listed == {name for group in GROUPS.values() for name in group}
    assert len(help_text.splitlines()) <= 40


def test_the_help_of_train_is_short_and_help_all_has_every_setting(capsys: Captured) -> None:
    assert run(["train", "--help"], Session()) == ExitCode.OK
    assert len(capsys.readouterr().out.splitlines()) <= 60
    assert run(["train", "--help-all"], Session()) == ExitCode.OK
    help_text = capsys.readouterr().out
    assert all(key.flag in help_text for key in KEYS.values())
    assert all(f"{group}:" in help_text for group in Group)


@pytest.mark.parametrize(("name", "replacement"), RENAMED.items())
def test_a_former_name_works_with_a_note(name: str, replacement: str, capsys: Captured) -> None:
    assert run([name, "--help"], Session()) == ExitCode.OK
    assert replacement in capsys.readouterr().err
    assert run(["--quiet", name, "--help"], Session()) == ExitCode.OK
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_has_help(name: str, capsys: Captured) -> None:
    assert run([name, "--help"], Session()) == ExitCode.OK
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotReadyError("no gpu", "buy one"), 4),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, code: int, capsys: Captured) -> None:
    def body() -> None:
        raise error

    assert guard(body, Session(), []) == code
    err = capsys.readouterr().err
    assert err.startswith("error[E")
    assert "\n  fix:  " in err


def test_a_bug_is_one_line_and_a_report(capsys: Captured) -> None:
    def body() -> None:
        raise ZeroDivisionError("oops")

    assert guard(body, Session(), []) == ExitCode.INTERNAL
    first, _, hint, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("error[E001]: ")
    assert first.endswith("ZeroDivisionError: oops")
    report = Path(hint.split("the report is in ")[1].split(",")[0])
    assert "Traceback" in report.read_text()
    report.unlink()


def test_verbose_shows_the_traceback(capsys: Captured) -> None:
    def body() -> None:
        raise ZeroDivisionError("oops")

    session = Session(common=Common(verbose=True))
    assert guard(body, session, []) == ExitCode.INTERNAL
    err = capsys.readouterr().err
    assert "Traceback" in err
    Path(err.split("the report is in ")[1].split(",")[0]).unlink()


def test_colour_is_used_only_on_request_or_on_a_terminal(tmp_path: Path, capsys: Captured) -> None:
    run(["train", "--dry-run", "--steps", "0", "--color", "always"], session_in(tmp_path))
    assert "\x1b[" in capsys.readouterr().err
    run(["--color", "never", "plan", "--steps", "0"], session_in(tmp_path))
    assert "\x1b[" not in capsys.readouterr().err

"""Every command has help with examples, and the examples work."""

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from tests.cli.reading import every_command, read

from paceline.cli.examples import EXAMPLES
from paceline.cli.main import run
from paceline.training.session import Session

COMMANDS = dict(every_command())
LINES = [f"{path} {words}".strip() for path, pairs in EXAMPLES.items() for words, _ in pairs]
# Quick ones that need nothing: no run, no network, no cluster.
RUN = [
    "alerts export --out rules.yaml",
    "completion bash",
    "config keys",
    "config keys staleness",
    "config show --all",
    "cluster deploy render coordinator --namespace train --image example.com/x:1 --replicas 3",
    "explain E201",
    "explain TrainingStalled",
    "explain exit 7",
    "image matrix",
    "job render --target rayjob --image example.com/x:1 --name demo --task xor --steps 50",
    "lab list",
    "metrics list",
    "train --dry-run --mode ssp --num-workers 4",
    "simulate --workers 1,2,4,8 --pace 10ms",
]


def test_every_command_has_an_example_and_every_example_a_command() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    assert all(EXAMPLES.values())


@pytest.mark.parametrize("path", COMMANDS)
def test_help_states_the_purpose_and_shows_examples(path: str) -> None:
    command = COMMANDS[path]
    text = command.get_help(click.Context(command, info_name=f"paceline {path}"))
    assert command.help, "it says what it is for"
    assert "Examples:" in text
    for words, description in EXAMPLES[path]:
        assert f"  paceline {path} {words}".rstrip() in text
        assert description in text


@pytest.mark.parametrize("line", LINES)
def test_an_example_can_be_read(line: str) -> None:
    read(shlex.split(line))


@pytest.mark.parametrize("line", RUN)
def test_an_example_works(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in LINES, "it is one of the examples"
    monkeypatch.chdir(tmp_path)
    assert run([*shlex.split(line), "--json"], Session(folder=tmp_path)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert answer["data"]


@pytest.mark.parametrize("path", COMMANDS)
def test_json_and_quiet_are_everywhere(path: str) -> None:
    flags = {name for p in COMMANDS[path].params for name in p.opts}
    assert {"--json", "-q", "--quiet", "-v", "--color"} <= flags


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_help_of_run_has_the_defaults_of_run_and_lists_only_options(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", flag], Session(folder=Path())) == 0
    usage, _, options = capsys.readouterr().out.partition("\nRun:\n")
    text = " ".join(options.split())
    defaults = dict(re.findall(r"(--mode|--num-workers) N[^\[]*\[default: (\w+)", text))
    assert defaults == {"--mode": "single", "--num-workers": "1"}
    assert "[OPTIONS] SCRIPT [ARGUMENTS]..." in usage
    assert not [line for line in options.splitlines() if line.strip() in ("SCRIPT", "[ARGUMENTS]...")]

"""A scripted reader of SKILL.md: it knows nothing but the text, and does what the text says.

It reads the words to fill in with their defaults, and the numbered steps. Of each step it reads what the
step needs, its block of shell, the fields to read from the JSON, and the exit codes that the text explains.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from docs.shell_blocks import shell_blocks

BUNDLED = Path(str(files("paceline.skills"))) / "bundled"
SKILLS = sorted(path.name for path in (BUNDLED / "skills").iterdir())
COMMANDS = sorted(path.stem for path in (BUNDLED / "commands").iterdir())


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    needs: str
    shell: str  # empty: a step that only explains
    fields: tuple[str, ...]
    exit_codes: frozenset[int]


@dataclass(frozen=True, slots=True)
class StepResult:
    code: int
    answer: Any  # JSON; None if stdout holds none
    err: str


def page(skill: str) -> str:
    return (BUNDLED / "skills" / skill / "SKILL.md").read_text(encoding="utf-8")


def words_to_fill_in(text: str) -> dict[str, str]:
    _, _, table = text.partition("## Values to fill in")
    return dict(re.findall(r"^\| `([A-Z]+)` \|.*\| `([^`]+)` \|$", table, re.M))


def steps(text: str) -> list[Step]:
    found = re.split(r"^### Step (\d+)\. .*$", text, flags=re.M)
    return [_step(int(number), body) for number, body in zip(found[1::2], found[2::2], strict=True)]


def _step(number: int, body: str) -> Step:
    body = re.split(r"^## ", body, flags=re.M)[0]
    needs = re.search(r"^Needs: (.*)\.$", body, re.M)
    assert needs is not None, f"step {number} does not say what it needs"
    shell = "".join(block.text for block in shell_blocks(body))
    read = re.search(r"^Read: (.*)\.$", body, re.M)
    return Step(
        number=number,
        needs=needs[1],
        shell=shell,
        fields=tuple(re.findall(r"`([\w.]+)`", read[1])) if read else (),
        exit_codes=frozenset(int(code) for code in re.findall(r"^- exit code (\d+):", body, re.M)),
    )


def filled_in(shell: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Z]+\b", lambda word: values.get(word[0], word[0]), shell)


def follow_step(
    step: Step, values: Mapping[str, str], folder: Path, variables: Mapping[str, str]
) -> StepResult:
    """Run the block, and check the exit code and the fields that the text promises."""
    result = subprocess.run(
        ["bash", "-c", filled_in(step.shell, values)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    answer = json.loads(result.stdout) if result.stdout.startswith("{") else None
    assert result.returncode in step.exit_codes, (step, result.stdout, result.stderr)
    if answer is not None and answer["ok"]:
        missing = [field for field in step.fields if not _has(answer, field)]
        assert not missing, (step, missing, result.stdout)
    return StepResult(result.returncode, answer, result.stderr)


def _has(answer: Any, field: str) -> bool:  # Any: JSON
    for name in field.split("."):
        if not isinstance(answer, dict) or name not in answer:
            return False
        answer = answer[name]
    return True


def variables_with_paceline(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a shell in which `paceline` is a command."""
    tools = folder / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    command = tools / "paceline"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m paceline "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder), **more}


def follow(
    skill: str,
    available: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    **values: str,
) -> dict[int, StepResult]:
    """All steps whose needs are available, in order; the defaults of the text fill in what is not given."""
    text = page(skill)
    chosen = {**words_to_fill_in(text), **values}
    return {
        step.number: follow_step(step, chosen, folder, variables)
        for step in steps(text)
        if step.shell and step.needs in available
    }

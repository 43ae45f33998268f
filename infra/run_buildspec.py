"""What would CodeBuild do with this buildspec? Its phases, run here: python infra/run_buildspec.py --help

As CodeBuild (buildspec 0.2): the commands of a phase run one after another and stop at the first that fails;
variables and the folder carry over from one to the next; `finally` is always done; a failed install or
pre_build ends the build, but post_build also runs after a failed build, with CODEBUILD_BUILD_SUCCEEDING=0.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any  # YAML

import yaml

PHASES = ("install", "pre_build", "build", "post_build")
# Sourced before, written after: so a variable lives on, also when the command ends its shell by `exit`.
_COMMAND = """
. {state}/env.sh
cd "$(cat {state}/folder)"
_state={state}
trap 'code=$?; export -p >"$_state/env.sh"; pwd >"$_state/folder"; exit $code' EXIT
{command}
"""


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    failed: str | None  # the command that did


@dataclass(slots=True)
class Build:
    phases: list[Phase] = field(default_factory=list)

    @property
    def succeeds(self) -> bool:
        return all(phase.failed is None for phase in self.phases)

    @property
    def ran(self) -> list[str]:
        return [phase.name for phase in self.phases]


def run(
    spec: Mapping[str, Any], source: Path, variables: Mapping[str, str], *, skipping: Sequence[str] = ()
) -> Build:
    """All phases that CodeBuild would run, in this folder."""
    assert str(spec["version"]) == "0.2", "this runs buildspecs of version 0.2"
    build = Build()
    with tempfile.TemporaryDirectory(prefix="buildspec-") as folder:
        state = Path(folder)
        (state / "env.sh").write_text("", encoding="utf-8")
        (state / "folder").write_text(f"{source}\n", encoding="utf-8")
        environment = {
            **spec.get("env", {}).get("variables", {}),
            **variables,
            "CODEBUILD_SRC_DIR": str(source),
        }
        shell = spec.get("env", {}).get("shell", "sh")
        for name in PHASES:
            if name in spec["phases"] and name not in skipping:
                done = _phase(
                    name, spec["phases"][name], state, shell, environment, succeeding=build.succeeds
                )
                build.phases.append(done)
                if done.failed is not None and name in ("install", "pre_build"):
                    break
    return build


def _phase(
    name: str,
    phase: Mapping[str, Any],
    state: Path,
    shell: str,
    variables: Mapping[str, str],
    *,
    succeeding: bool,
) -> Phase:
    _say(f"phase {name}")
    own = {**os.environ, **variables, "CODEBUILD_BUILD_SUCCEEDING": "1" if succeeding else "0"}
    # Not in what carries over: CodeBuild sets it before each phase anew.
    _forget(state / "env.sh", "CODEBUILD_BUILD_SUCCEEDING")
    failed = next((each for each in phase.get("commands", []) if not _command(each, state, shell, own)), None)
    for each in phase.get("finally", []):
        if not _command(each, state, shell, own):
            failed = failed or each
    _say(f"phase {name} {'succeeded' if failed is None else 'FAILED'}")
    return Phase(name, failed)


def _command(command: str, state: Path, shell: str, variables: Mapping[str, str]) -> bool:
    _say(f"running {command.strip().splitlines()[0]}")
    script = _COMMAND.format(state=shlex.quote(str(state)), command=command)
    return (
        subprocess.run(
            [shell, "-c", script], env=dict(variables), stdin=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


def _forget(file: Path, name: str) -> None:
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(line for line in lines if f" {name}=" not in line), encoding="utf-8")


def _say(words: str) -> None:
    print(f"[buildspec] {words}", file=sys.stderr, flush=True)


def main() -> int:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Runs the phases of a buildspec here, as CodeBuild would.")
    parser.add_argument("--buildspec", type=Path, default=here / "buildspec.yml")
    parser.add_argument("--source", type=Path, default=Path.cwd(), help="the folder to build in [here]")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the project"
    )
    parser.add_argument("--skip", action="append", default=[], choices=PHASES, help="a phase to leave out")
    parser.add_argument("--list", action="store_true", help="say what would be run, and run nothing")
    asked = parser.parse_args()
    spec = yaml.safe_load(asked.buildspec.read_text(encoding="utf-8"))
    if asked.list:
        for name in PHASES:
            for command in spec["phases"].get(name, {}).get("commands", []):
                print(f"{name}: {command.strip()}")
        return 0
    if wrong := [each for each in asked.env if "=" not in each]:
        parser.error(f"--env {wrong[0]} is not NAME=VALUE")
    variables = dict(each.split("=", 1) for each in asked.env)
    build = run(spec, asked.source.resolve(), variables, skipping=asked.skip)
    return 0 if build.succeeds else 1


if __name__ == "__main__":
    sys.exit(main())

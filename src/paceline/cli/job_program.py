"""What a job of `job render` and `job submit` runs: the words after --, and how they are started.

A script that uses Paceline runs under `paceline run`, with its settings. A plain script is started by
torchrun (on Ray by Python), and a raw command as it is; neither needs anything of Paceline in the image. A
command such as `compare` makes several runs on a Ray cluster.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from paceline.core.errors import ManifestError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.k8s.render.patch import Patch
    from paceline.k8s.spec.plain import PlainProgram
    from paceline.k8s.spec.ray import RayTool
    from paceline.k8s.spec.script import JobScript

    Program: TypeAlias = JobScript | PlainProgram | RayTool

Body: TypeAlias = Callable[..., object]
MODULE = "-m"
_COMPARE = "compare"
_MANIFESTS = (".yaml", ".yml", ".json")


def program_options(body: Body) -> Body:
    """Flags that say what the job runs."""
    options = (
        click.option(
            "--paceline/--no-paceline",
            "with_paceline",
            default=None,
            help="Start SCRIPT with `paceline run`, or with torchrun alone (Ray: python), which needs no "
            "Paceline in the image. [default: --paceline if settings of a run are given or the script "
            "imports paceline]",
        ),
        click.option(
            "--command",
            "is_command",
            is_flag=True,
            help="Execute the words after -- as they are, without torchrun.",
        ),
        click.option(
            "--patch",
            "patch_files",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Patch of the manifests: strategic merge or JSON patch, in YAML or JSON. Repeatable.",
        ),
        click.option(
            "--explain-command",
            is_flag=True,
            help="Print the command of the pods and the meaning of torchrun's flags; nothing is submitted.",
        ),
    )
    for option in reversed(options):
        body = option(body)
    return body


def is_program(file: Path, target: str | None, said: dict[str, Any]) -> bool:  # Any: from click
    """Whether the first word of `job submit` is what the job runs, and not a file of manifests."""
    if file.suffix == ".py" or said["is_command"]:
        return True
    return target is not None and file.suffix not in _MANIFESTS and str(file) != "-"


def read_program(
    session: Session,
    script: Path | None,
    arguments: Sequence[str],
    said: dict[str, Any],  # Any: from click
    settings: Sequence[str],
) -> "Program | None":
    """None: a task of Paceline's. `settings`: flags of settings of a run. Raises ConfigError."""
    from paceline.k8s.spec.plain import plain_program, raw_command
    from paceline.k8s.spec.script import JobScript, read_script

    if script is None:
        _refuse_without_program(said)
        return None
    if said["is_command"]:
        _refuse_settings(settings, "a raw command")
        return raw_command([str(script), *arguments])
    if str(script) == _COMPARE and not (session.folder / script).exists():
        from paceline.cli.compare import compare_on_ray

        _refuse_settings(settings, "compare", hint="write it after compare")
        return compare_on_ray(session, arguments)
    if str(script) == MODULE:
        _refuse_settings(settings, "a module")
        return plain_program(JobScript(path=MODULE, arguments=tuple(arguments)))
    read = read_script(session.folder, script, arguments)
    has_paceline = said["with_paceline"]
    if has_paceline is None:
        has_paceline = bool(settings) or read.imports_paceline
    if has_paceline:
        return read
    _refuse_settings(settings, "a script without Paceline")
    return plain_program(read)


def _refuse_without_program(said: dict[str, Any]) -> None:  # Any: from click
    for name, flag in (("is_command", "--command"), ("with_paceline", "--paceline")):
        if said[name]:
            hint = "write it last, such as -- /app/train.py --epochs 5"
            raise ManifestError([Problem(f"{flag} is given, but there is nothing to start", hint, flag)])


def _refuse_settings(settings: Sequence[str], what: str, *, hint: str | None = None) -> None:
    hint = hint or "leave it out, or pass it to the program, after --"
    problems = [
        Problem(f"{flag} is a setting of Paceline's runs, not of {what}", hint, flag) for flag in settings
    ]
    if problems:
        raise ManifestError(problems)


def describe_program(program: "Program") -> str:
    """How the job's program is started, in one line."""
    from paceline.k8s.spec.plain import PlainProgram
    from paceline.k8s.spec.ray import RayTool

    if isinstance(program, PlainProgram):
        return program.describe()
    if isinstance(program, RayTool):
        return f"{program.name}: {len(program.plans)} kinds of runs, one after the other, on one Ray cluster"
    return f"script: {program.describe()}"


def read_patch_files(session: Session, files: Sequence[Path]) -> "list[Patch]":
    from paceline.k8s.render.patch import read_patches
    from paceline.k8s.submit.manifests import read_text

    return [patch for file in files for patch in read_patches(read_text(session.folder / file), str(file))]

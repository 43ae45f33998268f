"""`paceline image test`: run an image and check that what it needs is in it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.image_options import engine_option, refuse_secrets, report_option, target_of
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode, ImageOptionError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.images.probe.container import Entry, ImageTestResult, Input
    from paceline.plan.plan import Option

_DEFAULT_S = {"quick": 120.0, "standard": 300.0, "full": 900.0}


@click.command("test")
@click.argument("image")
@click.argument("arguments", nargs=-1, metavar="[-- ARGS...]")
@click.option(
    "--level",
    type=click.Choice(["quick", "standard", "full"]),
    default="standard",
    show_default=True,
    help="quick: imports, versions; standard: also torch, CUDA, the model; full: also forward and backward.",
)
@click.option(
    "--requirements",
    "-r",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Requirements file whose packages to import. [default: ./requirements.txt, else all]",
)
@click.option(
    "--entry",
    metavar="MODULE:FUNCTION|SCRIPT",
    help="Your own model in the image: a function that returns it, alone or as (model, inputs), in a module "
    "or in FILE.py:FUNCTION; or the path of a script, which is run with ARGS.",
)
@click.option(
    "--entry-option",
    "entry_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Argument of the entry's function. Repeatable.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SHAPE[:DTYPE]",
    help="Input of the entry's model, such as 8x3x32x32 or 2x128:int64. Repeatable. [default: what the "
    "function returns]",
)
@click.option("--task", help="Task to build and run: a built-in one, or module:Class in the image.")
@click.option(
    "--task-option", "options", multiple=True, metavar="NAME=VALUE", help="Option of the task. Repeatable."
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Batch size of the forward pass.",
)
@click.option("--target", type=click.Choice(["cpu", "gpu"]), help="Target hardware. [default: not checked]")
@click.option(
    "--gpu", metavar="NAME", help="GPU model, such as h100 or l4, or sm_90. No GPU is needed on this machine."
)
@click.option("--gpus", help="GPUs for the container, such as all.")
@click.option(
    "--volume", "mounts", multiple=True, metavar="FROM:TO[:ro]", help="Volume to mount. Repeatable."
)
@click.option(
    "--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Environment variable. Repeatable."
)
@click.option("--network", default="none", show_default=True, help="Network of the container.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    help="Timeout in seconds. [default: depends on the level]",
)
@engine_option
@report_option("test.json, test.html and junit.xml")
@common_options
def test(
    session: Session,
    *,
    image: str,
    level: str,
    arguments: tuple[str, ...],
    requirements: tuple[Path, ...],
    entry: str | None,
    entry_options: tuple[str, ...],
    inputs: tuple[str, ...],
    task: str | None,
    options: tuple[str, ...],
    batch_size: int,
    target: str | None,
    gpu: str | None,
    gpus: str | None,
    mounts: tuple[str, ...],
    variables: tuple[str, ...],
    network: str,
    timeout_s: float | None,
    engine: str | None,
    report: Path | None,
) -> ExitCode:
    """Test IMAGE in a container: packages, versions and the model. Nothing of paceline need be in it.
    Exit code 8 if a test fails."""
    from paceline.images.build.engine import find_engine
    from paceline.images.lint.project import Kind
    from paceline.images.probe.checks import Expected
    from paceline.images.probe.container import (
        ContainerOptions,
        TestRequest,
        required_packages,
        run_image_test,
    )
    from paceline.images.reports import test_json, write_test

    refuse_secrets(variables, "--env", "use --env NAME alone: the value is read from your environment")
    if entry is not None and (task is not None or level == "quick"):
        raise ImageOptionError(
            [
                Problem(
                    "--entry was given with --task or --level quick",
                    "leave out --task, and use --level standard or full",
                    "--entry",
                )
            ]
        )
    build_target = target_of(target, gpu, None, "linux/amd64")
    files = [session.folder / file for file in requirements]
    default_file = session.folder / "requirements.txt"
    if not files and default_file.is_file():
        files = [default_file]
    request = TestRequest(
        image=image,
        level=level,
        requirements=required_packages(files),
        entry=_entry(entry, entry_options, inputs, arguments),
        task=task,
        task_options=tuple(_option(text, "--task-option") for text in options),
        batch_size=batch_size,
        expected=Expected(
            is_gpu=None if build_target.kind is Kind.UNKNOWN else build_target.kind is Kind.GPU,
            arch=build_target.arch,
        ),
        inside=ContainerOptions(
            mounts=mounts,
            variables=variables,
            network=network,
            gpus=gpus,
            timeout_s=timeout_s or _DEFAULT_S[level],
        ),
    )
    container_engine = find_engine(engine)
    print_message(
        session,
        f"testing {image} with {container_engine.name} {container_engine.version}, level {level}",
    )
    tested = run_image_test(container_engine, request)
    if report is not None:
        write_test(tested, session.folder / report)
    emit(session, "image.test", test_json(tested), _lines(tested))
    return ExitCode.OK if tested.ok else ExitCode.GATE_FAILED


def _entry(
    text: str | None, options: tuple[str, ...], inputs: tuple[str, ...], arguments: tuple[str, ...]
) -> "Entry | None":
    from paceline.images.probe.container import FunctionEntry, ScriptEntry

    place, _, function = (text or "").partition(":")
    is_script = not function and (place.endswith(".py") or "/" in place)
    if text is not None and not is_script and not all(map(str.isidentifier, function.split("."))):
        hint = "write MODULE:FUNCTION, FILE.py:FUNCTION, or the path of a script"
        raise ImageOptionError([Problem(f"{text!r} is neither a function nor a script", hint, "--entry")])
    if (options or inputs) and (text is None or is_script):
        hint = "name one: --entry MODULE:FUNCTION; a script gets its arguments behind --"
        raise ImageOptionError([Problem("--entry-option and --input need a function", hint, "--entry")])
    if arguments and not is_script:
        hint = "name one: --entry /app/train.py -- ARGS; a function gets --entry-option NAME=VALUE"
        raise ImageOptionError([Problem("arguments need a script", hint, "--entry")])
    if text is None:
        return None
    if is_script:
        return ScriptEntry(place=place, arguments=arguments)
    return FunctionEntry(
        place=place,
        function=function,
        options=tuple(_option(one, "--entry-option") for one in options),
        inputs=tuple(_input(one) for one in inputs),
    )


def _input(text: str) -> "Input":
    from paceline.images.probe.container import Input

    shape, _, dtype = text.partition(":")
    sizes = shape.split("x")
    if not all(size.isascii() and size.isdigit() for size in sizes) or (dtype and not dtype.isidentifier()):
        hint = "write its sizes and its type, such as 8x3x32x32 or 2x128:int64"
        raise ImageOptionError([Problem(f"{text!r} is not the shape of an input", hint, "--input")])
    return Input(shape=tuple(int(size) for size in sizes), dtype=dtype or "float32")


def _option(text: str, flag: str) -> "tuple[str, Option]":
    import yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise ImageOptionError([Problem(f"{text!r} is not NAME=VALUE", "write NAME=VALUE", flag)])
    parsed = yaml.safe_load(value)
    return name.strip(), parsed if isinstance(parsed, bool | int | float | str) else value


def _lines(tested: "ImageTestResult") -> list[str]:
    from paceline.images.probe.checks import Verdict

    labels = {Verdict.PASSED: "ok  ", Verdict.WARNING: "warn", Verdict.FAILED: "FAIL"}
    lines = []
    for check in tested.checks:
        lines.append(f"{labels[check.verdict]} {check.group}: {check.name}: {check.detail}")
        if check.advice:
            lines.append(f"     {check.advice}")
    counts = ", ".join(f"{tested.count(verdict)} {verdict.value}" for verdict in Verdict)
    return [*lines, f"{tested.headline}: {counts}"]

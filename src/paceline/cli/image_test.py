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
    from paceline.images.probe.container import ImageTestResult
    from paceline.plan.plan import Option

_DEFAULT_S = {"quick": 120.0, "standard": 300.0, "full": 900.0}


@click.command("test")
@click.argument("image")
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
    requirements: tuple[Path, ...],
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
    """Test IMAGE in a container: packages, versions and the model. Exit code 8 if a test fails."""
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
    build_target = target_of(target, gpu, None, "linux/amd64")
    files = [session.folder / file for file in requirements]
    default_file = session.folder / "requirements.txt"
    if not files and default_file.is_file():
        files = [default_file]
    request = TestRequest(
        image=image,
        level=level,
        requirements=required_packages(files),
        task=task,
        task_options=tuple(_option(text) for text in options),
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


def _option(text: str) -> "tuple[str, Option]":
    import yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise ImageOptionError([Problem(f"{text!r} is not NAME=VALUE", "write NAME=VALUE", "--task-option")])
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
    return [*lines, f"{tested.image} {'works' if tested.ok else 'does not work'}: {counts}"]

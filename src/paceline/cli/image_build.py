"""`paceline image build`: a Dockerfile becomes an image, mended on the way."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.image_engine import engine_option, refuse_secrets, report_option
from paceline.cli.image_options import image_options, target_of
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ExitCode

if TYPE_CHECKING:
    from paceline.app.image_build import BuildRequest, Built


@click.command("build")
@image_options
@click.option("--tag", "-t", "tags", multiple=True, required=True, help="The image's name. Repeatable.")
@click.option("--stage", help="Build up to this stage of the Dockerfile.")
@click.option("--build-arg", "arguments", multiple=True, metavar="NAME[=VALUE]", help="For ARG. Repeatable.")
@click.option(
    "--secret", "secrets", multiple=True, metavar="id=NAME,src=FILE", help="For RUN --mount=type=secret."
)
@click.option("--cache", metavar="REPOSITORY", help="Keep layers in this repository, for other machines.")
@click.option("--network", help="Of the build's RUN steps, as the engine has it, such as host.")
@click.option("--pull", is_flag=True, help="Look for newer base images.")
@click.option("--insecure", is_flag=True, help="Base images come from a registry without TLS.")
@click.option(
    "--attempts", type=click.IntRange(1, 3), default=3, show_default=True, help="How often at most."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Seconds of one attempt.",
)
@click.option("--agree", is_flag=True, help="Also change what you pinned, where only that helps.")
@click.option("--write", is_flag=True, help="Once built, write the fixes into your files.")
@engine_option
@report_option("build.json, build.html and build.log")
@common_options
def build(
    session: Session, *, folder: Path, engine: str | None, report: Path | None, **said: object
) -> ExitCode:
    """Build the image of DIR. What is known to fail is mended before; what the log of a failed attempt shows
    is mended before the next. Your files stay as they are, unless you say --write. Exit code 5: it cannot be
    built."""
    from paceline.app.image_build import build_image
    from paceline.app.image_reports import build_json, write_build
    from paceline.engines.engine import find_engine

    request = _request(session.folder, session.folder / folder, said)
    found = find_engine(engine)
    say(session, f"building with {found.name} {found.version}")
    built = build_image(found, request, lambda line: say(session, line))
    if report is not None:
        write_build(built, session.folder / report)
    emit(session, "image.build", build_json(built), _lines(built))
    return ExitCode.OK if built.ok else ExitCode.TRAINING_FAILED


def _request(base: Path, folder: Path, said: dict[str, object]) -> "BuildRequest":
    from paceline.app.image_build import BuildRequest
    from paceline.engines.words import BuildWish

    arguments = _texts(said["arguments"])
    refuse_secrets(
        arguments,
        "--build-arg",
        "a build argument stays in the image's history: use --secret id=NAME,src=FILE",
    )
    wish = BuildWish(
        context=folder,
        dockerfile=folder,
        tags=_texts(said["tags"]),
        arguments=arguments,
        secrets=_texts(said["secrets"]),
        platform=_other_machine(str(said["platform"])),
        target=_text(said["stage"]),
        pull=bool(said["pull"]),
        cache=_text(said["cache"]),
        network=_text(said["network"]),
        insecure=bool(said["insecure"]),
    )
    file, listed, timeout = said["dockerfile"], said["requirements"], said["timeout_s"]
    driver = said["driver"] if isinstance(said["driver"], int) else None
    assert isinstance(listed, tuple), "click gives a tuple"
    assert isinstance(timeout, float), "click gives a number"
    return BuildRequest(
        folder=folder,
        dockerfile=base / file if isinstance(file, Path) else None,
        requirements=tuple(base / one for one in listed),
        target=target_of(_text(said["target"]), _text(said["gpu"]), driver, str(said["platform"])),
        wish=wish,
        agreed=bool(said["agree"]),
        write=bool(said["write"]),
        attempts=int(str(said["attempts"])),
        timeout_s=timeout,
    )


def _other_machine(platform: str) -> str | None:
    """None: it is this machine's, and the engine need not be told."""
    from platform import machine

    ours = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(machine())
    return None if platform == ours else platform


def _lines(built: "Built") -> list[str]:
    lines = [
        f"fixed {fix.finding.id} ({fix.finding.path}:{fix.finding.line}): {fix.finding.why}"
        for fix in built.fixes
    ]
    if built.diff and not built.written:
        lines += ["", *built.diff.splitlines(), ""]
    lines += [f"wrote {path}" for path in built.written]
    if built.ok:
        size = "" if built.size_bytes is None else f", {built.size_bytes / 1e6:.0f} MB"
        return [*lines, f"built {', '.join(built.tags)} in {len(built.attempts)} attempts{size}"]
    last = built.attempts[-1]
    lines += last.tail[-15:]
    lines += [f"{found.id}: {found.why}; {found.advice}" for found in last.found]
    return [*lines, f"not built: it failed {last.failed_at}; {built.stopped}"]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    assert isinstance(value, tuple), "click gives a tuple"
    return tuple(str(one) for one in value)

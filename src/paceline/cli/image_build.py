"""`paceline image build` and `image push`: build with automatic fixes; push and verify by digest."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.image_options import engine_option, image_options, refuse_secrets, report_option, target_of
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode, ImageOptionError, Problem
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.images.build.attempts import BuildRequest, BuildResult
    from paceline.images.probe.container import SmokeTest
    from paceline.images.push.registry import Login


@click.command("build")
@image_options
@click.option("--tag", "-t", "tags", multiple=True, required=True, help="Name of the image. Repeatable.")
@click.option("--stage", help="Target stage of the Dockerfile.")
@click.option(
    "--build-arg", "arguments", multiple=True, metavar="NAME[=VALUE]", help="Build argument. Repeatable."
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="id=NAME,src=FILE",
    help="Secret for RUN --mount=type=secret.",
)
@click.option(
    "--cache", metavar="REPOSITORY", help="Repository for the layer cache, shared with other machines."
)
@click.option("--network", help="Network of RUN steps, such as host.")
@click.option("--pull", is_flag=True, help="Pull newer base images.")
@click.option("--insecure", is_flag=True, help="Allow base images from a registry without TLS.")
@click.option(
    "--attempts", type=click.IntRange(1, 3), default=3, show_default=True, help="Maximum number of attempts."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Timeout per attempt in seconds.",
)
@click.option(
    "--agree", is_flag=True, help="Also change pinned versions if nothing else resolves the conflict."
)
@click.option("--write", is_flag=True, help="Write the fixes to your files after a successful build.")
@click.option(
    "--smoke-test/--no-smoke-test",
    default=True,
    show_default=True,
    help="After the build, start Python in a container and import the packages that the Dockerfile installs.",
)
@engine_option
@report_option("build.json, build.html and build.log")
@common_options
def build(
    session: Session,
    *,
    folder: Path,
    engine: str | None,
    report: Path | None,
    smoke_test: bool,
    **params: object,
) -> ExitCode:
    """Build the image in DIR. Known conflicts are fixed before the build; errors in the log of a failed
    attempt are fixed before the next. Your files change only with --write. The image is labelled with the
    commit. Exit code 5 if the build fails, 8 if the smoke test fails."""
    from paceline.images.build.attempts import build_image
    from paceline.images.build.engine import find_engine
    from paceline.images.reports import build_json, write_build

    request = _request(session.folder, session.folder / folder, params)
    container_engine = find_engine(engine)
    print_message(session, f"building with {container_engine.name} {container_engine.version}")
    built = build_image(container_engine, request, lambda line: print_message(session, line))
    smoke = _smoke_test(built, request, is_wanted=smoke_test)
    if report is not None:
        write_build(built, smoke, session.folder / report)
    emit(session, "image.build", build_json(built, smoke), [*_build_lines(built), *_smoke_lines(smoke)])
    if not built.ok:
        return ExitCode.TRAINING_FAILED
    return ExitCode.OK if smoke.ok else ExitCode.GATE_FAILED


def _smoke_test(built: "BuildResult", request: "BuildRequest", *, is_wanted: bool) -> "SmokeTest":
    from paceline.images.probe.container import SmokeTest, smoke_test

    if not built.ok:
        return SmokeTest(skipped="there is no image")
    if not is_wanted:
        return SmokeTest(skipped="--no-smoke-test")
    if request.options.platform is not None:
        return SmokeTest(skipped=f"{request.options.platform} is not this machine's platform")
    return smoke_test(built.engine, built.tags[0], built.packages)


def _smoke_lines(smoke: "SmokeTest") -> list[str]:
    from paceline.images.probe.checks import Verdict

    if smoke.skipped:
        return [f"no smoke test: {smoke.skipped}"]
    shown = [check for check in smoke.checks if check.verdict is not Verdict.PASSED]
    lines = [f"smoke test: {check.verdict.value} {check.name}: {check.detail}" for check in shown]
    lines += [f"     {check.advice}" for check in shown if check.verdict is Verdict.FAILED]
    passed = sum(check.verdict is Verdict.PASSED for check in smoke.checks)
    return [*lines, f"smoke test {'passed' if smoke.ok else 'failed'}: {pluralize(passed, 'check')} passed"]


def _request(base: Path, folder: Path, params: dict[str, object]) -> "BuildRequest":
    from paceline.images.build.attempts import BuildRequest
    from paceline.images.build.engine_cli import BuildOptions

    arguments = _texts(params["arguments"])
    refuse_secrets(
        arguments,
        "--build-arg",
        "a build argument stays in the image's history: use --secret id=NAME,src=FILE",
    )
    options = BuildOptions(
        context=folder,
        dockerfile=folder,
        tags=_texts(params["tags"]),
        arguments=arguments,
        secrets=_texts(params["secrets"]),
        platform=_other_machine(str(params["platform"])),
        target=_text(params["stage"]),
        pull=bool(params["pull"]),
        cache=_text(params["cache"]),
        network=_text(params["network"]),
        insecure=bool(params["insecure"]),
    )
    dockerfile = params["dockerfile"]
    requirements = params["requirements"]
    timeout = params["timeout_s"]
    driver = params["driver"] if isinstance(params["driver"], int) else None
    assert isinstance(requirements, tuple), "click gives a tuple"
    assert isinstance(timeout, float), "click gives a number"
    return BuildRequest(
        folder=folder,
        dockerfile=base / dockerfile if isinstance(dockerfile, Path) else None,
        requirements=tuple(base / file for file in requirements),
        target=target_of(_text(params["target"]), _text(params["gpu"]), driver, str(params["platform"])),
        options=options,
        agreed=bool(params["agree"]),
        write=bool(params["write"]),
        attempts=int(str(params["attempts"])),
        timeout_s=timeout,
    )


def _other_machine(platform: str) -> str | None:
    """The platform to pass to the engine; None: it is this machine's."""
    from platform import machine

    own = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(machine())
    return None if platform == own else platform


def _build_lines(built: "BuildResult") -> list[str]:
    lines = [
        f"fixed {fix.finding.id} ({fix.finding.path}:{fix.finding.line}): {fix.finding.why}"
        for fix in built.fixes
    ]
    if built.diff and not built.written:
        lines += ["", *built.diff.splitlines(), ""]
    lines += [f"wrote {path}" for path in built.written]
    if built.ok:
        size_bytes = None if built.identity is None else built.identity.size_bytes
        size = "" if size_bytes is None else f", {size_bytes / 1e6:.0f} MB"
        revision = None if built.identity is None else built.identity.revision
        source = "" if revision is None else f", revision {revision}"
        attempts = pluralize(len(built.attempts), "attempt")
        return [*lines, f"built {', '.join(built.tags)} in {attempts}{size}{source}"]
    last = built.attempts[-1]
    lines += last.tail[-15:]
    lines += [f"{finding.id}: {finding.why}; {finding.advice}" for finding in last.found]
    return [*lines, f"not built: failed {last.failed_at}; {built.stopped}"]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    assert isinstance(value, tuple), "click gives a tuple"
    return tuple(str(text) for text in value)


@click.command("push")
@click.argument("image")
@click.option(
    "--to",
    "places",
    multiple=True,
    required=True,
    metavar="REPO",
    help="Target repository: HOST/NAME, ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME or ecr:NAME. Repeatable.",
)
@click.option(
    "--tags",
    "strategies",
    multiple=True,
    type=click.Choice(["auto", "semantic", "latest", "git-sha"]),
    help="Tagging strategy. Repeatable. [default: auto: the commit's version, else the commit]",
)
@click.option("--tag", "tags", multiple=True, help="Explicit tag. Repeatable.")
@click.option("--version", help="Version for semantic tags. [default: the version tag of the commit]")
@click.option("--region", "regions", multiple=True, help="AWS region for ecr:NAME. Repeatable.")
@click.option(
    "--create/--no-create", default=True, show_default=True, help="Create a missing ECR repository."
)
@click.option("--immutable-tags", is_flag=True, help="Create ECR repositories with immutable tags.")
@click.option("--cross-account", is_flag=True, help="Allow an ECR repository of another AWS account.")
@click.option("--username", help="User name for plain registries. [default: your login of podman or docker]")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@click.option("--insecure", is_flag=True, help="Allow plain registries without TLS.")
@click.option(
    "--endpoint-url",
    "endpoints",
    multiple=True,
    metavar="[REGION=]URL",
    help="URL of an ECR-compatible endpoint.",
)
@engine_option
@report_option("push.json and push.html")
@common_options
def push(
    session: Session,
    *,
    image: str,
    places: tuple[str, ...],
    strategies: tuple[str, ...],
    tags: tuple[str, ...],
    version: str | None,
    regions: tuple[str, ...],
    create: bool,
    immutable_tags: bool,
    cross_account: bool,
    username: str | None,
    password_stdin: bool,
    insecure: bool,
    endpoints: tuple[str, ...],
    engine: str | None,
    report: Path | None,
) -> None:
    """Push IMAGE: check the login, push, and verify the digest at every target.

    Exit codes: 5 no such image, or an unclassified failure, 7 registry unreachable, 8 digest differs,
    9 login missing or expired, 10 forbidden, 11 tag exists, 12 credentials of another account,
    13 no such repository.
    """
    from paceline.images.build.engine import find_engine
    from paceline.images.push.publish import PushRequest, push_image
    from paceline.images.push.references import parse_destination
    from paceline.images.reports import push_json, write_push

    request = PushRequest(
        image=image,
        places=tuple(parse_destination(text) for text in places),
        folder=session.folder,
        strategies=strategies,
        tags=tags,
        version=version,
        regions=regions,
        endpoints=_endpoints(endpoints),
        login=_login(username, password_stdin),
        create=create,
        immutable=immutable_tags,
        cross_account=cross_account,
        insecure=insecure,
    )
    pushed = push_image(find_engine(engine), request, lambda line: print_message(session, line))
    if report is not None:
        write_push(pushed, session.folder / report)
    lines = [f"created {name}" for name in pushed.made]
    lines += [f"{copy.how} {copy.name}, verified by {' and '.join(copy.verified_by)}" for copy in pushed.sent]
    emit(session, "image.push", push_json(pushed), [*lines, pushed.digest])


def _login(username: str | None, password_stdin: bool) -> "Login | None":
    from paceline.images.push.registry import Login

    if (username is not None) != password_stdin:
        hint = "use both: --username NAME --password-stdin < FILE"
        raise ImageOptionError(
            [Problem("--username and --password-stdin must be used together", hint, "--username")]
        )
    return None if username is None else Login(username, sys.stdin.readline().rstrip("\n"))


def _endpoints(given: tuple[str, ...]) -> dict[str, str]:
    by_region = {}
    for text in given:
        region, equals, url = text.partition("=")
        address = url if equals and "://" not in region else text
        if not address.startswith(("http://", "https://")):
            raise ImageOptionError(
                [Problem(f"{text!r} is not a URL", "write [REGION=]URL", "--endpoint-url")]
            )
        by_region[region if address is url else ""] = address
    return by_region

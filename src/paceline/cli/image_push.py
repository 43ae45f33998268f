"""`paceline image push`: an image goes to registries, and each is asked whether it has it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.image_engine import engine_option, report_option
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ImageWishError, Problem

if TYPE_CHECKING:
    from paceline.engines.logins import Login


@click.command("push")
@click.argument("image")
@click.option(
    "--to",
    "places",
    multiple=True,
    required=True,
    metavar="REPO",
    help="HOST/NAME, ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME, or ecr:NAME. Repeatable.",
)
@click.option(
    "--tags",
    "strategies",
    multiple=True,
    type=click.Choice(["auto", "semantic", "latest", "git-sha"]),
    help="How tags are chosen. Repeatable. [default: auto: the commit's version, else the commit]",
)
@click.option("--tag", "tags", multiple=True, help="A tag as you write it. Repeatable.")
@click.option("--version", help="For semantic tags. [default: the version that the commit is tagged with]")
@click.option("--region", "regions", multiple=True, help="AWS regions for ecr:NAME. Repeatable.")
@click.option("--create/--no-create", default=True, show_default=True, help="Make a missing ECR repository.")
@click.option("--immutable-tags", is_flag=True, help="Tags of a repository that is made never move.")
@click.option("--cross-account", is_flag=True, help="The ECR repository is of another account, on purpose.")
@click.option("--username", help="For plain registries. [default: your login of podman or docker]")
@click.option("--password-stdin", is_flag=True, help="Read its password from stdin.")
@click.option("--insecure", is_flag=True, help="Plain registries without TLS.")
@click.option(
    "--endpoint-url", "endpoints", multiple=True, metavar="[REGION=]URL", help="Another server than Amazon's."
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
    """Push IMAGE: logins are checked first, then it is sent, then every place is asked for its digest.

    Exit codes: 5 there is no such image, or it was refused for another reason, 7 the registry does not
    answer, 8 the digest differs, 9 no login or an expired one, 10 forbidden, 11 the tag is taken,
    12 credentials of another account, 13 no such repository.
    """
    from paceline.app.image_push import PushRequest, push_image
    from paceline.app.image_reports import push_json, write_push
    from paceline.engines.engine import find_engine
    from paceline.engines.names import read_place

    request = PushRequest(
        image=image,
        places=tuple(read_place(text) for text in places),
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
    pushed = push_image(find_engine(engine), request, lambda line: say(session, line))
    if report is not None:
        write_push(pushed, session.folder / report)
    lines = [f"made {name}" for name in pushed.made]
    lines += [f"{one.how} {one.name}, verified by {' and '.join(one.verified_by)}" for one in pushed.sent]
    emit(session, "image.push", push_json(pushed), [*lines, pushed.digest])


def _login(username: str | None, password_stdin: bool) -> "Login | None":
    from paceline.engines.logins import Login

    if (username is not None) != password_stdin:
        hint = "say both: --username NAME --password-stdin < FILE"
        raise ImageWishError([Problem("a login is a name and a password", hint, "--username")])
    return None if username is None else Login(username, sys.stdin.readline().rstrip("\n"))


def _endpoints(said: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in said:
        region, equals, url = text.partition("=")
        where = url if equals and "://" not in region else text
        if not where.startswith(("http://", "https://")):
            raise ImageWishError([Problem(f"{text!r} is no address", "write [REGION=]URL", "--endpoint-url")])
        found[region if where is url else ""] = where
    return found

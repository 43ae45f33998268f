"""`paceline deploy render|apply dashboard`: how do runs on a volume get a page in a cluster?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.deploy_show import apply_options, cluster_of, render_options, show_applied, show_files
from paceline.cli.options import common_options
from paceline.cli.output import say
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.kube.deploy.dashboard import Dashboard

_OPTIONS = (
    click.option("--namespace", "-n", required=True, metavar="NAME", help="Where it shall run."),
    click.option(
        "--image",
        required=True,
        metavar="NAME:TAG",
        help="Image with paceline[dashboard] in it, and a shell.",
    ),
    click.option("--claim", required=True, metavar="NAME", help="The claim with the folders of runs."),
    click.option("--path", default="", metavar="FOLDER", help="On the claim. [default: its top]"),
    click.option("--name", default="paceline-dashboard", show_default=True, help="Of all its objects."),
    click.option(
        "--token-secret",
        metavar="NAME",
        help="Secret with the page's token, key `token`. [default: NAME-token]",
    ),
    click.option("--host-name", multiple=True, metavar="NAME", help="How browsers call it too. Repeatable."),
    click.option(
        "--from-namespace",
        multiple=True,
        metavar="NAME",
        help="Whose pods may reach it, such as an ingress controller's. Repeatable. [default: nobody's]",
    ),
    click.option("--cpu", default="100m", show_default=True, help="CPU that it asks for."),
    click.option("--memory", default="512Mi", show_default=True, help="Memory of it."),
    click.option("--pull-secret", metavar="NAME", help="Secret that opens the image's registry."),
)


@click.command("dashboard")
@render_options(_OPTIONS)
@common_options
def render_dashboard(session: Session, *, out: Path | None, **said: Any) -> None:  # Any: from click
    """A Deployment that shows the runs of a claim and can do nothing to them, a Service, and a NetworkPolicy.
    The token comes from a Secret, as a file."""
    from paceline.app.deploy_dashboard import files_of
    from paceline.kube.deploy.dashboard import look_commands, secret_commands

    asked = _asked(said)
    files = files_of(asked)
    show_files(session, files, secret_commands(asked), out)
    for command in look_commands(asked):
        say(session, f"then: {command}")


@click.command("dashboard")
@apply_options(_OPTIONS)
@common_options
def apply_dashboard(session: Session, *, dry_run: bool, **said: Any) -> None:  # Any: from click
    """Needs the Secret with the token and the claim with the runs; says how to make what is missing."""
    from paceline.app.deploy_dashboard import apply_dashboard as apply_it

    with cluster_of(session, said) as api:
        done = apply_it(api, _asked(said), dry_run=dry_run)
    show_applied(session, done)


def _asked(said: dict[str, Any]) -> "Dashboard":
    from paceline.kube.deploy.dashboard import Dashboard

    secret = said.pop("token_secret") or f"{said['name']}-token"
    hosts, spaces = said.pop("host_name"), said.pop("from_namespace")
    return Dashboard(token_secret=secret, hosts=hosts, from_namespaces=spaces, **said)

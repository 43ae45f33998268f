"""`paceline deploy`: how do a coordinator and a dashboard come to a Kubernetes cluster?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.deploy_dashboard import apply_dashboard, render_dashboard
from paceline.cli.deploy_show import apply_options, cluster_of, render_options, show_applied, show_files
from paceline.cli.options import common_options
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.kube.deploy.coordinator import Coordinator

_OPTIONS = (
    click.option("--namespace", "-n", required=True, metavar="NAME", help="Where it shall run."),
    click.option(
        "--image", required=True, metavar="NAME:TAG", help="Image with paceline in it, and a shell."
    ),
    click.option("--name", default="paceline-coordinator", show_default=True, help="Of all its objects."),
    click.option(
        "--replicas", type=click.IntRange(1, 9), default=3, show_default=True, help="Nodes: 1, 3, 5, …"
    ),
    click.option("--tls-secret", metavar="NAME", help="Secret with the certificates. [default: NAME-pki]"),
    click.option("--storage", default="1Gi", show_default=True, help="Volume of each node."),
    click.option("--storage-class", metavar="NAME", help="[default: the cluster's]"),
    click.option("--cpu", default="250m", show_default=True, help="CPU that each node asks for."),
    click.option("--memory", default="1Gi", show_default=True, help="Memory of each node."),
    click.option("--pull-secret", metavar="NAME", help="Secret that opens the image's registry."),
    click.option(
        "--spread",
        type=click.Choice(["required", "preferred"]),
        default="required",
        show_default=True,
        help="Must every node be on a machine of its own?",
    ),
)


@click.group("deploy")
@common_options
def deploy(session: Session) -> None:
    """Run the coordinator, or a dashboard, on Kubernetes."""


@deploy.group("render")
@common_options
def render(session: Session) -> None:
    """Write the objects as YAML, or as a folder for kustomize. Nothing is sent."""


@deploy.group("apply")
@common_options
def apply(session: Session) -> None:
    """Bring it to a cluster: tried by the server first; what is there already is not written again."""


@render.command("coordinator")
@render_options(_OPTIONS)
@common_options
def render_coordinator(session: Session, *, out: Path | None, **said: Any) -> None:  # Any: from click
    """A StatefulSet with stable names and a volume for each node, a headless Service, a NetworkPolicy and a
    PodDisruptionBudget. Certificates come from a Secret, by reference."""
    from paceline.app.deploy import files_of
    from paceline.kube.deploy.coordinator import secret_commands

    asked = _asked(said)
    files = files_of(asked)
    show_files(session, files, secret_commands(asked), out)


@apply.command("coordinator")
@apply_options(_OPTIONS)
@common_options
def apply_coordinator(session: Session, *, dry_run: bool, **said: Any) -> None:  # Any: from click
    """Needs the Secret with the certificates; says how to make it where it is missing."""
    from paceline.app.deploy import apply_coordinator as apply_it

    with cluster_of(session, said) as api:
        done = apply_it(api, _asked(said), dry_run=dry_run)
    show_applied(session, done)


def _asked(said: dict[str, Any]) -> "Coordinator":
    from paceline.kube.deploy.coordinator import Coordinator

    secret = said.pop("tls_secret") or f"{said['name']}-pki"
    return Coordinator(tls_secret=secret, **said)


render.add_command(render_dashboard)
apply.add_command(apply_dashboard)

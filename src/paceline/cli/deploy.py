"""`paceline cluster deploy`: a coordinator and a dashboard on a Kubernetes cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.k8s_options import context_option, kubeconfig_option
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.k8s.client.kubernetes_api import KubernetesApi
    from paceline.k8s.deploy.apply import Applied
    from paceline.k8s.deploy.coordinator import Coordinator
    from paceline.k8s.deploy.dashboard import Dashboard
    from paceline.plan.codec import Json


_OUT = (
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Output folder for `kubectl apply -k`. [default: print]",
    ),
)
_TARGET = (
    kubeconfig_option,
    context_option,
    click.option("--dry-run", is_flag=True, help="Validate with a server-side dry run, and change nothing."),
)
Body = Callable[..., object]


def render_options(of_service: Sequence[Callable[[Body], Body]]) -> Callable[[Body], Body]:
    return _with((*of_service, *_OUT))


def apply_options(of_service: Sequence[Callable[[Body], Body]]) -> Callable[[Body], Body]:
    return _with((*of_service, *_TARGET))


def _with(options: Sequence[Callable[[Body], Body]]) -> Callable[[Body], Body]:
    def decorated(body: Body) -> Body:
        for option in reversed(options):
            body = option(body)
        return body

    return decorated


def show_files(session: Session, files: dict[str, str], first: Sequence[str], out: Path | None) -> None:
    from paceline.k8s.deploy.apply import write_files

    for command in first:
        print_message(session, f"first: {command}")
    texts: dict[str, Json] = dict(files)
    if out is None:
        shown = [text for name, text in files.items() if name != "kustomization.yaml"]
        lines = "---\n".join(shown).splitlines()
    else:
        write_files(session.folder / out, files)
        lines = [f"wrote {out}: {', '.join(files)}", f"apply it: kubectl apply -k {out}"]
    emit(session, "deploy.render", {"files": texts, "first": list(first)}, lines)


@contextmanager
def connect_cluster(session: Session, params: dict[str, Any]) -> "Iterator[KubernetesApi]":
    """Connect to the cluster of `apply_options`, whose values are removed from `params`."""
    from paceline.k8s.client.connection import ClusterTarget, open_cluster

    target = ClusterTarget(
        kubeconfig=session.resolve_path(params.pop("kubeconfig")), context=params.pop("context")
    )
    with open_cluster(target, without="only write the objects: paceline cluster deploy render") as cluster:
        yield cluster.api


def show_applied(session: Session, applied: "Sequence[Applied]") -> None:
    rows: list[Json] = [{"object": item.object, "state": item.state} for item in applied]
    emit(session, "deploy.apply", {"objects": rows}, [f"{item.state:<16} {item.object}" for item in applied])


_DASHBOARD_OPTIONS = (
    click.option("--namespace", "-n", required=True, metavar="NAME", help="Namespace."),
    click.option(
        "--image",
        required=True,
        metavar="NAME:TAG",
        help="Container image with paceline[dashboard] and a shell.",
    ),
    click.option(
        "--claim", required=True, metavar="NAME", help="PersistentVolumeClaim with the run folders."
    ),
    click.option("--path", default="", metavar="FOLDER", help="Folder on the volume. [default: its root]"),
    click.option("--name", default="paceline-dashboard", show_default=True, help="Name of the objects."),
    click.option(
        "--token-secret",
        metavar="NAME",
        help="Secret with the access token in the key `token`. [default: NAME-token]",
    ),
    click.option(
        "--host-name",
        multiple=True,
        metavar="NAME",
        help="Additional host name that browsers may use. Repeatable.",
    ),
    click.option(
        "--from-namespace",
        multiple=True,
        metavar="NAME",
        help="Namespace whose pods may connect, such as an ingress controller's. Repeatable.",
    ),
    click.option("--cpu", default="100m", show_default=True, help="CPU request."),
    click.option("--memory", default="512Mi", show_default=True, help="Memory request and limit."),
    click.option("--pull-secret", metavar="NAME", help="Image pull secret."),
)


@click.command("dashboard")
@render_options(_DASHBOARD_OPTIONS)
@common_options
def render_dashboard(session: Session, *, out: Path | None, **params: Any) -> None:  # Any: from click
    """Render a read-only dashboard of the runs on a volume: Deployment, Service and NetworkPolicy.
    The access token is mounted from a Secret."""
    from paceline.k8s.deploy.apply import dashboard_files
    from paceline.k8s.deploy.dashboard import access_commands, secret_commands

    spec = _dashboard_spec(params)
    files = dashboard_files(spec)
    show_files(session, files, secret_commands(spec), out)
    for command in access_commands(spec):
        print_message(session, f"then: {command}")


@click.command("dashboard")
@apply_options(_DASHBOARD_OPTIONS)
@common_options
def apply_dashboard(session: Session, *, dry_run: bool, **params: Any) -> None:  # Any: from click
    """Deploy the dashboard. Requires the Secret with the token and the claim with the runs."""
    from paceline.k8s.deploy.apply import apply_dashboard as apply_objects

    with connect_cluster(session, params) as api:
        applied = apply_objects(api, _dashboard_spec(params), dry_run=dry_run)
    show_applied(session, applied)


def _dashboard_spec(params: dict[str, Any]) -> "Dashboard":
    from paceline.k8s.deploy.dashboard import Dashboard

    secret = params.pop("token_secret") or f"{params['name']}-token"
    hosts = params.pop("host_name")
    namespaces = params.pop("from_namespace")
    return Dashboard(token_secret=secret, hosts=hosts, from_namespaces=namespaces, **params)


_COORDINATOR_OPTIONS = (
    click.option("--namespace", "-n", required=True, metavar="NAME", help="Namespace."),
    click.option(
        "--image", required=True, metavar="NAME:TAG", help="Container image with paceline and a shell."
    ),
    click.option("--name", default="paceline-coordinator", show_default=True, help="Name of the objects."),
    click.option(
        "--replicas",
        type=click.IntRange(1, 9),
        default=3,
        show_default=True,
        help="Number of nodes: 1, 3, 5, …",
    ),
    click.option("--tls-secret", metavar="NAME", help="Secret with the certificates. [default: NAME-pki]"),
    click.option("--storage", default="1Gi", show_default=True, help="Volume size per node."),
    click.option("--storage-class", metavar="NAME", help="Storage class. [default: the cluster's]"),
    click.option("--cpu", default="250m", show_default=True, help="CPU request per node."),
    click.option("--memory", default="1Gi", show_default=True, help="Memory request and limit per node."),
    click.option("--pull-secret", metavar="NAME", help="Image pull secret."),
    click.option(
        "--spread",
        type=click.Choice(["required", "preferred"]),
        default="required",
        show_default=True,
        help="Whether a separate machine for every node is required or preferred.",
    ),
)


_MONITORING_OPTIONS = (
    click.option("--namespace", "-n", required=True, metavar="NAME", help="Namespace of the jobs."),
    click.option(
        "--prometheus-image", required=True, metavar="NAME:TAG", help="Container image of Prometheus."
    ),
    click.option("--grafana-image", required=True, metavar="NAME:TAG", help="Container image of Grafana."),
    click.option("--name", default="paceline-monitoring", show_default=True, help="Name of the objects."),
    click.option(
        "--token-secret",
        default="paceline-metrics",
        show_default=True,
        metavar="NAME",
        help="Secret with the token of the jobs in the key `token`.",
    ),
    click.option(
        "--password-secret",
        default="paceline-grafana",
        show_default=True,
        metavar="NAME",
        help="Secret with the password of Grafana's admin in the key `password`.",
    ),
    click.option("--storage", default="10Gi", show_default=True, help="Maximum size of Prometheus' data."),
    click.option("--pull-secret", metavar="NAME", help="Image pull secret."),
)


@click.group("deploy")
@common_options
def deploy(session: Session) -> None:
    """Deploy the coordinator or a dashboard on Kubernetes."""


@deploy.group("render")
@common_options
def render(session: Session) -> None:
    """Write the objects as YAML, or as a kustomize folder. Nothing is sent to a cluster."""


@deploy.group("apply")
@common_options
def apply(session: Session) -> None:
    """Apply the objects after a server-side dry run; unchanged objects are not written again."""


@render.command("coordinator")
@render_options(_COORDINATOR_OPTIONS)
@common_options
def render_coordinator(session: Session, *, out: Path | None, **params: Any) -> None:  # Any: from click
    """Render a coordinator: StatefulSet with one volume per node, headless Service, NetworkPolicy and
    PodDisruptionBudget. Certificates are mounted from a Secret."""
    from paceline.k8s.deploy.apply import coordinator_files
    from paceline.k8s.deploy.coordinator import secret_commands

    spec = _coordinator_spec(params)
    files = coordinator_files(spec)
    show_files(session, files, secret_commands(spec), out)


@apply.command("coordinator")
@apply_options(_COORDINATOR_OPTIONS)
@common_options
def apply_coordinator(session: Session, *, dry_run: bool, **params: Any) -> None:  # Any: from click
    """Deploy the coordinator. Requires the Secret with the certificates."""
    from paceline.k8s.deploy.apply import apply_coordinator as apply_objects

    with connect_cluster(session, params) as api:
        applied = apply_objects(api, _coordinator_spec(params), dry_run=dry_run)
    show_applied(session, applied)


def _coordinator_spec(params: dict[str, Any]) -> "Coordinator":
    from paceline.k8s.deploy.coordinator import Coordinator

    secret = params.pop("tls_secret") or f"{params['name']}-pki"
    return Coordinator(tls_secret=secret, **params)


@render.command("monitoring")
@render_options(_MONITORING_OPTIONS)
@common_options
def render_monitoring(session: Session, *, out: Path | None, **params: Any) -> None:  # Any: from click
    """Render Prometheus, which finds the jobs of a namespace that serve metrics (`job render
    --metrics-port`), and Grafana with the dashboards. The data are lost with the pods."""
    from paceline.k8s.deploy.apply import monitoring_files
    from paceline.k8s.deploy.monitoring import Monitoring, access_commands, secret_commands

    spec = Monitoring(**params)
    show_files(session, monitoring_files(spec), secret_commands(spec), out)
    for command in access_commands(spec):
        print_message(session, f"then: {command}")


render.add_command(render_dashboard)
apply.add_command(apply_dashboard)

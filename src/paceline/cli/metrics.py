"""`paceline metrics`: a run's metrics for Prometheus, Grafana dashboards and alert rules."""

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options, optional_run_argument
from paceline.cli.output import emit, print_message
from paceline.core.errors import ConfigError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.plan.codec import Json

_out = click.option("--out", type=click.Path(path_type=Path), required=True, help="Output folder.")


@click.group("metrics")
@common_options
def metrics(session: Session) -> None:
    """Serve metrics to Prometheus; write dashboards and rules for Grafana and Prometheus."""


@metrics.command("serve")
@optional_run_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9464,
    show_default=True,
    help="Port to listen on (0 = any free port).",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token that each request must carry; created if missing.",
)
@click.option("--beside", is_flag=True, hidden=True, help="Exit when stdin is closed.")
@common_options
def serve(
    session: Session, run: Path | None, host: str, port: int, token_file: Path | None, beside: bool
) -> None:
    """Serve `/metrics` of RUN (default: the newest under runs/) until Ctrl-C.

    Beyond loopback only with --token-file: Prometheus sends the token as a bearer (`authorization`,
    `credentials_file`).
    """
    from paceline.dashboard.auth import load_or_create_token
    from paceline.monitoring.metrics.http_server import MetricsServer, is_for_this_machine
    from paceline.monitoring.view.feed import find_run

    if token_file is None and not is_for_this_machine(host):
        problem = f"any client that reaches {host} could read the metrics"
        raise ConfigError(
            [Problem(problem, "give --token-file FILE: every request must carry that token", "--host")]
        )
    run_dir = find_run(session.folder, run)
    token = None if token_file is None else load_or_create_token(session.folder / token_file)
    with MetricsServer(run_dir, host, port, token=token) as server:
        emit(session, "metrics.serve", {"url": server.url, "run": str(run_dir)}, [server.url])
        sys.stdout.flush()
        if beside:
            sys.stdin.read()
            return
        print_message(session, "stop with Ctrl-C; the run is not affected")
        threading.Event().wait()


@metrics.command("sample")
@optional_run_argument
@common_options
def sample(session: Session, run: Path | None) -> None:
    """Print the current metrics of RUN in Prometheus format."""
    from paceline.monitoring.metrics.http_server import MetricsPage
    from paceline.monitoring.view.feed import find_run

    text = MetricsPage(find_run(session.folder, run)).text().decode()
    emit(session, "metrics.sample", {"text": text}, text.splitlines())


@metrics.command("list")
@common_options
def list_metrics(session: Session) -> None:
    """List the metrics."""
    from paceline.monitoring.metrics.catalog import FAMILIES

    rows = [(f.name, f.kind.value, f.unit, ",".join(f.labels), f.help) for f in FAMILIES]
    data: list[Json] = [
        {"name": f.name, "kind": f.kind.value, "unit": f.unit, "labels": list(f.labels), "help": f.help}
        for f in FAMILIES
    ]
    emit(session, "metrics.list", {"metrics": data}, ("\t".join(row) for row in rows))


@metrics.command("export-grafana")
@_out
@common_options
def export_grafana(session: Session, out: Path) -> None:
    """Write Grafana dashboards."""
    from paceline.monitoring.metrics.provisioning import dashboards

    folder = session.folder / out
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, dashboard in dashboards().items():
        (folder / name).write_text(json.dumps(dashboard, indent=2) + "\n", encoding="utf-8")
        paths.append(str(out / name))
    emit(session, "metrics.export-grafana", {"files": list(paths)}, paths)


@metrics.command("export-rules")
@click.option(
    "--rules", type=click.Path(path_type=Path), help="Alert rules file. [default: the built-in rules]"
)
@click.option("--out", type=click.Path(path_type=Path), help="Output file. [default: stdout]")
@common_options
def export_rules(session: Session, rules: Path | None, out: Path | None) -> None:
    """Write the alert rules in Prometheus format."""
    from paceline.monitoring.alerts.delivery import rules_for
    from paceline.monitoring.metrics.provisioning import rules_file

    text = rules_file(rules_for(None, session.resolve_path(rules)))
    if out is None:
        emit(session, "metrics.export-rules", {"text": text}, text.splitlines())
        return
    (session.folder / out).write_text(text, encoding="utf-8")
    emit(session, "metrics.export-rules", {"files": [str(out)]}, [str(out)])

"""`paceline coordinator status`: who leads, and how far is everybody?"""

from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import cluster_options, timeout_option, waited_for
from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session
from paceline.errors import ExitCode

if TYPE_CHECKING:
    from paceline.app.cluster_access import Cluster
    from paceline.app.cluster_status import NodeLine, Report


@click.command("status")
@click.option(
    "--only", is_flag=True, help="Ask only the nodes named; that they answer is enough for exit code 0."
)
@timeout_option(2.0)
@common_options
@cluster_options
def status(session: Session, cluster: "Cluster", only: bool, timeout_s: float) -> ExitCode:
    """Say who leads, and how far every node is.

    Exit code 0 when somebody leads and all voters are there, 6 when not, 7 when
    nobody answers. Lag and connection are what the leader sees.
    """
    from paceline.app.cluster_status import look
    from paceline.plan.codec import to_json

    report = waited_for(look(cluster, patience_s=timeout_s, only=only))
    is_well = all(line.answers for line in report.nodes) if only else report.is_healthy
    data = to_json(report)
    assert isinstance(data, dict), "a dataclass becomes an object"
    emit(session, "coordinator.status", {**data, "is_healthy": is_well}, _lines(report))
    return ExitCode.OK if is_well else ExitCode.DEGRADED


def _lines(report: "Report") -> list[str]:
    voters = [line for line in report.nodes if line.is_voter]
    there = len(voters) - len(report.missing)
    leads = "nobody leads" if report.leader is None else f"node {report.leader} leads"
    first = (
        f"{leads} cluster {report.cluster} in term {report.term}; {there} of {len(voters)} voters are there"
    )
    heads = ("node", "address", "role", "term", "commit", "applied", "lag", "connected")
    rows = [heads, *(_row(line) for line in report.nodes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    table = [_aligned(row, widths) for row in rows]
    problems = [f"{line.address}: {line.problem}" for line in report.nodes if line.problem]
    return [first, "", *table, *([""] if problems else []), *problems]


def _row(line: "NodeLine") -> tuple[str, ...]:
    connected = "-" if line.is_connected is None else "yes" if line.is_connected else "no"
    node = "?" if line.node is None else str(line.node)
    numbers = (line.term, line.commit, line.applied, line.lag)
    return node, line.address, line.role, *("-" if n is None else str(n) for n in numbers), connected


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """Words to the left, numbers to the right."""
    cells = [
        cell.rjust(width) if column in (0, 3, 4, 5, 6) else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()

"""`paceline verify RUN`: does its log prove that nothing was lost and nothing done twice?"""

from pathlib import Path

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.run_argument import run_argument
from paceline.cli.session import Session
from paceline.errors import ExitCode


@click.command("verify")
@run_argument
@common_options
def verify(session: Session, run: Path) -> ExitCode:
    """Prove from the log of RUN (a run's folder) that no step and no sample was lost or done twice.

    Also that all replicas ended equal and that every checkpoint has its hash. Nothing is run.
    Exit code 8 when something does not hold.
    """
    from paceline.app.verify import to_rows, verify_run

    findings = verify_run(session.folder / run)
    lines = [f"{'ok  ' if found.ok else 'FAIL'} {found.what}: {found.seen}" for found in findings]
    holds = all(found.ok for found in findings)
    emit(session, "verify", {"run": str(run), "holds": holds, "findings": to_rows(findings)}, lines)
    return ExitCode.OK if holds else ExitCode.GATE_FAILED

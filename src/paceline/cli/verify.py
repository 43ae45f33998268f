"""`paceline verify` and `paceline replay`: prove from its log that a run is complete; execute it again."""

from pathlib import Path

import click

from paceline.cli.options import common_options, run_argument
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode
from paceline.training.session import Session


@click.command("verify")
@run_argument
@common_options
def verify(session: Session, run: Path) -> ExitCode:
    """Prove from the log of RUN (a run's folder) that no step and no sample was lost or done twice.

    Also that all replicas ended equal and that every checkpoint has its hash. Nothing is run.
    Exit code 8 when something does not hold.
    """
    from paceline.training.verify import to_rows, verify_run

    findings = verify_run(session.folder / run)
    lines = [f"{'ok  ' if finding.ok else 'FAIL'} {finding.what}: {finding.seen}" for finding in findings]
    holds = all(finding.ok for finding in findings)
    emit(session, "verify", {"run": str(run), "holds": holds, "findings": to_rows(findings)}, lines)
    return ExitCode.OK if holds else ExitCode.GATE_FAILED


@click.command("replay")
@run_argument
@common_options
def replay(session: Session, run: Path) -> ExitCode:
    """Execute the recorded schedule of RUN (a run's folder) again.

    Proves that it leads to the recorded parameters bit by bit (exit code 0), or
    says where the two part (exit code 8).
    """
    from paceline.training.verify import replay_run

    def show(done: int, total: int) -> None:
        print_message(session, f"replayed {done} of {total} updates")

    verdict = replay_run(session.folder / run, show)
    if verdict["is_equal"]:
        line = f"equal bit by bit: {verdict['updates']} updates, {verdict['gradients']} gradients recomputed"
    else:
        line = f"the replay parts from the record: {verdict['parted']}"
    emit(session, "replay", {"run": str(run), **verdict}, [line, f"state sha256 {verdict['state_sha256']}"])
    return ExitCode.OK if verdict["is_equal"] else ExitCode.GATE_FAILED

"""`paceline verify` and `paceline replay`: prove from its log that a run is complete; execute it again."""

from pathlib import Path

import click

from paceline.cli.coordinator_options import read_from_anywhere
from paceline.cli.options import checked_run_argument, common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode
from paceline.training.session import Session


@click.command("verify")
@checked_run_argument
@common_options
@read_from_anywhere(needs_checkpoints=True)
def verify(session: Session, run: Path) -> ExitCode:
    """Check in the log of RUN (a run folder or its store) that no step or sample was lost or repeated.

    Also checks that all replicas ended equal and that every checkpoint matches its checksum. Read-only.
    Exit code 8 if a check fails.
    """
    from paceline.training.verify import to_rows, verify_run

    findings = verify_run(session.folder / run)
    lines = [f"{'ok  ' if finding.ok else 'FAIL'} {finding.what} ({finding.seen})" for finding in findings]
    holds = all(finding.ok for finding in findings)
    emit(session, "verify", {"run": str(run), "holds": holds, "findings": to_rows(findings)}, lines)
    return ExitCode.OK if holds else ExitCode.GATE_FAILED


@click.command("replay")
@checked_run_argument
@common_options
@read_from_anywhere(needs_checkpoints=True)
def replay(session: Session, run: Path) -> ExitCode:
    """Re-execute the recorded schedule of RUN (a run folder or its store).

    Exit code 0 if it reproduces the recorded parameters bit for bit; otherwise 8, with
    the first divergence.
    """
    from paceline.training.verify import replay_run

    def show(done: int, total: int) -> None:
        print_message(session, f"replayed {done} of {total} updates")

    verdict = replay_run(session.folder / run, show)
    if verdict["is_equal"]:
        line = f"equal bit by bit: {verdict['updates']} updates, {verdict['gradients']} gradients recomputed"
    else:
        line = f"the replay diverges from the recorded run: {verdict['parted']}"
    emit(session, "replay", {"run": str(run), **verdict}, [line, f"state sha256 {verdict['state_sha256']}"])
    return ExitCode.OK if verdict["is_equal"] else ExitCode.GATE_FAILED

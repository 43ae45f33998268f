"""`paceline replay RUN`: execute a recorded schedule again and compare bit by bit."""

from pathlib import Path

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.run_argument import run_argument
from paceline.cli.session import Session
from paceline.errors import ExitCode


@click.command("replay")
@run_argument
@common_options
def replay(session: Session, run: Path) -> ExitCode:
    """Execute the recorded schedule of RUN (a run's folder) again.

    Proves that it leads to the recorded parameters bit by bit (exit code 0), or
    says where the two part (exit code 8).
    """
    from paceline.app.replay import replay_run

    def show(done: int, total: int) -> None:
        say(session, f"replayed {done} of {total} updates")

    verdict = replay_run(session.folder / run, show)
    if verdict["is_equal"]:
        line = f"equal bit by bit: {verdict['updates']} updates, {verdict['gradients']} gradients recomputed"
    else:
        line = f"the replay parts from the record: {verdict['parted']}"
    emit(session, "replay", {"run": str(run), **verdict}, [line, f"state sha256 {verdict['state_sha256']}"])
    return ExitCode.OK if verdict["is_equal"] else ExitCode.GATE_FAILED

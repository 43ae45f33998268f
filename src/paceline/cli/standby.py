"""`paceline standby`: continue a run on this machine when the machine of its command is lost."""

from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import run_coordinator_options
from paceline.cli.options import common_options, is_store
from paceline.cli.output import emit, print_message
from paceline.cli.train import resume_run
from paceline.core.clock import SystemClock
from paceline.core.errors import ClusterOptionError, ExitCode, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.run_endpoint import Coordinators

RETRY_S = 5.0


@click.command("standby")
@click.argument("run", metavar="URL|NAME")
@common_options
@run_coordinator_options("Coordinator nodes of the run. [default: PACELINE_COORDINATOR]")
def standby(session: Session, run: str, coordinators: "Coordinators | None") -> ExitCode:
    """Continue a run here when the machine of its command is lost.

    RUN is its store (the --run-store of `train`), or its name at the coordinator. The command waits, also
    for a run that has not begun. It ends with the run: the exit code is that of `train` if it took over,
    5 if the run failed, otherwise 0.
    """
    from paceline.coordinator.client.endpoints import choose_coordinators
    from paceline.training.command_lease import find_store

    chosen = coordinators or choose_coordinators()
    if chosen is None:
        raise ClusterOptionError(
            [
                Problem(
                    "a standby waits for the lease of a run at its coordinator, but none is named",
                    "add --coordinator HOST:PORT, or set PACELINE_COORDINATOR",
                    "--coordinator",
                )
            ]
        )
    return _stand_by(session, run if is_store(run) else find_store(chosen, run), chosen)


def _stand_by(session: Session, url: str, coordinators: "Coordinators") -> ExitCode:
    from paceline.storage.objects import StoreError
    from paceline.training.run_sessions import RunHeldError
    from paceline.training.standby import Ended, Lost, wait_for_loss

    while True:
        match wait_for_loss(coordinators, url, lambda text: print_message(session, text)):
            case Ended(how):
                line = f"the run in {url} ended with its command: {how}"
                emit(session, "standby", {"store": url, "ending": how, "took_over": False}, [line])
                return ExitCode.TRAINING_FAILED if how == "failed" else ExitCode.OK
            case Lost(by):
                print_message(session, f"{by} is lost; this command continues the run in {url}")
        try:
            with session.start_launcher() as launcher:
                return resume_run(launcher, session, (), url, coordinators=coordinators)
        except RunHeldError as error:  # another standby was faster
            print_message(session, error.what)
        except StoreError as error:
            print_message(session, f"warning: {error.what}; trying again in {RETRY_S:g} s")
            SystemClock().sleep(RETRY_S)

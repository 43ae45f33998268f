"""`paceline run`: a user's own training script, started as every worker of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.coordinator_options import run_coordinator_options
from paceline.cli.options import SettingsCommand, common_options, config_options_without
from paceline.cli.train import AUTO, resume_run, start_or_resume_run, start_run
from paceline.config.values import RawSetting
from paceline.core import environ
from paceline.core.errors import ExitCode
from paceline.training.script import LEFT_OUT
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.coordinator.run_endpoint import Coordinators


@click.command("run", cls=SettingsCommand, context_settings={"allow_interspersed_args": False})
@click.argument("script", type=click.Path(path_type=Path), metavar="SCRIPT", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.option(
    "--resume",
    metavar="RUN|URL|auto",
    help="Resume a run from its newest checkpoint, with its script and arguments; auto with SCRIPT: the "
    "newest run of this name, if any.",
)
@click.option(
    "--dashboard",
    "with_dashboard",
    is_flag=True,
    help="Serve the dashboard during the run.",
)
@config_options_without(
    *LEFT_OUT,
    name="SCRIPT-MODE",
    mode="single; ssgd with --num-workers",
    num_workers="1; 2 with a --mode other than single",
)
@common_options
@run_coordinator_options("Coordinator nodes of an elastic run. [default: PACELINE_COORDINATOR]")
def run_script(
    session: Session,
    flags: Sequence[RawSetting],
    script: Path | None,
    arguments: Sequence[str],
    resume: str | None,
    with_dashboard: bool,
    coordinators: "Coordinators | None",
) -> ExitCode:
    """Run your own training script with many workers.

    SCRIPT calls paceline.join(), run.prepare(...) and run.backward(loss); docs/guides/your-own-script.md.
    Options of paceline come before SCRIPT, those of the script after it. Samples, batch, steps and
    learning rate are in the script. The default is one worker, mode single.
    """
    if with_dashboard:
        environ.set_default_variables(PACELINE_LIVE_LOG="1")  # before workers start: they inherit it
    may_resume = resume == AUTO
    if (script is None) == (resume is None or may_resume):
        raise click.UsageError("name a SCRIPT, or a run with --resume")
    with session.start_launcher() as launcher:
        if script is None:
            return resume_run(
                launcher,
                session,
                flags,
                str(resume),
                with_dashboard=with_dashboard,
                coordinators=coordinators,
            )
        from paceline.training.script import read_script_request

        request = read_script_request(session, flags, script, arguments, launcher, may_hold_run=may_resume)
        if may_resume:
            return start_or_resume_run(
                launcher, session, request, with_dashboard=with_dashboard, coordinators=coordinators
            )
        return start_run(launcher, session, request, with_dashboard=with_dashboard, coordinators=coordinators)

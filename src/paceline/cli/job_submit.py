"""`paceline job submit`: send a job to a cluster if it can run there, and follow it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from paceline.cli.job_follow_options import follow_options
from paceline.cli.job_place import place_options
from paceline.cli.job_render_options import render_options
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.config.written import Written
from paceline.errors import ExitCode, ManifestError, Problem

if TYPE_CHECKING:
    from paceline.app.cluster_reach import Place
    from paceline.app.job_through import ThroughHyp
    from paceline.kube.diagnosis.snapshot import Object
    from paceline.plan.codec import Json

_WITH_A_FILE = ("profile", "pending_s")  # of render's flags, those that are also for what a file holds


@click.command("submit")
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True), metavar="[FILE]")
@click.option("--skip-fit", is_flag=True, help="Send it although no nodes have room for it.")
@click.option(
    "--infra-retries",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="New attempts of the whole job after failures of the cluster.",
)
@click.option(
    "--app-retries",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="New attempts after failures of the program.",
)
@click.option(
    "--allow",
    type=click.Choice(["memory"]),
    multiple=True,
    help="A change that a new attempt may make: memory, 1.5 times as much, once, after it ran out.",
)
@click.option(
    "--through",
    type=click.Choice(["api", "hyp"]),
    default="api",
    show_default=True,
    help="Who makes the job: we, or HyperPod's own command (a HyperPodPyTorchJob alone).",
)
@follow_options(300.0)
@click.option("--detach", is_flag=True, help="Do not follow; start the watcher at once.")
@render_options(required=False)
@common_options
@place_options
def submit(
    session: Session,
    place: "Place",
    *,
    file: Path | None,
    target: str | None,
    flags: Sequence[Written],
    skip_fit: bool,
    infra_retries: int,
    app_retries: int,
    allow: Sequence[str],
    for_s: float,
    through: str,
    output: Path | None,
    detach: bool,
    **said: Any,  # Any: render's flags, from click
) -> ExitCode:
    """Send a job to a cluster, and follow it with the logs of all ranks. The job is that of FILE (- is
    stdin), or what `job render` makes of its flags: --target, --image, --name and all settings of `train`.

    First it is asked whether it can run: rights, kinds, versions, quotas, room on nodes, and a dry run. If
    not, it says what it needs and what there is, and nothing is created. A failure is explained; one of the
    cluster's starts the whole job again from its last checkpoint. Ctrl-C ends the following, not the job.
    """
    from paceline.app.cluster_reach import reached
    from paceline.app.job_submit import submit as send
    from paceline.cli.job_follow import follow_job
    from paceline.kube.diagnosis.retry import RetryPolicy
    from paceline.kube.submission.fit import table

    policy = RetryPolicy(
        infra=infra_retries, app=app_retries, pending_s=said["pending_s"], allowed_changes=frozenset(allow)
    )
    manifests = _manifests(session, place, file, target, flags, said)
    sender = _sender(place) if through == "hyp" else None
    with reached(place) as cluster:
        sent = send(cluster, manifests, policy, fits=not skip_fit, through=sender)
        for text in (*table(sent.rows), *(f"note: {note}" for note in sent.notes)):
            say(session, text)
        say(session, f"{sent.kind}/{sent.name} is sent to namespace {sent.namespace}")
        if not detach:
            return follow_job(
                session, cluster, place, sent.name, for_s=for_s, output=output, command="job.submit"
            )
        return _detached(session, place, sent.namespace, sent.name)


def _sender(place: "Place") -> "ThroughHyp":
    from paceline.app.job_through import ThroughHyp

    return ThroughHyp(place)


def _manifests(
    session: Session,
    place: "Place",
    file: Path | None,
    target: str | None,
    flags: Sequence[Written],
    said: dict[str, Any],  # Any: from click
) -> "list[Object]":
    """Of a file or of flags, in the same way: a text of manifests, checked as `job validate` does."""
    from paceline.app.job_submit import checked_manifests, read_manifests
    from paceline.cli.job_render import rendered
    from paceline.kube.intent import Profile

    profile = Profile(said["profile"])
    if file is not None:
        _refuse_flags(session, flags, said, target)
        source = click.get_current_context().get_parameter_source("profile")
        if source is not ParameterSource.COMMANDLINE:  # the default is for what is rendered here
            profile = Profile.COMPAT
        place_of_it = file if str(file) == "-" else session.folder / file
        return read_manifests(place_of_it, profile)
    if target is None or said["image"] is None:
        missing = "--target" if target is None else "--image"
        hint = "name a FILE of manifests; or say --target, --image and --name, as for `paceline job render`"
        raise ManifestError([Problem("nothing says which job shall be sent", hint, missing)])
    done = rendered(session, flags, target, {**said, "namespace": place.namespace})
    return checked_manifests(done.text, f"--target {target}", profile)


def _refuse_flags(
    session: Session, flags: Sequence[Written], said: dict[str, Any], target: str | None
) -> None:
    """What a file says is not changed by flags: nobody would know which of the two was meant."""
    context = click.get_current_context()
    names = [name for name in said if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    given = [f"--{name.replace('_', '-')}" for name in names if name not in _WITH_A_FILE]
    given += [one.where for one in flags]
    given += ["--set"] if session.common.sets else []
    given += ["--target"] if target is not None else []
    if given:
        hint = "leave them out, or leave FILE out and send what these flags make"
        what = f"FILE holds the whole job, so it cannot be changed by {', '.join(given)}"
        raise ManifestError([Problem(what, hint, given[0])])


def _detached(session: Session, place: "Place", namespace: str, name: str) -> ExitCode:
    from paceline.app.job_watcher import start_watcher

    watcher = start_watcher(place, namespace, name)
    say(session, f"process {watcher.pid} watches it: {watcher.log}")
    answer: dict[str, Json] = {"name": name, "namespace": namespace, "ended": False}
    emit(session, "job.submit", {**answer, "watcher": watcher.pid, "log": str(watcher.log)}, [])
    return ExitCode.OK

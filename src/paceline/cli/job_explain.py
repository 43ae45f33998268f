"""`paceline job explain`: why a job is stuck or dead, with evidence and the next command to type."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.job_place import place_options
from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session
from paceline.errors import ExitCode, ManifestError, Problem

if TYPE_CHECKING:
    from paceline.app.cluster_reach import Place
    from paceline.app.explain import Explained
    from paceline.plan.codec import Json


@click.command("explain")
@click.argument("name", required=False)
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="kubectl get -o json or -o yaml, kubectl describe, or a log; - reads it from stdin.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="POD.log",
    help="A pod's log, in a file that is called like the pod. Repeatable.",
)
@common_options
@place_options
def explain(
    session: Session, place: "Place", *, name: str | None, file: Path | None, logs: tuple[Path, ...]
) -> ExitCode:
    """Say why a job is stuck or dead: NAME in a cluster, or a file about it. Nothing is changed.

    Record it: kubectl get pods,events,jobs,pvc,resourcequotas,nodes -n NAMESPACE -o json > FILE.json

    Add pytorchjobs, trainjobs, rayjobs or workloads to that list where the cluster has them. Logs make it
    exact: kubectl logs POD -n NAMESPACE --timestamps > POD.log (with --previous > POD.previous.log after a
    restart). NAME picks one job of the recording. The output of kubectl describe (pod, job, node), a table
    of events and a lone log are read as well. A cause that is not understood ends with exit code 4.
    """
    from paceline.kube.diagnosis.failure import FailureClass
    from paceline.kube.diagnosis.retry import Resubmit, Stop, told

    done = _explained(session, place, name, file, logs)
    verdict, finding = done.verdict, done.finding
    decision: dict[str, Json] = {"action": verdict.action, "says": verdict.says}
    if isinstance(verdict, Resubmit | Stop):
        decision = told(verdict)
    if finding is None:
        lines = [f"{verdict.says} ({done.seen})"]
    else:
        lines = [*finding.lines(), f"decision: {verdict.says}"]
    answer: dict[str, Json] = {
        "finding": None if finding is None else finding.to_json(),
        "decision": decision,
    }
    emit(session, "job.explain", {**answer, "seen": done.seen}, lines)
    is_understood = finding is None or finding.kind is not FailureClass.UNKNOWN
    return ExitCode.OK if is_understood else ExitCode.NOT_READY


def _explained(
    session: Session, place: "Place", name: str | None, file: Path | None, logs: tuple[Path, ...]
) -> "Explained":
    from paceline.app.cluster_reach import reached
    from paceline.app.explain import explain_record
    from paceline.app.job_live import explain_live
    from paceline.kube.diagnosis.record import KUBECTL

    if file is not None:
        place_of_it = file if str(file) == "-" else session.folder / file
        return explain_record(place_of_it, [session.folder / log for log in logs], name)
    if name is None or logs:
        what = "a job is explained by its name, or from a recording"
        hint = f"say NAME; or record it with {KUBECTL}, and add --from FILE.json"
        raise ManifestError([Problem(what, hint, "--from")])
    with reached(place) as cluster:
        return explain_live(cluster, name)

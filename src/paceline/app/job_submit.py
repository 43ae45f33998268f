"""How does a job come to a cluster? All is asked first; it is created when nothing speaks against it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.app.cluster_reach import Cluster
from paceline.app.job import read_text
from paceline.clock import unix_now_s
from paceline.errors import ConfigError, ExitCode, ManifestError, PacelineError, Problem
from paceline.kube.diagnosis.retry import RetryPolicy
from paceline.kube.diagnosis.snapshot import Object, name_of
from paceline.kube.intent import Profile
from paceline.kube.manifest import read_documents
from paceline.kube.reading import mapping
from paceline.kube.submission.fit import Row, table
from paceline.kube.submission.gang import job_in, refers_to
from paceline.kube.submission.keeping import LOST, keeps_in
from paceline.kube.submission.mark import Mark
from paceline.kube.validate import validate

if TYPE_CHECKING:
    from paceline.app.job_through import ThroughHyp


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    name: str
    kind: str
    namespace: str
    made: tuple[str, ...]  # beside the job
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


class NoRoomError(PacelineError):
    """The job can never run as things are; its exit code is that of wrong settings."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E602"


class RightsError(ConfigError):
    """Something is missing in the cluster, or a right in it."""

    exit_code = ExitCode.NOT_READY
    code = "E603"


def submit(
    cluster: Cluster,
    manifests: list[Object],
    policy: RetryPolicy,
    *,
    fits: bool = True,
    through: "ThroughHyp | None" = None,
) -> Submitted:
    """Raises NoRoomError, RightsError, ConfigError, ApiError; then nothing is left in the cluster."""
    from paceline.cluster.job_objects import create_job, goes_with, in_namespace
    from paceline.cluster.preflight import preflight

    found = job_in(manifests)
    if found is None:
        hint = "a file for submit holds one job, and what it needs beside it: paceline job render writes one"
        raise ManifestError([Problem("there is not exactly one job in what shall be sent", hint, "FILE")])
    all_of_it = in_namespace(manifests, cluster.namespace)
    if through is not None:
        all_of_it = through.prepared(all_of_it)
    job = next(one for one in all_of_it if one["kind"] == found["kind"])
    beside = [one for one in all_of_it if one is not job]
    done = preflight(cluster.api, beside, job, cluster.namespace, fits=fits)
    if done.problems:
        raise RightsError(done.problems)
    if not done.is_fine:
        _refuse(done.rows)
    keeps, notes = keeps_in(all_of_it), list(done.notes)
    if not keeps and (policy.infra or policy.app):
        notes.append(LOST)
    beside_it = goes_with(done.to_make)
    mark = Mark(manifest=job, sent_s=unix_now_s(), policy=policy, beside=beside_it, keeps=keeps)
    create_job(cluster.api, done.to_make, job, mark, None if through is None else through.create)
    return Submitted(
        name=name_of(job),
        kind=str(job["kind"]),
        namespace=cluster.namespace,
        made=tuple(f"{one['kind']}/{name_of(one)}" for one in done.to_make),
        rows=tuple(done.rows),
        notes=(*notes, *(() if through is None else through.notes)),
    )


def _refuse(rows: list[Row]) -> None:
    listed = "\n".join(f"  {line}" for line in table(rows))
    short = [row for row in rows if not row.is_enough]
    what = f"the job cannot run here: {short[0].what} ({short[0].where}) needs {short[0].needs}"
    hint = "ask for less or for other nodes, or have the quota raised; --skip-fit sends it all the same"
    if any(row.where.startswith("quota") for row in short):
        hint = "ask for less, wait until other jobs end, or have the quota raised"
    raise NoRoomError(f"{what}, has {short[0].has}; nothing was created\n{listed}", hint)


def read_manifests(path: Path, profile: Profile) -> list[Object]:
    """Of a file, or of stdin (-), checked as `job validate` does. Raises ConfigError, PacelineError."""
    return checked_manifests(read_text(path), str(path), profile)


def checked_manifests(text: str, where: str, profile: Profile) -> list[Object]:
    checked = validate(text, where, profile)
    if checked.problems:
        raise ManifestError(checked.problems)
    documents, _ = read_documents(text, where)
    return [mapping(one.value) for one in documents]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Objects that the server was not asked about, as kind/name."""

    there_already: tuple[str, ...] = ()
    runtime_missing: tuple[str, ...] = ()  # TrainJobs whose runtime is in the same files, and not created


def dry_run(cluster: Cluster, manifests: list[Object]) -> DryRun:
    """Asks the server whether it would take them. Raises ApiError, ConfigError."""
    from paceline.cluster.job_objects import in_namespace, is_there
    from paceline.cluster.port import ConflictError
    from paceline.cluster.preflight import trainer_misfit

    wrong = trainer_misfit(cluster.api, manifests)
    if wrong is not None:
        raise ManifestError([wrong])
    there: list[str] = []
    waiting: list[str] = []
    placed = in_namespace(manifests, cluster.namespace)
    for one in placed:
        called = f"{one['kind']}/{name_of(one)}"
        if any(not is_there(cluster.api, its) for its in refers_to(one, placed)):
            waiting.append(called)
            continue
        try:
            cluster.api.create(one, dry_run=True)
        except ConflictError:
            there.append(called)
    return DryRun(there_already=tuple(there), runtime_missing=tuple(waiting))

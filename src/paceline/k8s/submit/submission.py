"""Submission of a job: everything is checked first, and created when nothing speaks against it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core import environ
from paceline.core.clock import unix_now_s
from paceline.core.errors import ConfigError, ExitCode, ManifestError, PacelineError, Problem
from paceline.k8s.client.connection import ClusterConnection, ClusterTarget
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.diagnose.snapshot import Object, name_of
from paceline.k8s.objects import mapping
from paceline.k8s.spec.job import Profile
from paceline.k8s.submit.capacity import CapacityRow, format_table
from paceline.k8s.submit.job_state import NO_CHECKPOINT_VOLUME, JobAnnotations, manifests_keep_checkpoints
from paceline.k8s.submit.manifests import read_text
from paceline.k8s.submit.requirements import job_in, prerequisites
from paceline.k8s.validate.manifest import read_documents
from paceline.k8s.validate.offline import validate

if TYPE_CHECKING:
    from paceline.k8s.client.hyp import HypSubmitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    name: str
    kind: str
    namespace: str
    made: tuple[str, ...]  # companions of the job
    rows: tuple[CapacityRow, ...]
    notes: tuple[str, ...]


class NoRoomError(PacelineError):
    """The cluster lacks the capacity to ever run the job; its exit code is that of wrong settings."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E602"


class RightsError(ConfigError):
    """Something is missing in the cluster, or a right in it."""

    exit_code = ExitCode.NOT_READY
    code = "E603"


def submit(
    cluster: ClusterConnection,
    manifests: list[Object],
    policy: RetryPolicy,
    *,
    fits: bool = True,
    through: "HypSubmitter | None" = None,
) -> Submitted:
    """Raises NoRoomError, RightsError, ConfigError, ApiError; then nothing is left in the cluster."""
    from paceline.k8s.submit.job_objects import companion_references, create_job, in_namespace
    from paceline.k8s.submit.preflight import preflight

    job_manifest = job_in(manifests)
    if job_manifest is None:
        hint = "submit one job and the objects it needs; paceline job render writes such a file"
        raise ManifestError([Problem("the manifests do not contain exactly one job", hint, "FILE")])
    all_of_it = in_namespace(manifests, cluster.namespace)
    if through is not None:
        all_of_it = through.prepared(all_of_it)
    job = next(manifest for manifest in all_of_it if manifest["kind"] == job_manifest["kind"])
    companions = [manifest for manifest in all_of_it if manifest is not job]
    done = preflight(cluster.api, companions, job, cluster.namespace, fits=fits)
    if done.problems:
        raise RightsError(done.problems)
    if not done.is_fine:
        _refuse(done.rows)
    keeps = manifests_keep_checkpoints(all_of_it)
    notes = list(done.notes)
    if not keeps and (policy.infra or policy.app):
        notes.append(NO_CHECKPOINT_VOLUME)
    beside_it = companion_references(done.to_make)
    mark = JobAnnotations(manifest=job, sent_s=unix_now_s(), policy=policy, beside=beside_it, keeps=keeps)
    create_job(cluster.api, done.to_make, job, mark, None if through is None else through.create)
    return Submitted(
        name=name_of(job),
        kind=str(job["kind"]),
        namespace=cluster.namespace,
        made=tuple(f"{manifest['kind']}/{name_of(manifest)}" for manifest in done.to_make),
        rows=tuple(done.rows),
        notes=(*notes, *(() if through is None else through.notes)),
    )


def _refuse(rows: list[CapacityRow]) -> None:
    listed = "\n".join(f"  {line}" for line in format_table(rows))
    short = [row for row in rows if not row.is_enough]
    message = f"the job cannot run here: {short[0].what} ({short[0].where}) needs {short[0].needs}"
    hint = "request less or other nodes, or ask for a larger quota; submit anyway with --skip-fit"
    if any(row.where.startswith("quota") for row in short):
        hint = "request less, wait for other jobs, or ask for a larger quota"
    raise NoRoomError(f"{message}, has {short[0].has}; nothing was created\n{listed}", hint)


def read_manifests(path: Path, profile: Profile) -> list[Object]:
    """Manifests of a file or stdin (-), checked like `job validate`. Raises ConfigError, PacelineError."""
    text = read_text(path)
    checked = validate(text, str(path), profile)
    if checked.problems:
        raise ManifestError(checked.problems)
    documents, _ = read_documents(text, str(path))
    return [mapping(document.value) for document in documents]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Objects without a dry run, as kind/name."""

    there_already: tuple[str, ...] = ()
    runtime_missing: tuple[str, ...] = ()  # TrainJobs whose runtime is in the same files, and not created


def dry_run(cluster: ClusterConnection, manifests: list[Object]) -> DryRun:
    """Server-side dry run of the manifests. Raises ApiError, ConfigError."""
    from paceline.k8s.client.api import ConflictError
    from paceline.k8s.submit.job_objects import in_namespace, object_exists
    from paceline.k8s.submit.preflight import trainer_version_mismatch

    wrong = trainer_version_mismatch(cluster.api, manifests)
    if wrong is not None:
        raise ManifestError([wrong])
    existing: list[str] = []
    waiting: list[str] = []
    placed = in_namespace(manifests, cluster.namespace)
    for manifest in placed:
        called = f"{manifest['kind']}/{name_of(manifest)}"
        if any(not object_exists(cluster.api, its) for its in prerequisites(manifest, placed)):
            waiting.append(called)
            continue
        try:
            cluster.api.create(manifest, dry_run=True)
        except ConflictError:
            existing.append(called)
    return DryRun(there_already=tuple(existing), runtime_missing=tuple(waiting))


@dataclass(frozen=True, slots=True)
class Watcher:
    pid: int
    log: Path


def start_watcher(target: ClusterTarget, namespace: str, name: str) -> Watcher:
    """Start a process that follows the job to its end, independent of the terminal."""
    folder = environ.state_folder() / "jobs" / namespace
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "paceline", "job", "attach", name, "--for", "0"]
    placed = ClusterTarget(kubeconfig=target.kubeconfig, context=target.context, namespace=namespace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*command, *placed.argv()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environ.for_child(),
                start_new_session=True,  # closing the terminal does not end it
            )
    except OSError as error:
        hint = f"the job continues; watch it with: paceline job attach {name} -n {namespace} --for 0"
        raise PacelineError(f"no watcher could be started: {error}", hint) from error
    process.returncode = 0  # it outlives this process on purpose: no wait, no ResourceWarning
    return Watcher(process.pid, log)

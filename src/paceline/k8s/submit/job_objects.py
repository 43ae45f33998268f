"""The objects of a job in a cluster: found, created and removed together."""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from paceline.core.clock import SystemClock
from paceline.core.errors import ManifestError, PacelineError, Problem
from paceline.k8s.client.api import (
    Api,
    ApiError,
    ConflictError,
    ForbiddenError,
    Manifest,
    NotThereError,
    RefusedError,
    UnreachableError,
)
from paceline.k8s.diagnose.snapshot import Object, name_of
from paceline.k8s.kinds import JOB, JOB_KINDS, JOB_SET, KINDS, POD, Kind, kind_of
from paceline.k8s.objects import is_part_of, mapping
from paceline.k8s.submit.job_state import RUN_LABEL, JobAnnotations, annotate
from paceline.k8s.submit.requirements import prerequisites

Answer = TypeVar("Answer")
Send = Callable[[Manifest], None]
# They hold data that outlives a job.
_STAYS = ("PersistentVolumeClaim",)
# Objects that an operator names like the job: a remaining old one would be taken for the new job's.
_CACHE_TRIES = 10
_CACHE_S = 0.5
_MADE_OF = {"TrainJob": (JOB_SET,), "RayJob": (JOB,)}


def find_job(api: Api, name: str, namespace: str) -> tuple[Kind, Manifest] | None:
    """A job of any kind; one that paceline submitted precedes others of that name. Raises
    ForbiddenError if no kind of job may be listed."""
    jobs: list[tuple[Kind, Manifest]] = []
    refused: list[ForbiddenError] = []
    for kind in JOB_KINDS:
        try:
            jobs.append((kind, {"kind": kind.name, **api.get(kind, name, namespace)}))
        except NotThereError:  # or not installed
            continue
        except ForbiddenError as error:
            refused.append(error)
    _require_visible(refused)
    jobs.sort(key=lambda pair: RUN_LABEL not in mapping(pair[1], "metadata", "labels"))
    return jobs[0] if jobs else None


def list_labelled_jobs(api: Api, namespace: str | None) -> list[tuple[Kind, Manifest]]:
    """Without a namespace: of all namespaces. Raises ForbiddenError if no kind of job may be listed."""
    jobs: list[tuple[Kind, Manifest]] = []
    refused: list[ForbiddenError] = []
    for kind in JOB_KINDS:
        try:
            marked_ones = api.find(kind, namespace, labels=RUN_LABEL).items
        except NotThereError:
            continue
        except ForbiddenError as error:
            refused.append(error)
            continue
        # KubeRay copies a RayJob's labels to the RayCluster that it makes.
        jobs += [(kind, obj) for obj in marked_ones if not mapping(obj, "metadata").get("ownerReferences")]
    _require_visible(refused)
    return jobs


def _require_visible(refused: Sequence[ForbiddenError]) -> None:
    """The errors are in the order of JOB_KINDS. The right to list one kind is enough."""
    if len(refused) == len(JOB_KINDS):
        kinds = ", ".join(kind.resource for kind in JOB_KINDS)
        message = f"no kind of job can be listed ({kinds}): {refused[-1].what}"
        raise ForbiddenError(message, refused[-1].hint, status=403, answer=refused[-1].answer)


def in_namespace(manifests: Sequence[Object], namespace: str) -> list[Manifest]:
    """Each with a namespace. Raises ConfigError for one of another, or of an unknown kind."""
    placed: list[Manifest] = []
    problems: list[Problem] = []
    for manifest in manifests:
        called = f"{manifest.get('kind')}/{name_of(manifest)}"
        given = mapping(manifest, "metadata").get("namespace", namespace)
        if given != namespace:
            hint = f"use --namespace {given}, or remove the namespace from the manifest"
            problems.append(
                Problem(f"{called} is for namespace {given}, not {namespace}", hint, "--namespace")
            )
        try:
            kind = kind_of(dict(manifest))
        except KeyError:
            hint = "send it by kubectl apply, and the job without it"
            problems.append(
                Problem(f"{called} ({manifest.get('apiVersion')}) is of an unsupported kind", hint)
            )
            continue
        where = {"namespace": namespace} if kind.is_namespaced else {}
        placed.append(cast("Manifest", {**manifest, "metadata": {**mapping(manifest, "metadata"), **where}}))
    if problems:
        raise ManifestError(problems)
    return placed


def existing_companions(api: Api, companions: Sequence[Manifest]) -> list[Manifest]:
    """Companions that exist already. Raises ConflictError for one that exists and differs."""
    same: list[Manifest] = []
    for companion in companions:
        kind = kind_of(dict(companion))
        name = name_of(companion)
        try:
            existing = api.get(kind, name, _namespace(companion))
        except NotThereError:
            continue
        if not all(
            is_part_of(companion[part], existing.get(part))
            for part in ("spec", "data", "rules")
            if part in companion
        ):
            message = f"{kind.name} {name} exists already, with other content"
            raise ConflictError(message, "choose another --name, or delete the existing object", status=409)
        same.append(companion)
    return same


def create_job(
    api: Api, companions: Sequence[Manifest], job: Manifest, mark: JobAnnotations, send: Send | None = None
) -> Manifest:
    """Create the companions, then the job. On an error, those already created are removed. `send` creates
    the job, if another client does."""
    annotated = cast("Manifest", annotate(job, mark))
    created: list[Manifest] = []
    try:
        for companion in companions:
            created.append(companion)
            api.create(companion)
        created.append(annotated)
        return _created(api, annotated, companions) if send is None else _send_and_get(api, annotated, send)
    except BaseException as error:
        if isinstance(error, PacelineError) and not isinstance(error, UnreachableError):
            created.pop()  # it was refused; without a response, and after Ctrl-C, it may exist
        _take_back(api, created, error)
        raise


def _created(api: Api, manifest: Manifest, companions: Sequence[Manifest]) -> Manifest:
    """A webhook reads through a cache: an object made a moment ago may not be in it yet."""
    tries = _CACHE_TRIES if prerequisites(manifest, companions) else 1
    for _ in range(tries - 1):
        try:
            return api.create(manifest)
        except RefusedError as error:
            if "not found" not in error.what:
                raise
            SystemClock().sleep(_CACHE_S)
    return api.create(manifest)


def _take_back(api: Api, created: Sequence[Manifest], error: BaseException) -> None:
    """Raises PacelineError naming what is left, where the server does not let it go."""
    left: list[str] = []
    for obj in reversed(created):
        try:
            api.delete(kind_of(dict(obj)), name_of(obj), _namespace(obj))
        except ApiError:
            left.append(f"{str(obj['kind']).lower()}/{name_of(obj)}")
    if left:
        message = (
            f"{error or 'it was stopped'}; these objects may exist and could not be removed: "
            f"{', '.join(left)}"
        )
        where = f" -n {_namespace(created[0])}" if _namespace(created[0]) else ""
        raise PacelineError(message, f"kubectl delete{where} --ignore-not-found {' '.join(left)}") from error


def _send_and_get(api: Api, manifest: Manifest, send: Send) -> Manifest:
    where = (kind_of(dict(manifest)), name_of(manifest), _namespace(manifest))
    try:
        send(manifest)
    except PacelineError:
        if not _is_there(api, *where):
            raise
    return api.get(*where)  # it exists, even if the response was an error


def reference(obj: Object) -> str:
    return f"{obj.get('apiVersion')} {obj.get('kind')} {name_of(obj)}"


def companion_references(companions: Sequence[Manifest]) -> tuple[str, ...]:
    """Objects that were created with a job and are removed with it."""
    return tuple(reference(companion) for companion in companions if companion.get("kind") not in _STAYS)


def remove_job(
    api: Api, kind: Kind, name: str, namespace: str, mark: JobAnnotations | None, *, version: str = ""
) -> list[str]:
    """The job, and what was made with it but volumes. What may not be removed keeps nothing else there.
    Raises ForbiddenError that names what is left; with a version, ConflictError where the job has changed."""
    api.delete(kind, name, namespace, version=version)
    gone = [f"{kind.name}/{name}"]
    left: list[str] = []
    for companion in mark.beside if mark is not None else ():
        version, its_kind, its_name = companion.split(" ")
        its = next(k for k in KINDS if (k.api_version, k.name) == (version, its_kind))
        try:
            api.delete(its, its_name, namespace if its.is_namespaced else None)
            gone.append(f"{its_kind}/{its_name}")
        except ForbiddenError:
            left.append(f"{its_kind}/{its_name}")
    if left:
        message = f"{', '.join(gone)} is removed; no permission to remove {', '.join(left)}"
        raise ForbiddenError(
            message, f"have it removed: kubectl -n {namespace} delete {' '.join(left)}", status=403
        )
    return gone


def recreate(
    api: Api,
    kind: Kind,
    name: str,
    namespace: str,
    manifest: Object,
    *,
    pods: Sequence[str],
    wait: Callable[[], None],
    free: Callable[[Manifest], None],
    is_wanted: Callable[[], bool],
) -> bool:
    """Creates the next attempt of a deleted job, as soon as the old `pods` are deleted, because the new ones
    have the same names, and so are the objects that its operator made under its name.

    `free` is called with each remaining pod. `wait` returns after a moment, or raises after the time limit.
    Requests are retried while the server does not respond. `is_wanted` is called before the creation: False
    if the attempt is no longer needed.
    """
    made_of = [(kind, name), *((its, name) for its in _MADE_OF.get(kind.name, ()))]

    def is_left() -> bool:
        left = [pod for pod in (_get_or_none(api, POD, pod, namespace) for pod in pods) if pod is not None]
        for pod in left:
            free(pod)
        return bool(left) or any(_is_there(api, its, name, namespace) for its, name in made_of)

    while retry_until_answered(is_left, wait):
        wait()
    if not retry_until_answered(is_wanted, wait):
        return False
    try:
        retry_until_answered(lambda: api.create(cast("Manifest", dict(manifest))), wait)
    except ConflictError:  # made by a call whose answer was lost
        return True
    return True


def retry_until_answered(ask: Callable[[], Answer], wait: Callable[[], None]) -> Answer:
    while True:
        try:
            return ask()
        except UnreachableError:
            wait()


def object_exists(api: Api, manifest: Object) -> bool:
    return _is_there(api, kind_of(dict(manifest)), name_of(manifest), _namespace(manifest))


def _is_there(api: Api, kind: Kind, name: str, namespace: str | None) -> bool:
    return _get_or_none(api, kind, name, namespace) is not None


def _get_or_none(api: Api, kind: Kind, name: str, namespace: str | None) -> Manifest | None:
    try:
        return api.get(kind, name, namespace)
    except (NotThereError, ForbiddenError):
        return None


def _namespace(obj: Object) -> str | None:
    namespace = mapping(obj, "metadata").get("namespace")
    return None if namespace is None else str(namespace)

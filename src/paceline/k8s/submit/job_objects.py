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
# What an operator calls like the job: an old one that is still there would be taken for the new job's.
_CACHE_TRIES, _CACHE_S = 10, 0.5
_MADE_OF = {"TrainJob": (JOB_SET,), "RayJob": (JOB,)}


def find_job(api: Api, name: str, namespace: str) -> tuple[Kind, Manifest] | None:
    """Of whichever kind; one that we have sent comes before others of that name. Raises ForbiddenError where
    no kind of job may be seen: then nobody knows."""
    found: list[tuple[Kind, Manifest]] = []
    refused: list[ForbiddenError] = []
    for kind in JOB_KINDS:
        try:
            found.append((kind, {"kind": kind.name, **api.get(kind, name, namespace)}))
        except NotThereError:  # or not installed
            continue
        except ForbiddenError as error:
            refused.append(error)
    _see_some(refused)
    found.sort(key=lambda pair: RUN_LABEL not in mapping(pair[1], "metadata", "labels"))
    return found[0] if found else None


def list_labelled_jobs(api: Api, namespace: str | None) -> list[tuple[Kind, Manifest]]:
    """Without a namespace: of all. Raises ForbiddenError where no kind of job may be seen."""
    found: list[tuple[Kind, Manifest]] = []
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
        found += [(kind, one) for one in marked_ones if not mapping(one, "metadata").get("ownerReferences")]
    _see_some(refused)
    return found


def _see_some(refused: Sequence[ForbiddenError]) -> None:
    """The errors are in the order of JOB_KINDS. The right to see one kind is enough."""
    if len(refused) == len(JOB_KINDS):
        kinds = ", ".join(kind.resource for kind in JOB_KINDS)
        what = f"no kind of job may be seen ({kinds}): {refused[-1].what}"
        raise ForbiddenError(what, refused[-1].hint, status=403, answer=refused[-1].answer)


def in_namespace(manifests: Sequence[Object], namespace: str) -> list[Manifest]:
    """Each with a namespace. Raises ConfigError for one of another, or of a kind that nobody knows."""
    made: list[Manifest] = []
    problems: list[Problem] = []
    for one in manifests:
        called = f"{one.get('kind')}/{name_of(one)}"
        said = mapping(one, "metadata").get("namespace", namespace)
        if said != namespace:
            hint = f"say --namespace {said}, or take the namespace out of the manifest"
            problems.append(
                Problem(f"{called} is for namespace {said}, not {namespace}", hint, "--namespace")
            )
        try:
            kind = kind_of(dict(one))
        except KeyError:
            hint = "send it by kubectl apply, and the job without it"
            problems.append(Problem(f"{called} ({one.get('apiVersion')}) is of a kind not sent here", hint))
            continue
        where = {"namespace": namespace} if kind.is_namespaced else {}
        made.append(cast("Manifest", {**one, "metadata": {**mapping(one, "metadata"), **where}}))
    if problems:
        raise ManifestError(problems)
    return made


def existing_companions(api: Api, beside: Sequence[Manifest]) -> list[Manifest]:
    """Those that need not be made. Raises ConflictError for one that is there and is different."""
    same: list[Manifest] = []
    for one in beside:
        kind, name = kind_of(dict(one)), name_of(one)
        try:
            found = api.get(kind, name, _namespace(one))
        except NotThereError:
            continue
        if not all(
            is_part_of(one[part], found.get(part)) for part in ("spec", "data", "rules") if part in one
        ):
            what = f"{kind.name} {name} is there already, and says something else"
            raise ConflictError(what, "choose another --name, or remove what is there", status=409)
        same.append(one)
    return same


def create_job(
    api: Api, beside: Sequence[Manifest], job: Manifest, mark: JobAnnotations, send: Send | None = None
) -> Manifest:
    """What it needs first. If one cannot be made, those before it are taken back. `send` makes the job, if
    it is not we who do."""
    wanted = cast("Manifest", annotate(job, mark))
    made: list[Manifest] = []
    try:
        for one in beside:
            made.append(one)
            api.create(one)
        made.append(wanted)
        return _created(api, wanted, beside) if send is None else _sent(api, wanted, send)
    except BaseException as error:
        if isinstance(error, PacelineError) and not isinstance(error, UnreachableError):
            made.pop()  # it was refused; where no answer came, and after Ctrl-C, it may be there
        _take_back(api, made, error)
        raise


def _created(api: Api, wanted: Manifest, beside: Sequence[Manifest]) -> Manifest:
    """A webhook reads through a cache: an object made a moment ago may not be in it yet."""
    tries = _CACHE_TRIES if prerequisites(wanted, beside) else 1
    for _ in range(tries - 1):
        try:
            return api.create(wanted)
        except RefusedError as error:
            if "not found" not in error.what:
                raise
            SystemClock().sleep(_CACHE_S)
    return api.create(wanted)


def _take_back(api: Api, made: Sequence[Manifest], error: BaseException) -> None:
    """Raises PacelineError naming what is left, where the server does not let it go."""
    left: list[str] = []
    for one in reversed(made):
        try:
            api.delete(kind_of(dict(one)), name_of(one), _namespace(one))
        except ApiError:
            left.append(f"{str(one['kind']).lower()}/{name_of(one)}")
    if left:
        what = (
            f"{error or 'it was stopped'}; what may have been made could not be taken back: {', '.join(left)}"
        )
        where = f" -n {_namespace(made[0])}" if _namespace(made[0]) else ""
        raise PacelineError(what, f"kubectl delete{where} --ignore-not-found {' '.join(left)}") from error


def _sent(api: Api, wanted: Manifest, send: Send) -> Manifest:
    where = (kind_of(dict(wanted)), name_of(wanted), _namespace(wanted))
    try:
        send(wanted)
    except PacelineError:
        if not _is_there(api, *where):
            raise
    return api.get(*where)  # it is there, whatever was said about it


def reference(one: Object) -> str:
    return f"{one.get('apiVersion')} {one.get('kind')} {name_of(one)}"


def companion_references(beside: Sequence[Manifest]) -> tuple[str, ...]:
    """What was made with a job and is removed with it."""
    return tuple(reference(one) for one in beside if one.get("kind") not in _STAYS)


def remove_job(
    api: Api, kind: Kind, name: str, namespace: str, mark: JobAnnotations | None, *, version: str = ""
) -> list[str]:
    """The job, and what was made with it but volumes. What may not be removed keeps nothing else there.
    Raises ForbiddenError that names what is left; with a version, ConflictError where the job has changed."""
    api.delete(kind, name, namespace, version=version)
    gone = [f"{kind.name}/{name}"]
    left: list[str] = []
    for said in mark.beside if mark is not None else ():
        version, its_kind, its_name = said.split(" ")
        its = next(k for k in KINDS if (k.api_version, k.name) == (version, its_kind))
        try:
            api.delete(its, its_name, namespace if its.is_namespaced else None)
            gone.append(f"{its_kind}/{its_name}")
        except ForbiddenError:
            left.append(f"{its_kind}/{its_name}")
    if left:
        what = f"{', '.join(gone)} is removed; you may not remove {', '.join(left)}"
        raise ForbiddenError(
            what, f"have it removed: kubectl -n {namespace} delete {' '.join(left)}", status=403
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
    """Creates the next attempt of a job that was deleted, as soon as the old `pods` are gone, because the new
    ones have their names, and what its operator has made of it under its own name.

    `free` is called with each pod that is still there. `wait` returns after a moment, or raises when it has
    been long enough. A server that does not answer is asked again. `is_wanted` is asked before it is created:
    False when it is not any more.
    """
    made_of = [(kind, name), *((its, name) for its in _MADE_OF.get(kind.name, ()))]

    def is_left() -> bool:
        left = [pod for pod in (_found(api, POD, one, namespace) for one in pods) if pod is not None]
        for pod in left:
            free(pod)
        return bool(left) or any(_is_there(api, its, one, namespace) for its, one in made_of)

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
    return _found(api, kind, name, namespace) is not None


def _found(api: Api, kind: Kind, name: str, namespace: str | None) -> Manifest | None:
    try:
        return api.get(kind, name, namespace)
    except (NotThereError, ForbiddenError):
        return None


def _namespace(one: Object) -> str | None:
    said = mapping(one, "metadata").get("namespace")
    return None if said is None else str(said)

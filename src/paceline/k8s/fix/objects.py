"""Creation and removal of single objects that leaves the objects of others alone.

What we make carries an annotation with the id of the fix: only what carries it is ever removed by `undo`.
"""

from paceline.k8s.client.api import Api, ConflictError, ForbiddenError, Manifest, NotThereError
from paceline.k8s.kinds import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
    kind_of,
)
from paceline.k8s.objects import mapping

FIX_LABEL = "paceline.dev/fix"
_IN_A_NAMESPACE = (POD, CLAIM, JOB, DEPLOYMENT, STATEFUL_SET, SERVICE, SECRET, CONFIG_MAP)
_OF_KUBERNETES = ("kube-root-ca.crt", "istio-ca-root-cert")  # in every namespace, from its first second


def find_object(api: Api, manifest: Manifest) -> Manifest | None:
    kind, name, space = _place(manifest)
    try:
        return api.get(kind, name, space)
    except NotThereError:
        return None


def object_exists(api: Api, manifest: Manifest) -> bool:
    """Also for who may create such an object, and not look at it: Secrets are often so."""
    try:
        return find_object(api, manifest) is not None
    except ForbiddenError:
        try:
            api.create(manifest, dry_run=True)
        except ConflictError:
            return True
        except NotThereError:  # nor is its namespace
            return False
        return False


def with_fix_label(manifest: Manifest, fix: str) -> Manifest:
    about = dict(mapping(manifest, "metadata"))
    about["annotations"] = {**mapping(manifest, "metadata", "annotations"), FIX_LABEL: fix}
    return {**manifest, "metadata": about}  # type: ignore[dict-item]  # metadata of JSON is JSON


def reason_to_keep(api: Api, kind: Kind, made: Manifest, fix: str) -> str:
    """Why undo does not remove it; empty: it may."""
    about = mapping(made, "metadata")
    if mapping(made, "metadata", "annotations").get(FIX_LABEL) != fix:
        return f"{kind.name} {about.get('name')} is not the one that this fix made"
    if kind == CLAIM and mapping(made, "status").get("phase") == "Bound":
        return f"claim {about.get('name')} has a volume, and what is on it would be lost"
    if kind == NAMESPACE:
        try:
            inside = [f"{one.name} {name}" for one in _IN_A_NAMESPACE for name in _names(api, one, about)]
        except ForbiddenError:
            return f"not everything in namespace {about.get('name')} may be seen, so it may be in use"
        if inside:
            return f"namespace {about.get('name')} is not empty: {', '.join(inside[:3])}"
    return ""


def remove_pod(api: Api, manifest: Manifest) -> None:
    _kind, name, space = _place(manifest)
    api.delete(POD, name, space)


def _names(api: Api, kind: Kind, about: object) -> list[str]:
    all_of_them = [mapping(one, "metadata") for one in api.find(kind, _text(about, "name")).items]
    staying = [str(one.get("name")) for one in all_of_them if "deletionTimestamp" not in one]
    return [name for name in staying if name not in _OF_KUBERNETES]


def _place(manifest: Manifest) -> tuple[Kind, str, str | None]:
    kind = kind_of(dict(manifest))
    about = mapping(manifest, "metadata")
    space = _text(about, "namespace") or "default"
    return kind, _text(about, "name"), space if kind.is_namespaced else None


def _text(about: object, name: str) -> str:
    return str(mapping(about).get(name, ""))

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
    kind, name, space = _location(manifest)
    try:
        return api.get(kind, name, space)
    except NotThereError:
        return None


def object_exists(api: Api, manifest: Manifest) -> bool:
    """Also works with the right to create such an object but not to read it, as is common for Secrets."""
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
    metadata = dict(mapping(manifest, "metadata"))
    metadata["annotations"] = {**mapping(manifest, "metadata", "annotations"), FIX_LABEL: fix}
    return {**manifest, "metadata": metadata}  # type: ignore[dict-item]  # metadata of JSON is JSON


def reason_to_keep(api: Api, kind: Kind, created: Manifest, fix: str) -> str:
    """Why undo does not remove it; empty: it may."""
    metadata = mapping(created, "metadata")
    if mapping(created, "metadata", "annotations").get(FIX_LABEL) != fix:
        return f"{kind.name} {metadata.get('name')} is not the one that this fix created"
    if kind == CLAIM and mapping(created, "status").get("phase") == "Bound":
        return f"claim {metadata.get('name')} has a volume, whose data would be lost"
    if kind == NAMESPACE:
        try:
            inside = [
                f"{inner_kind.name} {name}"
                for inner_kind in _IN_A_NAMESPACE
                for name in _names(api, inner_kind, metadata)
            ]
        except ForbiddenError:
            return f"namespace {metadata.get('name')} cannot be read completely, so it may be in use"
        if inside:
            return f"namespace {metadata.get('name')} is not empty: {', '.join(inside[:3])}"
    return ""


def remove_pod(api: Api, manifest: Manifest) -> None:
    _kind, name, space = _location(manifest)
    api.delete(POD, name, space)


def _names(api: Api, kind: Kind, metadata: object) -> list[str]:
    all_of_them = [mapping(obj, "metadata") for obj in api.find(kind, _text(metadata, "name")).items]
    staying = [str(obj.get("name")) for obj in all_of_them if "deletionTimestamp" not in obj]
    return [name for name in staying if name not in _OF_KUBERNETES]


def _location(manifest: Manifest) -> tuple[Kind, str, str | None]:
    kind = kind_of(dict(manifest))
    metadata = mapping(manifest, "metadata")
    space = _text(metadata, "namespace") or "default"
    return kind, _text(metadata, "name"), space if kind.is_namespaced else None


def _text(metadata: object, name: str) -> str:
    return str(mapping(metadata).get(name, ""))

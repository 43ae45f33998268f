"""Patches of rendered manifests: strategic merge patches, and JSON patches (RFC 6902).

A patch names what it changes: an object of the job by kind (and name), every pod of the job with `kind: Pod`,
or, without a kind, the job itself. A patch that does not apply is refused with its line, and so is one that
changes the identity of an object. Whether the result is valid is checked afterwards, as for every manifest.

Merge keys of lists are those of Kubernetes; lists without a key, such as tolerations, are replaced. See
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.errors import ManifestError, Problem
from paceline.k8s.kinds import JOB_KINDS
from paceline.k8s.objects import mapping
from paceline.k8s.render.json_patch import PatchFailure, apply_operations
from paceline.k8s.render.pod import Object
from paceline.k8s.validate.kinds import KIND_RULES
from paceline.k8s.validate.manifest import Document, read_documents

POD = "Pod"
_JOBS = frozenset(kind.name for kind in JOB_KINDS)
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
    # Of custom kinds, whose lists Kubernetes itself would replace.
    "workerGroupSpecs": "groupName",
    "replicatedJobs": "name",
    "replicaSpecs": "name",
    "runtimePatches": "manager",
}
_DIRECTIVE = "$patch"
_OWN_LABELS = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by")
Values = dict[str, Any]  # Any: JSON, of which single fields are changed
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Selector:
    """What a patch changes."""

    kind: str | None = None  # None: the job itself
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.kind or 'the job'}{'' if self.name is None else f'/{self.name}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    selector: Selector
    document: Document
    file: str
    merged: Mapping[str, object] = field(default_factory=dict)  # of a strategic merge patch
    operations: Sequence[object] = ()  # of a JSON patch
    start: Path = ()  # where the operations are in the document

    def where(self, path: Path = ()) -> str:
        return f"{self.file}:{self.document.line((*self.start, *path))}"


def read_patches(text: str, file: str) -> list[Patch]:
    """The documents of a file in YAML or JSON. Raises ManifestError with every problem."""
    documents, problems = read_documents(text, file)
    patches: list[Patch] = []
    for document in documents:
        read = _read(document, file)
        if isinstance(read, Patch):
            patches.append(read)
        else:
            problems.append(read)
    if problems:
        raise ManifestError(problems)
    return patches


def _read(document: Document, file: str) -> Patch | Problem:
    value = document.value
    where = f"{file}:{document.line(())}"
    if isinstance(value, list):
        return Patch(selector=Selector(), document=document, file=file, operations=value)
    if not isinstance(value, dict) or not value:
        hint = "write fields of a manifest (kind, metadata, spec), or a list of JSON patch operations"
        return Problem("a patch must be a mapping or a list", hint, where)
    if set(value) == {"target", "patch"} and isinstance(value["patch"], list):
        target = mapping(value, "target")
        selector = Selector(_text(target.get("kind")), _text(target.get("name")))
        return Patch(
            selector=selector, document=document, file=file, operations=value["patch"], start=("patch",)
        )
    metadata = {key: inner for key, inner in mapping(value, "metadata").items() if key != "name"}
    selector = Selector(_text(value.get("kind")), _text(mapping(value, "metadata").get("name")))
    merged = {key: inner for key, inner in value.items() if key not in ("apiVersion", "kind", "metadata")}
    merged |= {"metadata": metadata} if metadata else {}
    return Patch(selector=selector, document=document, file=file, merged=merged)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def job_among(objects: Sequence[Object]) -> Object:
    """The object that stands for the whole job, among its companions."""
    (job,) = (item for item in objects if item["kind"] in _JOBS)
    return job


def apply_patches(objects: Sequence[Object], patches: Sequence[Patch]) -> list[Object]:
    """Patched copies of the objects. Raises ManifestError."""
    made = copy.deepcopy(list(objects))
    for patch in patches:
        places = list(_places(made, patch.selector))
        if not places:
            names = ", ".join(f"{item['kind']}/{_name(item)}" for item in made)
            message = f"the patch is for {patch.selector}, but the job has no such object"
            raise ManifestError([Problem(message, f"name {POD}, or one of {names}", patch.where())])
        for place in places:
            try:
                _apply(place, patch)
            except PatchFailure as failure:
                raise ManifestError(
                    [Problem(failure.what, failure.hint, patch.where(failure.path))]
                ) from None
        problems = [
            problem for old, new in zip(objects, made, strict=True) for problem in _identity(old, new, patch)
        ]
        if problems:
            raise ManifestError(problems)
    return made


def _name(item: Mapping[str, object]) -> object:
    return mapping(item, "metadata").get("name")


def _places(objects: Sequence[Object], selector: Selector) -> Iterator[Values]:
    """What the patch changes: objects, or templates of pods."""
    if selector.kind is None:
        yield job_among(objects)
        return
    if selector.kind == POD and selector.name is None:
        for item in objects:
            yield from _pod_templates(item)
        return
    for item in objects:
        if item["kind"] == selector.kind and selector.name in (None, _name(item)):
            yield item


def _pod_templates(item: Object) -> Iterator[Values]:
    """Those that run the job's program: not of the pod that only submits it to Ray."""
    rules = KIND_RULES[(str(item["apiVersion"]), str(item["kind"]))]
    for finder in (rules.pods, rules.patches):
        if finder is None:
            continue
        for _, path in finder(mapping(item, "spec"), ("spec",)):
            if "submitterPodTemplate" not in path:
                template: Any = item
                for step in path[:-1]:
                    template = template[step]
                yield template


def _apply(place: Values, patch: Patch) -> None:
    if patch.operations:
        apply_operations(place, patch.operations)
    else:
        _merge(place, patch.merged, ())


def _merge(into: Values, changes: Mapping[str, object], path: Path) -> None:
    for key, change in changes.items():
        where = (*path, key)
        if key.startswith("$"):
            message = f"the directive {key} is not supported"
            raise PatchFailure(message, f"use {_DIRECTIVE}: delete or replace, or a JSON patch", where)
        if change is None:
            if key not in into:
                raise PatchFailure(
                    f"there is no field {key} to remove", "correct its name, or leave it out", where
                )
            del into[key]
        elif isinstance(change, Mapping):
            _merge_mapping(into, key, change, where)
        elif isinstance(change, list):
            into[key] = _merge_list(into.get(key), change, _MERGE_KEYS.get(key), where)
        else:
            into[key] = change


def _merge_mapping(into: Values, key: str, change: Mapping[str, object], path: Path) -> None:
    directive = change.get(_DIRECTIVE)
    rest = {name: inner for name, inner in change.items() if name != _DIRECTIVE}
    if directive == "delete":
        _merge(into, {key: None}, path[:-1])
        return
    if directive not in (None, "replace", "merge"):
        raise PatchFailure(f"{_DIRECTIVE} is {directive!r}", "write delete or replace", (*path, _DIRECTIVE))
    if directive == "replace" or not isinstance(into.get(key), dict):
        into[key] = {}
    _merge(into[key], rest, path)


def _merge_list(old: object, changes: list[Any], merge_key: str | None, path: Path) -> list[Any]:
    """Items with the same key are merged, others are appended."""
    items: list[Any] = list(old) if isinstance(old, list) else []
    replaces = [change for change in changes if change == {_DIRECTIVE: "replace"}]
    if merge_key is None or replaces:
        return [copy.deepcopy(change) for change in changes if change not in replaces]
    for number, change in enumerate(changes):
        where = (*path, number)
        if not isinstance(change, Mapping) or merge_key not in change:
            raise PatchFailure(
                f"the item has no {merge_key}, by which it is merged", f"add {merge_key}", where
            )
        found = [place for place, item in enumerate(items) if item.get(merge_key) == change[merge_key]]
        if change.get(_DIRECTIVE) == "delete":
            if not found:
                message = f"there is no item with {merge_key} {change[merge_key]!r} to remove"
                raise PatchFailure(message, f"correct its {merge_key}", where)
            del items[found[0]]
        elif found:
            _merge_item(items, found[0], change, where)
        else:
            items.append({})
            _merge_item(items, len(items) - 1, change, where)
    return items


def _merge_item(items: list[Any], place: int, change: Mapping[str, object], path: Path) -> None:
    holder: Values = {"item": items[place]}
    _merge_mapping(holder, "item", change, path)
    items[place] = holder["item"]


def _identity(old: Object, new: Object, patch: Patch) -> Iterator[Problem]:
    """By these fields the job is submitted, found and removed."""
    hint = "leave it out of the patch; the job is named by --name and --namespace"
    fields = [("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")]
    fields += [("metadata", "labels", label) for label in _OWN_LABELS]
    for path in fields:
        before = mapping(old, *path[:-1]).get(path[-1])
        if mapping(new, *path[:-1]).get(path[-1]) != before:
            yield Problem(f"a patch may not change {'.'.join(path)}", hint, patch.where())

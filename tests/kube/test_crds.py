"""Do our closed schemas agree with KubeRay's own? Where its files are: KUBERAY_CRDS names their folder."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from tests.fixtures.command import ROOT
from tests.kube.rendered import VARIANTS, objects

from paceline.kube import schema
from paceline.kube.schema_ray import RAYCLUSTER, RAYJOB

FOLDER = Path(os.environ.get("KUBERAY_CRDS", ROOT.parent / "shared" / "crds"))
FILES = {
    "RayCluster": ("kuberay-v1.7.0-rayclusters.json", RAYCLUSTER),
    "RayJob": ("kuberay-v1.7.0-rayjobs.json", RAYJOB),
}
pytestmark = pytest.mark.skipif(
    not (FOLDER / "kuberay-v1.7.0-rayjobs.json").exists(),
    reason=f"KubeRay's CRDs are not in {FOLDER}; our own schemas are checked all the same",
)


def crd(kind: str) -> dict[str, Any]:
    found = json.loads((FOLDER / FILES[kind][0]).read_text(encoding="utf-8"))["versions"]["v1"]
    assert isinstance(found, dict)
    return found


def closed(node: Any) -> Any:
    """The same schema, where a field that it does not name is an error."""
    if isinstance(node, dict):
        made = {name: closed(inner) for name, inner in node.items()}
        if "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
        return made
    return [closed(item) for item in node] if isinstance(node, list) else node


@pytest.mark.parametrize("name", VARIANTS)
def test_kuberays_own_schema_takes_what_we_render(name: str) -> None:
    for one in objects(name)[0]:
        if one["kind"] not in FILES:
            continue
        strict = closed(crd(one["kind"]))
        strict["properties"]["metadata"] = {"type": "object"}
        assert [error.message for error in Draft7Validator(strict).iter_errors(one)] == []


def differences(ours: schema.Schema, theirs: Any, path: str) -> Iterator[str]:
    match ours:
        case schema.Fields(of=fields):
            known = theirs.get("properties")
            if known is None:
                return  # metadata: only the API server knows its fields
            yield from (f"{path}.{name}: only ours" for name in fields.keys() - known.keys())
            yield from (f"{path}.{name}: only theirs" for name in known.keys() - fields.keys())
            for name in fields.keys() & known.keys():
                yield from differences(fields[name], known[name], f"{path}.{name}")
        case schema.ListOf(item=item):
            if theirs.get("type") != "array":
                yield f"{path}: not a list but {theirs.get('type')}"
            else:
                yield from differences(item, theirs["items"], f"{path}[]")
        case schema.MapOf():
            if theirs.get("type") != "object":
                yield f"{path}: not a mapping but {theirs.get('type')}"
        case schema.Text(choices=choices):
            if theirs.get("type") != "string":
                yield f"{path}: not text but {theirs.get('type')}"
            elif choices and "enum" in theirs and set(choices) != set(theirs["enum"]):
                yield f"{path}: {choices} is not {theirs['enum']}"
        case schema.Whole() | schema.YesNo():
            wanted = "integer" if isinstance(ours, schema.Whole) else "boolean"
            if theirs.get("type") != wanted:
                yield f"{path}: not {wanted} but {theirs.get('type')}"


@pytest.mark.parametrize("kind", FILES)
def test_our_schema_names_the_fields_that_kuberays_has_and_no_other(kind: str) -> None:
    found = [d for d in differences(FILES[kind][1], crd(kind), kind) if ".status" not in d]
    assert found == []

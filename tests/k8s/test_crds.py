"""The closed schemas agree with the operators' CRDs; KUBERAY_CRDS names the folder that holds them."""

import functools
import json
import os
import runpy
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from tests.fixtures.processes.command import ROOT
from tests.k8s import rendered, torch_rendered

from paceline.k8s.spec.job import Profile
from paceline.k8s.validate import schema
from paceline.k8s.validate.kinds import KIND_RULES

Objects = Callable[[str], tuple[list[dict[str, Any]], Profile]]
FOLDER = Path(os.environ.get("KUBERAY_CRDS", ROOT.parent / "shared" / "crds"))
FILES = {
    "RayCluster": "kuberay-v1.7.0-rayclusters.json",
    "RayJob": "kuberay-v1.7.0-rayjobs.json",
    "PyTorchJob": "training-operator-v1.9.4-pytorchjobs.json",
    "TrainJob": "trainer-v2.3.0-trainjobs.json",
    "TrainingRuntime": "trainer-v2.3.0-trainingruntimes.json",
}
MADE = [(rendered.objects, name) for name in rendered.VARIANTS]
MADE += [(torch_rendered.objects, name) for name in torch_rendered.VARIANTS]
pytestmark = pytest.mark.skipif(
    not all((FOLDER / name).exists() for name in FILES.values()),
    reason=f"the operators' CRDs are not in {FOLDER}; our own schemas are checked all the same",
)


@functools.cache
def crd(kind: str) -> dict[str, Any]:
    versions = json.loads((FOLDER / FILES[kind]).read_text(encoding="utf-8"))["versions"]
    result = versions["v1" if "v1" in versions else "v1alpha1"]
    assert isinstance(result, dict)
    return result


@functools.cache
def strict(kind: str) -> Draft7Validator:
    made = closed(crd(kind))
    made["properties"]["metadata"] = {"type": "object"}
    return Draft7Validator(made)


def closed(node: Any) -> Any:
    """The same schema, where a field that it does not name is an error."""
    if isinstance(node, dict):
        made = {name: closed(inner) for name, inner in node.items()}
        if "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
        return made
    return [closed(item) for item in node] if isinstance(node, list) else node


@pytest.mark.parametrize(("objects", "name"), MADE)
def test_the_operators_own_schemas_take_what_we_render(objects: Objects, name: str) -> None:
    for item in objects(name)[0]:
        if item["kind"] in FILES:
            assert [error.message for error in strict(item["kind"]).iter_errors(item)] == []


def differences(ours: schema.Schema, theirs: Any, path: str) -> Iterator[str]:
    match ours:
        case schema.ObjectOf(of=fields):
            known = theirs.get("properties")
            if known is None and isinstance(theirs.get("additionalProperties"), dict):
                known = dict.fromkeys(fields, theirs["additionalProperties"])  # replicas, by any name
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
        case schema.String(choices=choices):
            if theirs.get("type") != "string":
                yield f"{path}: not text but {theirs.get('type')}"
            elif choices and "enum" in theirs and set(choices) != set(theirs["enum"]):
                yield f"{path}: {choices} is not {theirs['enum']}"
        case schema.Integer() | schema.Boolean():
            requested = "integer" if isinstance(ours, schema.Integer) else "boolean"
            if theirs.get("type") != requested:
                yield f"{path}: not {requested} but {theirs.get('type')}"


def ours(kind: str) -> schema.ObjectOf:
    return next(rules.schema for (_, name), rules in KIND_RULES.items() if name == kind)


@pytest.mark.parametrize("kind", FILES)
def test_our_schemas_name_the_fields_that_theirs_have_and_no_other(kind: str) -> None:
    assert [d for d in differences(ours(kind), crd(kind), kind) if ".status" not in d] == []


def test_our_schemas_are_what_make_schemas_writes() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "make_schemas.py"))["made_schemas"]([FOLDER])
    assert set(made) == {f"{kind.lower()}.json" for kind in FILES}
    folder = files("paceline.k8s.validate") / "schemas"
    for name, text in made.items():
        assert (folder / name).read_text(encoding="utf-8") == text, "run `make schemas CRDS=FOLDER`"


def test_a_crd_as_a_cluster_gives_it_can_be_read_too(tmp_path: Path) -> None:
    written = json.loads((FOLDER / FILES["PyTorchJob"]).read_text(encoding="utf-8"))
    crd = {
        "kind": "CustomResourceDefinition",
        "spec": {
            "names": {"kind": "PyTorchJob"},
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": written["versions"]["v1"]}}],
        },
    }
    (tmp_path / "crd.json").write_text(json.dumps(crd), encoding="utf-8")
    make = runpy.run_path(str(ROOT / "scripts" / "make_schemas.py"))["made_schemas"]
    ours = make([FOLDER / FILES["PyTorchJob"]])["pytorchjob.json"]
    theirs = make([tmp_path])["pytorchjob.json"]
    assert json.loads(theirs) | {"source": ""} == json.loads(ours) | {"source": ""}

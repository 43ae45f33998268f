"""Writer of the schemas of custom kinds: CRDs made compact, for `paceline job validate`.

    python scripts/make_schemas.py CRD.json …      # or a folder of them

A CRD is a CustomResourceDefinition as JSON, or `{"kind", "source", "versions": {"v1": schema}}`.
Descriptions, defaults and rules in CEL are dropped. An object that has the same fields as a definition of
`src/paceline/k8s/validate/schemas/definitions.json`, such as a container, becomes a reference to it.
`schema_refinements.json`, beside this script, adds what an operator's webhook checks and its CRD does not
say: patterns of names, choices, smallest numbers. The format of the result: k8s/validate/schema_files.py.
"""

import json
import sys
from pathlib import Path
from typing import Any, TypeAlias

Node: TypeAlias = dict[str, Any]
Shape: TypeAlias = tuple[bool, frozenset[str]]

HERE = Path(__file__).resolve().parent
SCHEMAS = HERE.parent / "src" / "paceline" / "k8s" / "validate" / "schemas"
REFINEMENTS = HERE / "schema_refinements.json"
_WIDTH = 110
# The fields that hold labels and annotations of a pod, whose names and values have patterns.
_MAPS = {"labels": "Labels", "matchLabels": "Labels", "nodeSelector": "Labels", "annotations": "Annotations"}


def main(paths: list[str]) -> int:
    if not paths:
        print("usage: make schemas CRDS=FOLDER", file=sys.stderr)
        return 2
    for name, text in made_schemas([Path(path) for path in paths]).items():
        (SCHEMAS / name).write_text(text, encoding="utf-8")
        print(SCHEMAS / name)
    return 0


def made_schemas(paths: list[Path]) -> dict[str, str]:
    """The text of each file, by its name. A kind without refinements is none that is validated."""
    refinements = _read(REFINEMENTS)
    known: dict[Shape, str] = {}
    for name, definition in _read(SCHEMAS / "definitions.json").items():
        if _is_recognisable(definition):
            known.setdefault(_shape(definition), name)
    crds = sorted(map(_read, _files(paths)), key=_kind)  # RayCluster before RayJob, which has one inside
    made = {}
    for crd in crds:
        kind = _kind(crd)
        if kind not in refinements:
            continue
        spec = _compact(_schema_of(crd)["properties"]["spec"], known, "spec")
        known[_shape(spec)] = f"{kind.lower()}#spec"
        node = {
            "type": "object",
            "required": ["metadata", "spec"],
            "properties": {"metadata": {"$ref": "Metadata"}, "spec": spec, "status": {}},
        }
        for path, change in refinements[kind].items():
            _refine(node, path.replace("[]", ".[]").replace("{}", ".{}").split("."), change)
        made[f"{kind.lower()}.json"] = json_text({"source": crd.get("source", "")} | node) + "\n"
    return made


def _files(paths: list[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]


def _read(path: Path) -> Node:
    node: Node = json.loads(path.read_text(encoding="utf-8"))
    return node


def _kind(crd: Node) -> str:
    kind: str = crd["spec"]["names"]["kind"] if crd["kind"] == "CustomResourceDefinition" else crd["kind"]
    return kind


def _schema_of(crd: Node) -> Node:
    """Of the newest version: v1 before v1alpha1, v1beta2 before v1beta1."""
    if crd["kind"] == "CustomResourceDefinition":
        versions = {one["name"]: one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"]}
    else:
        versions = crd["versions"]
    stable = sorted(name for name in versions if "alpha" not in name and "beta" not in name)
    schema: Node = versions[stable[-1] if stable else max(versions)]
    return schema


def _shape(node: Node) -> Shape:
    """By which a definition is recognised: is it a list, and which fields has it?"""
    is_list = node.get("type") == "array"
    names = frozenset((node["items"] if is_list else node).get("properties", ()))
    return is_list, names


def _is_recognisable(node: Node) -> bool:
    _, names = _shape(node)
    return len(names) > 1 and names != {"metadata", "spec"} and "$ref" not in node


def _compact(node: Node, known: dict[Shape, str], name: str) -> Node:
    if node.get("x-kubernetes-int-or-string"):
        return {"type": "quantity" if "pattern" in node else "port-or-name"}
    kind = node.get("type")
    if kind is None or node.get("x-kubernetes-preserve-unknown-fields"):
        return {}
    if _shape(node) in known:
        return {"$ref": known[_shape(node)]}
    match kind:
        case "array":
            return {"type": kind, "items": _compact(node["items"], known, name), **_kept(node, "minItems")}
        case "object":
            return _compact_object(node, known, name)
        case "string":
            may_be_empty = {"minLength": 0} if "" in node.get("enum", ()) else {}
            return {"type": kind, **_kept(node, "enum", "pattern", "maxLength"), **may_be_empty}
        case _:
            return {"type": kind, **_kept(node, "minimum", "maximum")}


def _compact_object(node: Node, known: dict[Shape, str], name: str) -> Node:
    if isinstance(node.get("additionalProperties"), dict):
        if name in _MAPS:
            return {"$ref": _MAPS[name]}
        inner = _compact(node["additionalProperties"], known, name)
        return {"type": "object", "additionalProperties": inner}
    fields = {
        field: _compact(inner, known, field) for field, inner in sorted(node.get("properties", {}).items())
    }
    if fields.get("spec") == {"$ref": "PodSpec"}:
        return {"$ref": "PodTemplate"}
    # What the server fills in need not be written.
    required = [
        field for field in node.get("required", ()) if "default" not in node["properties"].get(field, {})
    ]
    return {"type": "object", **({"required": required} if required else {}), "properties": fields}


def _kept(node: Node, *keywords: str) -> Node:
    """What differs from the loader's defaults."""
    defaults = {"minimum": 0, "minItems": 0}
    return {
        keyword: node[keyword]
        for keyword in keywords
        if keyword in node and node[keyword] != defaults.get(keyword)
    }


def _refine(node: Node, path: list[str], change: Node) -> None:
    """`{}`: not looked into. With a type or a reference: in its place. Otherwise: keywords on top."""
    inside, name = _step(node, path[0])
    if len(path) > 1:
        _refine(inside[name], path[1:], change)
    elif not change or "type" in change or "$ref" in change:
        inside[name] = change
    else:
        inside[name] = {**inside[name], **change}


def _step(node: Node, step: str) -> tuple[Node, str]:
    """The place of a step: `[]` is the items of a list, `{}` the values of a map, and others are fields."""
    if step == "[]":
        return node, "items"
    if step == "{}":
        return node, "additionalProperties"
    return node.setdefault("properties", {}), step


def json_text(node: object, indent: int = 0) -> str:
    """As JSON with what fits into a line in one."""
    flat = json.dumps(node, ensure_ascii=False)
    if len(flat) + indent <= _WIDTH or not isinstance(node, dict | list) or not node:
        return flat
    margin = " " * (indent + 1)
    if isinstance(node, list):
        return (
            "[\n" + ",\n".join(margin + json_text(item, indent + 1) for item in node) + f"\n{' ' * indent}]"
        )
    lines = [f"{margin}{json.dumps(name)}: {json_text(inner, indent + 1)}" for name, inner in node.items()]
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

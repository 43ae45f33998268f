"""Loader of the schemas of Kubernetes kinds, which are JSON files under `schemas/`.

The files use the keywords of JSON Schema, with other defaults: a text is not empty unless it has
`minLength: 0`, an integer is between 0 and 2**31 - 1, and an object has only its `properties`. `{}` is any
value. `type` may also be `quantity` (500m, 4Gi) or `port-or-name`, and `format` names one of the patterns of
`k8s/objects.py`. `{"$ref": "Container"}` is a definition of `definitions.json`, and
`{"$ref": "raycluster#spec"}` a field of another kind; keywords next to `$ref` replace those of the
definition, and `properties` next to it replace single fields.

`make schemas` writes the files of custom kinds from their CRDs; those of Kubernetes' own kinds and of
HyperPodPyTorchJob, whose CRD is not public, are kept by hand.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

from paceline.k8s.objects import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    IMAGE,
    LABEL_KEY,
    LABEL_VALUE,
    NAME,
    RESOURCE,
    VARIABLE,
)
from paceline.k8s.validate.schema import (
    AnyValue,
    Boolean,
    Integer,
    ListOf,
    MapOf,
    Number,
    ObjectOf,
    PortOrName,
    Quantity,
    Schema,
    String,
)

Node: TypeAlias = Mapping[str, Any]  # of a JSON file, whose keywords have values of many types

_FORMATS = {
    "dns-1035-label": NAME,
    "dns-label": DNS_LABEL,
    "dns-subdomain": DNS_SUBDOMAIN,
    "image": IMAGE,
    "label-key": LABEL_KEY,
    "label-value": LABEL_VALUE,
    "resource-name": RESOURCE,
    "variable": VARIABLE,
}


@cache
def load_schema(file: str, api_version: str, kind: str) -> ObjectOf:
    """The schema of one kind. Versions and kinds that have the same fields share a file."""
    node = _read(file)
    head: dict[str, Schema] = {
        "apiVersion": String(choices=(api_version,)),
        "kind": String(choices=(kind,)),
    }
    fields = {name: _schema(field) for name, field in node["properties"].items()}
    return ObjectOf({**head, **fields}, ("apiVersion", "kind", *node["required"]))


@cache
def _read(file: str) -> Node:
    text = files("paceline.k8s.validate").joinpath("schemas", f"{file}.json").read_text(encoding="utf-8")
    node: Node = json.loads(text)
    return node


@cache
def _definition(reference: str) -> Schema:
    return _schema(_resolve(reference))


def _resolve(reference: str) -> Node:
    file, _, field = reference.rpartition("#")
    node: Node = _read(file)["properties"][field] if file else _read("definitions")[field]
    return node


def _schema(node: Node) -> Schema:
    if "$ref" in node:
        return _referred(node)
    match node.get("type"):
        case None:
            return AnyValue()
        case "object" if "additionalProperties" in node:
            return MapOf(_schema(node["additionalProperties"]), _pattern(node.get("propertyNames", {})))
        case "object":
            fields = {name: _schema(field) for name, field in node.get("properties", {}).items()}
            return ObjectOf(fields, tuple(node.get("required", ())), tuple(node.get("anyOf", ())))
        case "array":
            return ListOf(_schema(node["items"]), node.get("minItems", 0))
        case "string":
            return String(
                choices=tuple(node.get("enum", ())),
                pattern=_pattern(node),
                longest=node.get("maxLength"),
                may_be_empty=node.get("minLength") == 0,
            )
        case "integer":
            return Integer(least=node.get("minimum", 0), most=node.get("maximum", 2**31 - 1))
        case "number":
            return Number(least=node.get("minimum", 0))
        case "boolean":
            return Boolean()
        case "quantity":
            return Quantity()
        case "port-or-name":
            return PortOrName()
        case other:
            raise AssertionError(f"a schema has the type {other!r}, which the loader does not know")


def _referred(node: Node) -> Schema:
    own = {keyword: value for keyword, value in node.items() if keyword != "$ref"}
    if not own:
        return _definition(node["$ref"])
    base = _resolve(node["$ref"])
    fields = {**base.get("properties", {}), **own.get("properties", {})}
    return _schema({**base, **own, **({"properties": fields} if fields else {})})


def _pattern(node: Node) -> re.Pattern[str] | None:
    if "format" in node:
        return _FORMATS[node["format"]]
    return re.compile(node["pattern"]) if "pattern" in node else None

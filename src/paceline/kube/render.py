"""Which objects does an intent become, and how do they look as YAML? The same bytes, every time."""

from collections.abc import Callable, Sequence
from enum import StrEnum

import yaml

from paceline.kube.intent import Intent
from paceline.kube.parts import Object
from paceline.kube.targets import node_port, raycluster, rayjob


class Target(StrEnum):
    RAYJOB = "rayjob"  # one run on a cluster of its own
    RAYCLUSTER = "raycluster"  # a cluster that stays


_RENDERERS: dict[Target, Callable[[Intent], list[Object]]] = {
    Target.RAYJOB: rayjob.render,
    Target.RAYCLUSTER: raycluster.render,
}


def render(intent: Intent, target: Target) -> list[Object]:
    objects = _RENDERERS[target](intent)
    return [*objects, node_port.render(intent)] if intent.has_node_port else objects


def to_yaml(objects: Sequence[Object]) -> str:
    texts = [
        yaml.dump(one, Dumper=_Plain, sort_keys=False, width=1 << 30, allow_unicode=True) for one in objects
    ]
    return "---\n".join(texts)


class _Plain(yaml.SafeDumper):
    """Lists are indented below their key, and nothing is written as a reference to something above."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

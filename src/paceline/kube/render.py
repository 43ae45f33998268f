"""Which objects does an intent become, and how do they look as YAML? The same bytes, every time."""

from collections.abc import Callable, Sequence
from enum import StrEnum

import yaml

from paceline.kube.intent import Intent
from paceline.kube.parts import Object
from paceline.kube.plain_words import read_plain
from paceline.kube.targets import beside, hyperpod, job, node_port, pytorchjob, raycluster, rayjob, trainjob


class Target(StrEnum):
    RAYJOB = "rayjob"  # one run on a cluster of its own
    RAYCLUSTER = "raycluster"  # a cluster that stays
    PYTORCHJOB = "pytorchjob"  # training-operator 1.9
    TRAINJOB = "trainjob"  # Kubeflow Trainer 2.1, 2.2, 2.3
    JOB = "job"  # Kubernetes alone
    HYPERPOD = "hyperpod"  # HyperPod's training operator


_RENDERERS: dict[Target, Callable[[Intent], list[Object]]] = {
    Target.RAYJOB: rayjob.render,
    Target.RAYCLUSTER: raycluster.render,
    Target.PYTORCHJOB: pytorchjob.render,
    Target.TRAINJOB: trainjob.render,
    Target.JOB: job.render,
    Target.HYPERPOD: hyperpod.render,
}
ON_RAY = (Target.RAYJOB, Target.RAYCLUSTER)


def render(intent: Intent, target: Target) -> list[Object]:
    objects = _RENDERERS[target](intent)
    if intent.torch is not None:
        return [*beside.render(intent), *objects]
    objects = [*beside.claims(intent), *objects]
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

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Text of several lines stays readable, such as a file of settings; a number in words is quoted."""
        style = "|" if "\n" in data else None if read_plain(data) is None else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


_Plain.add_representer(str, _Plain.represent_str)

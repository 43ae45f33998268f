"""Which fields of an object are kept? Those that checks read.

A list of what may stay, not of what must go: commands, variables and annotations of other people's
deployments may hold secrets, and none of them is ever looked at, saved or shown.
"""

from paceline.kube.checks.snapshot import Object
from paceline.plan.codec import Json

_PODS = "spec.template.spec.containers[].{name,image} spec.template.metadata.labels"
_KEPT = {
    "nodes": "spec.unschedulable spec.taints status.allocatable status.capacity status.conditions"
    " status.nodeInfo.{osImage,kubeletVersion,architecture}",
    "namespaces": "status.phase",
    "deployments.apps": f"spec.replicas status.{{replicas,readyReplicas}} {_PODS}",
    "daemonsets.apps": f"status.{{desiredNumberScheduled,numberReady}} {_PODS}",
    "resourceslices.resource.k8s.io": "spec.driver spec.nodeName spec.pool spec.devices",
    "storageclasses.storage.k8s.io": "provisioner volumeBindingMode"
    " metadata.annotations.storageclass:kubernetes:io/is-default-class",
    "persistentvolumeclaims": "spec.accessModes spec.storageClassName status.phase",
    "resourcequotas": "status.hard status.used spec.scopes spec.scopeSelector",
    "networkpolicies.networking.k8s.io": "spec",
    "validatingwebhookconfigurations.admissionregistration.k8s.io": "webhooks[].{name}",
    "localqueues.kueue.x-k8s.io": "spec.clusterQueue status.conditions",
    "clusterpolicies.nvidia.com": "status.state",
    "configmaps": "data.{kubeflow_trainer_version,controller_manager_config:yaml}",
}
_ALWAYS = "metadata.{name,namespace,labels}"


def kept(resource: str, one: Object) -> dict[str, Json]:
    """`resource` as in a snapshot; of a kind that is not in the table only the name stays."""
    result: dict[str, Json] = {}
    for path in f"{_ALWAYS} {_KEPT.get(resource, '')}".split():
        _copy(one, result, path.replace("[]", ".[]").split("."))
    return result


def _copy(source: object, to: dict[str, Json], path: list[str]) -> None:
    if not isinstance(source, dict):
        return
    first, rest = path[0], path[1:]
    for name in first.strip("{}").split(","):
        name = name.replace(":", ".")  # dots inside of a name
        if name not in source:
            continue
        inner = source[name]
        if not rest:
            to[name] = inner
        elif rest[0] == "[]":
            _copy_each(inner, to, name, rest[1:])
        else:
            place = to.setdefault(name, {})
            assert isinstance(place, dict), "two paths agree about what is a mapping"
            _copy(inner, place, rest)


def _copy_each(items: object, to: dict[str, Json], name: str, path: list[str]) -> None:
    copies: list[Json] = []
    for item in items if isinstance(items, list) else []:
        copy: dict[str, Json] = {}
        _copy(item, copy, path)
        copies.append(copy)
    to[name] = copies

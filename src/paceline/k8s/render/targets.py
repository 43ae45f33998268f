"""The objects of a job spec for each target, and their YAML: the same bytes every time."""

from collections.abc import Callable, Sequence

import yaml

from paceline.core.go_yaml import parse_plain_scalar
from paceline.k8s.render import companions, pytorch_jobs, ray, trainjob
from paceline.k8s.render.pod import Object
from paceline.k8s.spec.job import RESULTS, JobSpec, Profile, Rendezvous, Target, TorchrunSpec

_RENDERERS: dict[Target, Callable[[JobSpec], list[Object]]] = {
    Target.RAYJOB: ray.render_rayjob,
    Target.RAYCLUSTER: ray.render_raycluster,
    Target.PYTORCHJOB: pytorch_jobs.render_pytorchjob,
    Target.TRAINJOB: trainjob.render_trainjob,
    Target.JOB: pytorch_jobs.render_indexed_job,
    Target.HYPERPOD: pytorch_jobs.render_hyperpod_job,
}


def render(intent: JobSpec, target: Target) -> list[Object]:
    objects = _RENDERERS[target](intent)
    if intent.torch is not None:
        return [*companions.render_companions(intent), *objects]
    objects = [*companions.render_claims(intent), *objects]
    return [*objects, ray.render_node_port(intent)] if intent.has_node_port else objects


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
        style = "|" if "\n" in data else None if parse_plain_scalar(data) is None else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


_Plain.add_representer(str, _Plain.represent_str)


def describe_manifest(intent: JobSpec, target: Target) -> list[str]:
    torch = intent.torch
    if torch is None:
        return []
    found = [*_exceptions(intent, torch), *_of_kind(intent, torch, target)]
    read_only = {volume.claim for volume in torch.volumes if volume.is_read_only}
    for claim in torch.claims:
        if claim.name in read_only:
            found.append(f"claim {claim.name} is new and empty, and this job only reads it: fill it first")
    if torch.options.gpu_claims:
        found.append(
            "claims of GPUs need Kubernetes 1.34 and NVIDIA's DRA driver; a queue or quota of nvidia.com/gpu"
            " does not count them"
        )
    if torch.results == RESULTS:
        found.append("results lie in the pod of rank 0 and go with it; --checkpoint-volume keeps them")
    if intent.pods.least != intent.pods.most:
        found.append("the run has as many workers as come at its beginning; when that changes, it ends")
    return found


def _exceptions(intent: JobSpec, torch: TorchrunSpec) -> list[str]:
    if not torch.options.efa or intent.profile is Profile.COMPAT:
        return []
    return ["EFA needs the capability IPC_LOCK, so a namespace that enforces Pod Security refuses these pods"]


def _of_kind(intent: JobSpec, torch: TorchrunSpec, target: Target) -> list[str]:
    never_starts = (
        f"nothing ends a job that has not started after {intent.limits.pending_s} s: look at it then"
    )
    match target:
        case Target.PYTORCHJOB:
            is_static = torch.rendezvous is Rendezvous.STATIC
            added = "training-operator adds a container init-pytorch (alpine) to Workers, without a security"
            added += " context; where Pod Security is enforced, give the operator a template of its own"
            return [never_starts, *([added] if is_static and intent.pods.wanted > 1 else [])]
        case Target.TRAINJOB:
            return [never_starts, *_of_trainer(torch)]
        case Target.JOB:
            return [never_starts]
        case _:
            return []


def _of_trainer(torch: TorchrunSpec) -> list[str]:
    found = ["Trainer keeps what has ended: delete the TrainJob when you have its results"]
    runtime = torch.options.runtime
    if runtime is None:
        return found
    found.append(f"tokens, service links and restarts of the pods are as runtime {runtime} says")
    return found

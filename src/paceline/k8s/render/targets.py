"""The objects of a job spec for each target, and their YAML: the same bytes every time."""

from collections.abc import Callable, Sequence

import yaml

from paceline.core.go_yaml import parse_plain_scalar
from paceline.k8s.render import companions, elastic, metrics, pytorch_jobs, ray, trainjob
from paceline.k8s.render.pod import Object
from paceline.k8s.spec.job import RESULTS, JobSpec, Profile, Rendezvous, Target, TorchrunSpec
from paceline.k8s.spec.options import SECONDS_PER_DAY

_RENDERERS: dict[Target, Callable[[JobSpec], list[Object]]] = {
    Target.RAYJOB: ray.render_rayjob,
    Target.RAYCLUSTER: ray.render_raycluster,
    Target.PYTORCHJOB: pytorch_jobs.render_pytorchjob,
    Target.TRAINJOB: trainjob.render_trainjob,
    Target.JOB: pytorch_jobs.render_indexed_job,
    Target.HYPERPOD: pytorch_jobs.render_hyperpod_job,
}


_ELASTIC_RENDERERS: dict[Target, Callable[[JobSpec], list[Object]]] = {
    Target.PYTORCHJOB: elastic.render_elastic_pytorchjob,
    Target.TRAINJOB: elastic.render_elastic_trainjob,
    Target.JOB: elastic.render_elastic_job,
}


def render(intent: JobSpec, target: Target) -> list[Object]:
    objects = (_RENDERERS if intent.agents is None else _ELASTIC_RENDERERS)[target](intent)
    objects = [*metrics.render_monitor(intent, target), *objects]
    if intent.torch is not None:
        return [*companions.render_companions(intent), *objects]
    objects = [*companions.render_ray_companions(intent), *objects]
    return [*objects, ray.render_node_port(intent)] if intent.has_node_port else objects


def to_yaml(objects: Sequence[Object]) -> str:
    texts = [
        yaml.dump(obj, Dumper=_Plain, sort_keys=False, width=1 << 30, allow_unicode=True) for obj in objects
    ]
    return "---\n".join(texts)


class _Plain(yaml.SafeDumper):
    """Lists are indented below their key, and nothing is written as a reference to something above."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Text of several lines, such as a config file, stays readable; text like a number is quoted."""
        style: str | None = None
        if "\n" in data:
            style = "|"
        elif parse_plain_scalar(data) is not None:
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


_Plain.add_representer(str, _Plain.represent_str)


def describe_manifest(intent: JobSpec, target: Target) -> list[str]:
    torch = intent.torch
    notes = [] if target is Target.RAYCLUSTER else _deadline(intent)
    if torch is None:
        return [*notes, *metrics.describe_metrics(intent, target)]
    notes += [
        *_exceptions(intent, torch),
        *_of_kind(intent, torch, target),
        *_of_program(intent, torch, target),
        *metrics.describe_metrics(intent, target),
    ]
    read_only = {volume.claim for volume in torch.volumes if volume.is_read_only}
    for claim in torch.claims:
        if claim.name in read_only:
            notes.append(
                f"claim {claim.name} is new and empty, but this job only reads it: upload data first"
            )
    if torch.options.gpu_claims:
        notes.append(
            "GPU claims need Kubernetes 1.34 and NVIDIA's DRA driver; a queue or quota of nvidia.com/gpu"
            " does not count them"
        )
    if torch.results == RESULTS:
        notes.append(
            "results are in the pod of rank 0 and are lost with it; keep them with --checkpoint-volume"
        )
    if intent.elastic is not None:
        notes += elastic.describe_command(intent, target)
    elif intent.pods.least != intent.pods.most:
        notes.append("the number of workers is fixed at the start; the run ends if it changes")
    return notes


def _deadline(intent: JobSpec) -> list[str]:
    """The default, which the user may not know."""
    if intent.limits.running_s != SECONDS_PER_DAY:
        return []
    return ["the job is ended after 24 hours; change this with --running-s SECONDS, or --running-s none"]


def _of_program(intent: JobSpec, torch: TorchrunSpec, target: Target) -> list[str]:
    notes: list[str] = []
    if not torch.results and intent.agents is None and not torch.volumes:
        notes.append("what the program writes is lost with its pods; mount a claim with --checkpoint-volume")
    if torch.is_raw and target is Target.HYPERPOD:
        notes.append("HyperPod's operator controls its agent hyperpodrun: begin the command with it")
    is_static = torch.rendezvous is Rendezvous.STATIC and target is not Target.HYPERPOD
    if intent.rendezvous.max_restarts and is_static and intent.pods.most > 1:
        notes.append("torchrun restarts the processes of one node only; with --rdzv c10d those of all nodes")
    return notes


def _exceptions(intent: JobSpec, torch: TorchrunSpec) -> list[str]:
    if not torch.options.efa or intent.profile is Profile.COMPAT:
        return []
    return ["EFA needs the capability IPC_LOCK, so a namespace that enforces Pod Security rejects these pods"]


def _of_kind(intent: JobSpec, torch: TorchrunSpec, target: Target) -> list[str]:
    never_starts = (
        f"a job that has not started after {intent.limits.pending_s} s is not stopped automatically"
    )
    match target:
        case Target.PYTORCHJOB:
            is_static = torch.rendezvous is Rendezvous.STATIC
            added = "training-operator adds a container init-pytorch (alpine) to Workers, without a security"
            added += " context; where Pod Security is enforced, configure another template in the operator"
            has_master_and_workers = intent.elastic is not None or (is_static and intent.pods.wanted > 1)
            return [never_starts, *([added] if has_master_and_workers else [])]
        case Target.TRAINJOB:
            return [never_starts, *_of_trainer(torch)]
        case Target.JOB:
            return [never_starts]
        case _:
            return []


def _of_trainer(torch: TorchrunSpec) -> list[str]:
    notes = ["Trainer keeps finished TrainJobs: delete the TrainJob after fetching its results"]
    runtime = torch.options.runtime
    if runtime is None:
        return notes
    notes.append(f"tokens, service links and restarts of the pods are set by runtime {runtime}")
    return notes

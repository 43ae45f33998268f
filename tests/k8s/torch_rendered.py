"""The torchrun jobs under test: one of each kind and trait, rendered by the path of the command."""

import copy
import functools
from typing import Any

from tests.k8s.rendered import settings

from paceline.k8s.spec.job import (
    ConfigFile,
    JobOptions,
    Limits,
    NodeRange,
    Profile,
    Size,
    Target,
    TorchrunOptions,
)
from paceline.k8s.spec.torchrun import AttachedConfig
from paceline.k8s.submit.manifests import RenderedJob, render_job

GPUS: dict[str, Any] = {"nodes": 2, "gpus_per_node": 8, "shm": "64Gi"}
EFA: dict[str, Any] = {**GPUS, "efa": 32, "torch_debug": True, "hf_secret": "hf-token"}
KEPT: dict[str, Any] = {
    "nodes": 4,
    "checkpoint_volume": "output:/output",
    "volumes": ("data:/data:ro",),
    "create_volumes": ("data=1Gi", "output=10Gi/efs"),
    "rbac": True,
    "network_policy": True,
    "queue": "gpu-queue",
    "env": ("OMP_NUM_THREADS=1",),
}
BIG: dict[str, Any] = {"worker": Size(cpus=90, memory="900Gi"), "namespace": "train"}
HOSTS: dict[str, Any] = {"nodes": NodeRange(2, 3), "coordinator": "paceline-coordinator"}
AGAIN: dict[str, Any] = {"limits": Limits(retries=3), "namespace": "ml-training"}
CONFIG = "task: xor\nmode: ssgd  # all meet\ncheckpoint_every: 50\n"
# Target, settings, what only these jobs have, what every job has.
Variant = tuple[Target, dict[str, str], dict[str, Any], dict[str, Any]]
VARIANTS: dict[str, Variant] = {
    "pytorchjob": (Target.PYTORCHJOB, {}, {"nodes": 2}, {}),
    "pytorchjob-alone": (Target.PYTORCHJOB, {"mode": "single"}, {}, {}),
    "pytorchjob-efa": (Target.PYTORCHJOB, {}, {**EFA, "instance_type": "p5.48xlarge"}, BIG),
    "pytorchjob-hyperpod": (
        Target.PYTORCHJOB,
        {"checkpoint_every": "50"},
        {**KEPT, "instance_type": "ml.g5.8xlarge"},
        AGAIN,
    ),
    "pytorchjob-claims": (Target.PYTORCHJOB, {}, {**GPUS, "gpu_claims": True}, BIG),
    "job-claims": (Target.JOB, {}, {**GPUS, "gpu_claims": True}, BIG),
    "hyperpod-claims": (Target.HYPERPOD, {}, {**GPUS, "gpu_claims": True}, BIG),
    "pytorchjob-kept": (Target.PYTORCHJOB, {"checkpoint_every": "50"}, KEPT, AGAIN),
    "pytorchjob-elastic": (Target.PYTORCHJOB, {}, {"nodes": 2, "elastic_nodes": "1:4"}, {}),
    "pytorchjob-hosts": (Target.PYTORCHJOB, {"mode": "ssgd"}, {**HOSTS, "config_map": True}, {}),
    "pytorchjob-hosts-kept": (Target.PYTORCHJOB, {"mode": "localsgd"}, {**KEPT, **HOSTS}, AGAIN),
    "trainjob-hosts": (Target.TRAINJOB, {"mode": "ssgd"}, {**HOSTS, "coordinator": "c:1"}, {}),
    "trainjob-hosts-kept": (Target.TRAINJOB, {"mode": "ssgd"}, {**KEPT, **HOSTS}, AGAIN),
    "job-hosts": (Target.JOB, {"mode": "diloco"}, {**HOSTS, "procs_per_node": 2}, {}),
    "job-hosts-kept": (Target.JOB, {"mode": "adaptive"}, {**KEPT, **HOSTS, "gpus_per_node": 1}, AGAIN),
    "pytorchjob-config": (Target.PYTORCHJOB, {}, {"nodes": 2, "config_map": True}, {}),
    "trainjob": (Target.TRAINJOB, {}, {"nodes": 2}, {}),
    "trainjob-kept": (Target.TRAINJOB, {"checkpoint_every": "50"}, KEPT, AGAIN),
    "trainjob-efa-runtime": (
        Target.TRAINJOB,
        {},
        {**EFA, "runtime": "torch-distributed"},
        {**BIG, "pull_secret": "ecr"},
    ),
    "trainjob-runtime": (Target.TRAINJOB, {}, {**GPUS, "runtime": "TrainingRuntime/ours"}, BIG),
    "job": (Target.JOB, {}, {"nodes": 3, "procs_per_node": 2}, {}),
    "job-c10d": (Target.JOB, {"checkpoint_every": "50"}, {**KEPT, "rdzv": "c10d"}, AGAIN),
    "hyperpod": (Target.HYPERPOD, {}, {**EFA, "instance_type": "ml.p5.48xlarge", "spares": 1}, BIG),
    "hyperpod-kept": (
        Target.HYPERPOD,
        {"checkpoint_every": "50"},
        {"nodes": 2, "checkpoint_volume": "fsx", "priority": "training-priority"},
        AGAIN,
    ),
}
COMPAT: dict[str, Variant] = {
    "pytorchjob-compat": (Target.PYTORCHJOB, {}, {"nodes": 2}, {"profile": "compat"}),
    "trainjob-runtime-compat": (
        Target.TRAINJOB,
        {},
        {"nodes": 2, "runtime": "torch-distributed"},
        {"profile": "compat"},
    ),
    "pytorchjob-hosts-compat": (Target.PYTORCHJOB, {"mode": "ssgd"}, HOSTS, {"profile": "compat"}),
    "hyperpod-compat": (Target.HYPERPOD, {}, EFA, {**BIG, "profile": "compat"}),
}


def rendered(
    target: Target, text: dict[str, str], torch: dict[str, Any], options: dict[str, Any] | None = None
) -> RenderedJob:
    image = {"image": "example.com/x:1", **(options or {})}
    config = settings(**{"name": "demo", "mode": "ddp", **elastic(torch), **text})
    travelling = None
    if torch.get("config_map"):
        file = ConfigFile(name="config.yaml", text=CONFIG)
        travelling = AttachedConfig(file=file, beside=settings(name="demo", steps="20", **elastic(torch)))
    return render_job(config, JobOptions(torch=TorchrunOptions(**torch), **image), target, (), travelling)


def elastic(torch: dict[str, Any]) -> dict[str, str]:
    return {"elastic": "yes"} if isinstance(torch.get("nodes"), NodeRange) else {}


def objects(name: str) -> tuple[list[dict[str, Any]], Profile]:
    """The manifests of a variant, free to be changed, and the profile they were made for."""
    rendered_job = variant(name)
    return copy.deepcopy(rendered_job.objects), rendered_job.intent.profile


@functools.cache
def variant(name: str) -> RenderedJob:
    target, text, torch, options = (VARIANTS | COMPAT)[name]
    return rendered(target, text, torch, options)


def job_of(name: str) -> dict[str, Any]:
    """The object that runs: the last one."""
    return objects(name)[0][-1]

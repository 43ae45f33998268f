"""Can a cluster do what is wished of a job that torchrun starts? Every reason why not, at once."""

import re

from paceline.errors import Problem
from paceline.kube.intent import Profile
from paceline.kube.render import Target
from paceline.kube.torch_asked import TRAINERS
from paceline.kube.wishes import Wishes
from paceline.kube.words import DNS_LABEL, DNS_SUBDOMAIN, LABEL_VALUE, read_quantity
from paceline.plan.plan import Device, Plan

_LEAST_MEMORY = 1 << 29  # torch alone needs about this much
_PROGRAM = re.compile(r"[A-Za-z0-9._/-]+")
_RUNTIME = re.compile(r"((Cluster)?TrainingRuntime/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def find_in_torch_wishes(plan: Plan, wishes: Wishes, target: Target, procs: int) -> list[Problem]:
    found = [*_of_ray(wishes), *_room(plan, wishes, procs), *_words(wishes), *_restarts(plan, wishes)]
    return [*found, *_claims(wishes, target), *_trainer(wishes, target), *_hyperpod(wishes, target)]


def _claims(wishes: Wishes, target: Target) -> list[Problem]:
    torch = wishes.torch
    if not torch.gpu_claims:
        return []
    if target is Target.TRAINJOB:
        what = "gpu_claims is said, but a TrainJob cannot carry a claim"
        return [Problem(what, "use the target pytorchjob or job", "--gpu-claims")]
    if not torch.gpus_per_node:
        what = "gpu_claims is said, but no GPU is asked for"
        return [Problem(what, "add --gpus-per-node 8, for example", "--gpu-claims")]
    return []


def _of_ray(wishes: Wishes) -> list[Problem]:
    usual = Wishes(image=wishes.image)
    names = ("gpus_per_worker", "autoscale", "resizable", "node_port", "head", "ray_version")
    hints = {"gpus_per_worker": "write --gpus-per-node", "autoscale": "write --elastic-nodes 1:3"}
    problems: list[Problem] = []
    for name in names:
        if getattr(wishes, name) != getattr(usual, name):
            flag = "--head-cpus or --head-memory" if name == "head" else f"--{name.replace('_', '-')}"
            hint = hints.get(name, "leave it out, or choose the target rayjob or raycluster")
            problems.append(Problem(f"{flag} is for jobs of Ray, and torchrun starts these", hint, flag))
    return problems


def _room(plan: Plan, wishes: Wishes, procs: int) -> list[Problem]:
    problems: list[Problem] = []
    torch, size = wishes.torch, wishes.worker
    if plan.device is Device.CUDA and torch.gpus_per_node != procs:
        what = f"there are {procs} processes on a node, and {torch.gpus_per_node} GPUs for them"
        problems.append(Problem(what, f"write --gpus-per-node {procs}: each has one", "--gpus-per-node"))
    if size.cpus < procs * plan.threads_per_worker:
        what = f"{procs} processes with {plan.threads_per_worker} threads each do not fit on {size.cpus} CPUs"
        hint = f"write --worker-cpus {procs * plan.threads_per_worker}"
        problems.append(Problem(what, hint, "--worker-cpus"))
    memory, shm = read_quantity(size.memory), read_quantity(torch.shm)
    if memory is None or memory < _LEAST_MEMORY:
        what = f"worker_memory is {size.memory!r}, but it must be an amount of at least 512Mi"
        problems.append(Problem(what, "write --worker-memory 4Gi, for example", "--worker-memory"))
    elif shm is None or not 0 < shm < memory:
        what = f"shm is {torch.shm!r}, but it must be an amount below the pod's memory, {size.memory}"
        problems.append(Problem(what, "write --shm 1Gi, or a larger --worker-memory", "--shm"))
    return problems


def _words(wishes: Wishes) -> list[Problem]:
    """Names that must be names."""
    torch = wishes.torch
    rules = (
        ("torchrun", torch.torchrun, _PROGRAM, "/opt/conda/bin/torchrun"),
        ("service_account", torch.service_account, DNS_SUBDOMAIN, "trainer"),
        ("queue", torch.queue, DNS_LABEL, "gpu-queue"),
        ("priority", torch.priority, DNS_SUBDOMAIN, "training-priority"),
        ("instance_type", torch.instance_type, LABEL_VALUE, "p5.48xlarge"),
        ("runtime", torch.runtime, _RUNTIME, "torch-distributed"),
    )
    problems: list[Problem] = []
    for name, said, pattern, example in rules:
        if said is not None and not pattern.fullmatch(said):
            flag = f"--{name.replace('_', '-')}"
            problems.append(Problem(f"{name} is {said!r}", f"write {flag} {example}, for example", flag))
    if torch.rbac and wishes.namespace is None:
        what = "rbac is said, but a RoleBinding must name the namespace of its account"
        problems.append(Problem(what, "add --namespace ml-training, for example", "--rbac"))
    if torch.rbac and torch.service_account is not None:
        what = "rbac makes a service account, and service_account names one that is there"
        problems.append(Problem(what, "keep one of the two", "--rbac"))
    return problems


def _restarts(plan: Plan, wishes: Wishes) -> list[Problem]:
    torch = wishes.torch
    if not wishes.limits.retries or torch.allow_restart_from_zero:
        return []
    hint = "or add --allow-restart-from-zero"
    if torch.checkpoint_volume is None:
        what = f"retries is {wishes.limits.retries}, but what a pod has saved goes with it"
        return [Problem(what, f"add --checkpoint-volume CLAIM, {hint}", "--retries")]
    if not plan.checkpoint_every:
        what = f"retries is {wishes.limits.retries}, but there is no checkpoint to go on from before the end"
        return [Problem(what, f"add --checkpoint-every 100, {hint}", "--retries")]
    return []


def _trainer(wishes: Wishes, target: Target) -> list[Problem]:
    torch = wishes.torch
    problems: list[Problem] = []
    if torch.trainer not in TRAINERS:
        what = f"trainer is {torch.trainer!r}, but known are {', '.join(TRAINERS)}"
        problems.append(Problem(what, "write --trainer 2.3, for example", "--trainer"))
    if target is not Target.TRAINJOB:
        said = [flag for flag in torch.said() if flag in ("--trainer", "--runtime")]
        return problems + [Problem(f"{flag} is for trainjob", "leave it out", flag) for flag in said]
    if torch.elastic_nodes is not None:
        what = "elastic_nodes is said, but a TrainJob has a fixed number of nodes"
        problems.append(Problem(what, "use --rdzv c10d, or the target pytorchjob", "--elastic-nodes"))
    if torch.runtime is not None and torch.trainer == "2.1" and wishes.profile == Profile.STRICT:
        what = "Trainer 2.1 cannot change the security of a runtime's pods"
        hint = "leave --runtime out, so that a runtime comes with the job; or use --profile compat"
        problems.append(Problem(what, hint, "--runtime"))
    return problems


def _hyperpod(wishes: Wishes, target: Target) -> list[Problem]:
    torch = wishes.torch
    if target is not Target.HYPERPOD:
        return [Problem("--spares is for hyperpod", "leave it out", "--spares")] if torch.spares else []
    problems: list[Problem] = []
    for flag in ("--rdzv", "--elastic-nodes"):
        if flag in torch.said():
            what = f"{flag} is said, but HyperPod's own agent decides how nodes meet"
            problems.append(Problem(what, "leave it out", flag))
    if torch.network_policy:
        what = "a network policy would keep HyperPod's operator from its agents"
        problems.append(Problem(what, "leave it out", "--network-policy"))
    if torch.instance_type is not None and not torch.instance_type.startswith("ml."):
        what = f"instance_type is {torch.instance_type}, but nodes of HyperPod say ml. before it"
        problems.append(Problem(what, f"write --instance-type ml.{torch.instance_type}", "--instance-type"))
    return problems

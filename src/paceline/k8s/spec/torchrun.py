"""The spec of a job that torchrun starts, the same for every kind of object.

Either a complete intent, or a ConfigError with every problem.
"""

import re
from dataclasses import dataclass, replace

from paceline.config.environment import Facts, World
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ManifestError, Problem
from paceline.k8s.objects import DNS_LABEL, DNS_SUBDOMAIN, INSTANCE_TYPE, LABEL_VALUE, read_quantity
from paceline.k8s.spec.command import facts_in_pods, flags_of, plan_of, worker_command
from paceline.k8s.spec.job import (
    CONFIG,
    PORT,
    RESULTS,
    TRAINERS,
    Claim,
    ConfigFile,
    JobOptions,
    JobSpec,
    Pods,
    Profile,
    Rendezvous,
    Target,
    TorchrunSpec,
    Volume,
)
from paceline.k8s.spec.readers import (
    check_names,
    find_inexpressible_settings,
    find_mount_conflicts,
    find_reserved,
    read_claims,
    read_labels,
    read_range,
    read_secrets,
    read_variables,
    read_volumes,
    secret_of,
)
from paceline.plan.plan import Device, Launcher, Plan

_LEAST_MEMORY = 1 << 29  # torch alone needs about this much
_PROGRAM = re.compile(r"[A-Za-z0-9._/-]+")
_RUNTIME = re.compile(r"((Cluster)?TrainingRuntime/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def check_torchrun_options(plan: Plan, wishes: JobOptions, target: Target, procs: int) -> list[Problem]:
    found = [*_of_ray(wishes), *_room(plan, wishes, procs), *_words(wishes), *_restarts(plan, wishes)]
    return [*found, *_claims(wishes, target), *_trainer(wishes, target), *_hyperpod(wishes, target)]


def _claims(wishes: JobOptions, target: Target) -> list[Problem]:
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


def _of_ray(wishes: JobOptions) -> list[Problem]:
    usual = JobOptions(image=wishes.image)
    names = ("gpus_per_worker", "autoscale", "resizable", "node_port", "head", "ray_version")
    hints = {"gpus_per_worker": "write --gpus-per-node", "autoscale": "write --elastic-nodes 1:3"}
    problems: list[Problem] = []
    for name in names:
        if getattr(wishes, name) != getattr(usual, name):
            flag = "--head-cpus or --head-memory" if name == "head" else f"--{name.replace('_', '-')}"
            hint = hints.get(name, "leave it out, or choose the target rayjob or raycluster")
            problems.append(Problem(f"{flag} is for jobs of Ray, and torchrun starts these", hint, flag))
    return problems


def _room(plan: Plan, wishes: JobOptions, procs: int) -> list[Problem]:
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


def _words(wishes: JobOptions) -> list[Problem]:
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


def _restarts(plan: Plan, wishes: JobOptions) -> list[Problem]:
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


def _trainer(wishes: JobOptions, target: Target) -> list[Problem]:
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
    return problems


def _hyperpod(wishes: JobOptions, target: Target) -> list[Problem]:
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


MAX_NAME_LENGTH = 40  # operators add to it, and 63 is the most that a pod may be called


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedConfig:
    """A file of settings that goes with the job, and what was said beside it."""

    file: ConfigFile
    beside: TrainConfig


def build_torchrun_spec(
    config: TrainConfig, wishes: JobOptions, target: Target, travelling: AttachedConfig | None = None
) -> JobSpec:
    torch = wishes.torch
    procs = torch.procs_per_node or max(1, torch.gpus_per_node)
    pods, problems = _pods(wishes)
    config, more = _sized(config, pods.wanted * procs)
    facts = _facts(config, pods.wanted, procs, wishes)
    plan = plan_of(config, facts)
    read, unread = _read(wishes, pods.most)
    said = [*wishes.secret_env, *([secret_of(torch.hf_secret)] if torch.hf_secret else [])]
    secrets, unknown = read_secrets(said)
    problems += [
        *more,
        *unread,
        *unknown,
        *check_names(plan.run, wishes, MAX_NAME_LENGTH),
        *find_inexpressible_settings(config),
    ]
    problems += find_reserved((one.name for one in secrets), "--secret-env")
    problems += check_torchrun_options(plan, wishes, target, procs)
    results, elsewhere = _results(config, read.checkpoints)
    problems += elsewhere
    if problems:
        raise ManifestError(problems)
    file = None if travelling is None else travelling.file
    spec = TorchrunSpec(
        options=torch,
        procs=procs,
        program=_program(wishes, target),
        rendezvous=_rendezvous(wishes),
        results=results,
        volumes=read.volumes,
        claims=read.claims,
        config=file,
        variables=read.variables,
        node_labels=read.node_labels,
        service_account=plan.run if torch.rbac else torch.service_account,
        has_cache=torch.hf_secret is not None,
    )
    return JobSpec(
        name=plan.run,
        image=wishes.image,
        pods=pods,
        command=_command(config, facts, results, wishes, travelling),
        namespace=wishes.namespace,
        worker=replace(wishes.worker, gpus=torch.gpus_per_node),
        profile=Profile(wishes.profile),
        secrets=secrets,
        pull_secret=wishes.pull_secret,
        limits=wishes.limits,
        torch=spec,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What flags say in words of their own."""

    volumes: tuple[Volume, ...]
    checkpoints: Volume | None
    claims: tuple[Claim, ...]
    variables: tuple[tuple[str, str], ...]
    node_labels: tuple[tuple[str, str], ...]


def _read(wishes: JobOptions, nodes: int) -> tuple[_Reading, list[Problem]]:
    said = wishes.torch
    checkpoint = [] if said.checkpoint_volume is None else [said.checkpoint_volume]
    checkpoint = [text if ":" in text else f"{text}:/checkpoints" for text in checkpoint]
    mine, problems = read_volumes(checkpoint, "--checkpoint-volume")
    others, unread = read_volumes(said.volumes, "--volume")
    volumes = (*mine, *others)
    claims, unknown = read_claims(said.create_volumes, volumes, nodes)
    variables, odd = read_variables(said.env)
    labels, strange = read_labels(said.node_selector, "--node-selector")
    if said.instance_type is not None:
        labels = (*labels, (INSTANCE_TYPE, said.instance_type))
    if mine and mine[0].is_read_only:
        hint = "leave :ro out"
        problems = [*problems, Problem("checkpoint_volume cannot be read-only", hint, "--checkpoint-volume")]
    reading = _Reading(
        volumes=volumes,
        checkpoints=mine[0] if mine else None,
        claims=claims,
        variables=variables,
        node_labels=labels,
    )
    return reading, [*problems, *unread, *unknown, *odd, *strange, *find_mount_conflicts(volumes)]


def _program(wishes: JobOptions, target: Target) -> str:
    usual = "hyperpodrun" if target is Target.HYPERPOD else "/opt/conda/bin/torchrun"
    return wishes.torch.torchrun or usual


def _rendezvous(wishes: JobOptions) -> Rendezvous:
    return Rendezvous.C10D if wishes.torch.elastic_nodes else Rendezvous(wishes.torch.rdzv)


def _pods(wishes: JobOptions) -> tuple[Pods, list[Problem]]:
    wanted, text = wishes.torch.nodes or 1, wishes.torch.elastic_nodes
    fixed = Pods(wanted=wanted, least=wanted, most=wanted)
    if text is None:
        return fixed, []
    bounds, problems = read_range("elastic-nodes", text, wanted, "the job has {} nodes", "--nodes")
    return (fixed if bounds is None else Pods(wanted=wanted, least=bounds[0], most=bounds[1])), problems


def _sized(config: TrainConfig, size: int) -> tuple[TrainConfig, list[Problem]]:
    """torchrun says how many workers there are, and that it started them."""
    problems: list[Problem] = []
    if config.launcher not in (None, Launcher.TORCHRUN):
        what = f"launcher is {config.launcher}, but this job is launched by torchrun"
        problems.append(Problem(what, "leave launcher out", config.origin("launcher")))
    if config.num_workers not in (None, size):
        what = f"num_workers is {config.num_workers}, but nodes and processes per node make {size}"
        hint = "leave num_workers out: --nodes and --gpus-per-node (or --procs-per-node) say it"
        problems.append(Problem(what, hint, config.origin("num_workers")))
    return _unsized(config), problems


def _unsized(config: TrainConfig) -> TrainConfig:
    origins = {key: said for key, said in config.origins.items() if key not in ("launcher", "num_workers")}
    return replace(config, launcher=None, num_workers=None, origins=origins)


def _facts(config: TrainConfig, nodes: int, procs: int, wishes: JobOptions) -> Facts:
    host = None if nodes * procs == 1 else "node-0"
    world = World(size=nodes * procs, local_size=procs, host=host, port=PORT, has_agent=True)
    gpus, cpus = wishes.torch.gpus_per_node, wishes.worker.cpus
    return replace(facts_in_pods(config), world=world, cuda_devices=gpus, cpu_count=cpus)


def _results(config: TrainConfig, checkpoints: Volume | None) -> tuple[str, list[Problem]]:
    """Where run folders go: onto the volume, or else into the pod, to a place where its user may write."""
    place = RESULTS if checkpoints is None else checkpoints.path
    for key in ("save_dir", "run_dir"):
        said, origin = getattr(config, key), config.origin(key) or ""
        if said is None or not origin.startswith("--"):
            continue  # a file says where results go on the machine that it was written for
        if not (said == place or said.startswith(f"{place}/")):
            what = f"{key} is {said}, but what stays of a pod is in {place}"
            return place, [Problem(what, f"name a folder in {place}, or leave {key} out", origin)]
    return place, []


def _command(
    config: TrainConfig, facts: Facts, results: str, wishes: JobOptions, travelling: AttachedConfig | None
) -> tuple[str, ...]:
    if travelling is None:
        words = list(worker_command(_without_places(config), facts))
    else:
        words = ["-m", "paceline.worker", "--config", f"{CONFIG}/{travelling.file.name}"]
        words += flags_of(_without_places(_unsized(travelling.beside)))
    if wishes.torch.gpus_per_node and "--device" not in words:
        words += ["--device", "cuda"]  # a GPU that does not work shall not go unnoticed
    words += _places(config, results)
    return tuple(words) if wishes.torch.checkpoint_volume is None else (*words, "--resume", "auto")


def _without_places(config: TrainConfig) -> TrainConfig:
    return replace(config, save_dir=None, run_dir=None)


def _places(config: TrainConfig, results: str) -> list[str]:
    for key in ("run_dir", "save_dir"):
        if (config.origin(key) or "").startswith("--"):
            return [f"--{key.replace('_', '-')}", str(getattr(config, key))]
    return ["--save-dir", results]

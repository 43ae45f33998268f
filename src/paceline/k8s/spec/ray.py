"""The spec of a job that Ray starts, from the settings of the run and the options of the job.

Either a complete spec, or a ManifestError with every problem. A job that does not fit into the pods it asks
for is refused here, before anything exists.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ManifestError, Problem
from paceline.k8s.objects import MAX_RAY_NAME_LENGTH, read_quantity
from paceline.k8s.spec.command import facts_in_pods, plan_of, run_command, train_command
from paceline.k8s.spec.elastic import elastic_config, node_range
from paceline.k8s.spec.job import (
    RAY_VERSION,
    Claim,
    JobOptions,
    JobSpec,
    NodeRange,
    Pods,
    Profile,
    Size,
    Volume,
)
from paceline.k8s.spec.options import explicit_flags
from paceline.k8s.spec.pods import read_pod_fields
from paceline.k8s.spec.readers import (
    check_names,
    find_inexpressible_settings,
    find_mount_conflicts,
    read_claims,
    read_range,
    read_secrets,
    read_volumes,
    secret_of,
)
from paceline.k8s.spec.script import JobScript
from paceline.k8s.spec.torchrun import check_identity, range_problem
from paceline.plan.catalog import MODES, Channel, server_names
from paceline.plan.decide import elastic_of
from paceline.plan.plan import Device, Launcher, Placement, Plan, Transport

_ALSO_FOR_RAY = (
    *("--nodes", "--gpus-per-node", "--volume", "--create-volume", "--env", "--hf-secret"),
    *("--node-selector", "--instance-type", "--queue", "--priority", "--rbac", "--network-policy"),
)
_LEAST_MEMORY = 1 << 29  # Ray's own processes need about this much


def build_ray_spec(
    config: TrainConfig,
    options: JobOptions,
    earlier: Sequence[Problem] = (),
    script: JobScript | None = None,
) -> JobSpec:
    """`earlier`: problems that were met while the settings were read."""
    earlier = [*earlier, *not_for_ray(options)]
    if earlier:
        raise ManifestError(earlier)
    options = options_by_nodes(options)
    facts = facts_in_pods(config)
    elastic = None if elastic_of(config) is None else node_range(options)
    config = _on_ray(config, options, elastic)
    plan = plan_of(config, facts)
    worker = _worker(options)
    nodes = math.ceil(plan.num_workers / max(1, worker.gpus))
    pods, problems = ray_pods(nodes, options) if elastic is None else _elastic_pods(elastic, options)
    problems += [*find_inexpressible_settings(config), *_check_room(plan, worker, nodes)]
    spec = assemble_ray_spec(plan.run, _command(config, facts, script), options, pods, problems)
    return replace(
        spec,
        elastic=elastic,
        files=() if script is None else script.files,
        script_sha256=None if script is None else script.sha256,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTool:
    """A command of Paceline that makes several runs on one cluster, such as a comparison."""

    name: str  # of the job, unless the user names it
    words: tuple[str, ...]
    plans: tuple[Plan, ...]  # of its runs, one after the other


def build_tool_spec(tool: RayTool, name: str | None, options: JobOptions) -> JobSpec:
    """The cluster has room for the largest of the runs. Raises ManifestError with every problem."""
    problems = not_for_ray(options)
    nodes = options.torch.nodes
    if problems:
        raise ManifestError(problems)
    if isinstance(nodes, NodeRange):
        raise ManifestError([range_problem(nodes)])
    options = options_by_nodes(options)
    worker = _worker(options)
    largest = max(plan.num_workers for plan in tool.plans)
    count = nodes or math.ceil(largest / max(1, worker.gpus))
    pods, problems = ray_pods(count, options)
    # Runs that need the same are refused with the same words.
    problems += dict.fromkeys(problem for plan in tool.plans for problem in _check_room(plan, worker, count))
    return assemble_ray_spec(name or tool.name, tool.words, options, pods, problems)


def assemble_ray_spec(
    run: str, command: tuple[str, ...], options: JobOptions, pods: Pods, problems: Sequence[Problem]
) -> JobSpec:
    """Raises ManifestError with these problems and those of the options."""
    hf_secret = [] if options.torch.hf_secret is None else [secret_of(options.torch.hf_secret)]
    secrets, unread = read_secrets([*options.secret_env, *hf_secret])
    volumes, claims, odd = _volumes(options)
    fields, unreadable = read_pod_fields(options)
    problems = [
        *problems,
        *unread,
        *check_names(run, options, MAX_RAY_NAME_LENGTH),
        *_sizes(options),
        *_ray_version(options),
        *check_identity(options),
        *_queue(options, pods),
        *unreadable,
        *odd,
    ]
    if problems:
        raise ManifestError(problems)
    return JobSpec(
        name=run,
        image=options.image,
        pods=pods,
        command=command,
        namespace=options.namespace,
        head=options.head,
        worker=_worker(options),
        profile=Profile(options.profile),
        secrets=secrets,
        pull_secret=options.pull_secret,
        has_node_port=options.node_port,
        has_identity=options.torch.rbac,
        has_network_policy=options.torch.network_policy,
        limits=options.limits,
        fields=fields,
        ray_version=options.ray_version,
        volumes=volumes,
        claims=claims,
    )


def _worker(options: JobOptions) -> Size:
    return replace(options.worker, gpus=options.gpus_per_worker)


def _queue(options: JobOptions, pods: Pods) -> list[Problem]:
    """Kueue admits a job of a fixed size."""
    if options.torch.queue is None or not pods.is_automatic:
        return []
    message = "queue is set, but Kueue does not admit a cluster that Ray's autoscaler changes"
    return [Problem(message, "leave --autoscale out", "--queue")]


def _command(config: TrainConfig, facts: Facts, script: JobScript | None) -> tuple[str, ...]:
    if script is None:
        return train_command(config, facts)
    config = replace(config, num_workers=plan_of(config, facts).num_workers)
    return (*run_command(config, facts), *script.command)


def _on_ray(config: TrainConfig, options: JobOptions, elastic: NodeRange | None) -> TrainConfig:
    if config.launcher not in (None, Launcher.RAY):
        message = f"launcher is {config.launcher}, but a job of a Ray cluster uses launcher ray"
        raise ManifestError([Problem(message, "leave launcher out", config.origin("launcher"))])
    device = Device.CUDA if options.gpus_per_worker and config.device is None else config.device
    config = replace(config, launcher=Launcher.RAY, address="auto", device=device)
    nodes = options.torch.nodes
    if elastic is not None:
        return elastic_config(config, elastic, max(1, options.gpus_per_worker))
    if isinstance(nodes, NodeRange):
        raise ManifestError([range_problem(nodes)])
    if nodes is not None and config.num_workers is None:
        return replace(config, num_workers=nodes * max(1, options.gpus_per_worker))
    return config


def options_by_nodes(options: JobOptions) -> JobOptions:
    """A node of other kinds of job is a worker pod of Ray's."""
    return replace(options, gpus_per_worker=options.gpus_per_worker or options.torch.gpus_per_node)


def not_for_ray(options: JobOptions) -> list[Problem]:
    """Problems of options that only torchrun jobs have."""
    flags = [flag for flag in explicit_flags(options.torch) if flag not in _ALSO_FOR_RAY]
    flags += explicit_flags(options.rendezvous)
    hint = "leave it out, or choose the target pytorchjob, trainjob, job or hyperpod"
    return [Problem(f"{flag} is an option of torchrun jobs, not of Ray jobs", hint, flag) for flag in flags]


def _volumes(options: JobOptions) -> tuple[tuple[Volume, ...], tuple[Claim, ...], list[Problem]]:
    """A head and a worker are two pods at least, and may be on two nodes."""
    volumes, problems = read_volumes(options.torch.volumes, "--volume")
    claims, more = read_claims(options.torch.create_volumes, volumes, nodes=2)
    return volumes, claims, [*problems, *more, *find_mount_conflicts(volumes)]


def ray_pods(count: int, options: JobOptions) -> tuple[Pods, list[Problem]]:
    fixed = Pods(wanted=count, least=count, most=count)
    flags = [(f, t) for f, t in (("autoscale", options.autoscale), ("resizable", options.resizable)) if t]
    if not flags:
        return fixed, []
    if len(flags) == 2:
        hint = "keep --autoscale (scaled by Ray) or --resizable (scaled by you)"
        return fixed, [Problem("autoscale and resizable are both set", hint)]
    flag, text = flags[0]
    need = "the run needs {} worker pods from its start"
    bounds, problems = read_range(flag, text, count, need, "--num-workers")
    if bounds is None:
        return fixed, problems
    return Pods(wanted=count, least=bounds[0], most=bounds[1], is_automatic=flag == "autoscale"), []


def _elastic_pods(nodes: NodeRange, options: JobOptions) -> tuple[Pods, list[Problem]]:
    """Ray's autoscaler brings the pods that workers wait for, and removes idle ones."""
    problems = [
        Problem(f"{flag} is set, but --nodes has the range of an elastic job", "leave it out", flag)
        for flag, text in (("--autoscale", options.autoscale), ("--resizable", options.resizable))
        if text
    ]
    return Pods(wanted=nodes.least, least=nodes.least, most=nodes.most, is_automatic=True), problems


def _ray_version(options: JobOptions) -> list[Problem]:
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", options.ray_version):
        return []
    message = (
        f"ray_version is {options.ray_version!r}, but it must be the version in the image, such as "
        f"{RAY_VERSION}"
    )
    return [Problem(message, f"write --ray-version {RAY_VERSION}", "--ray-version")]


def _sizes(options: JobOptions) -> list[Problem]:
    problems: list[Problem] = []
    for role, size in (("head", options.head), ("worker", options.worker)):
        memory = read_quantity(size.memory)
        if memory is None or memory < _LEAST_MEMORY:
            message = f"{role}_memory is {size.memory!r}, but it must be an amount of at least 512Mi"
            problems.append(Problem(message, f"write --{role}-memory 4Gi, for example", f"--{role}-memory"))
    return problems


def _check_room(plan: Plan, worker: Size, pods: int) -> list[Problem]:
    """Workers must fit into the pods: one CPU for each thread, one GPU for each worker."""
    problems: list[Problem] = []
    if plan.device is Device.CUDA and not worker.gpus:
        message = "device is cuda, but the worker pods have no GPU"
        hint = "add --gpus-per-worker 1"
        problems.append(Problem(message, hint, "--device"))
    if plan.elastic is not None and plan.transport is not Transport.TCP:
        message = "workers in memory that they share cannot be in several pods"
        problems.append(Problem(message, "leave transport out", "--transport"))
    if plan.elastic is not None and (server_names(plan) or _stays_on_one_machine(plan.mode)):
        message = f"elastic runs of mode {plan.mode} stay on one machine, but pods are several"
        hint = "use --mode ssgd, localsgd, diloco, fedavg or adaptive, or --restarts 3 instead of --elastic"
        problems.append(Problem(message, hint, "--mode"))
    has_server = plan.elastic is None and plan.transport is Transport.TCP
    participants = plan.num_workers + has_server
    places = worker.cpus // plan.threads_per_worker
    placement = None if plan.ray is None else plan.ray.placement
    capacity = pods * places
    if placement is Placement.STRICT_SPREAD:
        capacity = pods * min(1, places)
    elif placement is Placement.STRICT_PACK:
        capacity = places
    if capacity < participants:
        message = f"the run has {participants} participants with {plan.threads_per_worker} threads each, but "
        message += f"{pods} worker pods with {worker.cpus} CPUs fit {capacity}"
        cpus = plan.threads_per_worker * math.ceil(participants / pods)
        hint = f"write --worker-cpus {max(cpus, worker.cpus)}"
        if placement is not None:
            hint += ", or leave placement out"
        problems.append(Problem(message, hint))
    return problems


def _stays_on_one_machine(mode: str) -> bool:
    """Elastic runs of torch's own modes."""
    return mode in MODES and MODES[mode].channel is Channel.TORCH

"""The spec of a job that Ray starts, from the settings of the run and the options of the job.

Either a complete spec, or a ManifestError with every problem. A job that does not fit into the pods it asks
for is refused here, before anything exists.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from paceline.config.train_config import TrainConfig
from paceline.core.errors import ManifestError, Problem
from paceline.k8s.objects import MAX_RAY_NAME_LENGTH, read_quantity
from paceline.k8s.spec.command import facts_in_pods, plan_of, train_command
from paceline.k8s.spec.job import RAY_VERSION, Claim, JobOptions, JobSpec, Pods, Profile, Size, Volume
from paceline.k8s.spec.readers import (
    check_names,
    find_inexpressible_settings,
    find_mount_conflicts,
    read_claims,
    read_range,
    read_secrets,
    read_volumes,
)
from paceline.plan.plan import Device, Launcher, Placement, Plan, Transport

_ALSO_FOR_RAY = ("--nodes", "--gpus-per-node", "--volume", "--create-volume")
_LEAST_MEMORY = 1 << 29  # Ray's own processes need about this much


def build_ray_spec(config: TrainConfig, wishes: JobOptions, found: Sequence[Problem] = ()) -> JobSpec:
    """`found`: problems that reading the settings has met already."""
    found = [*found, *_not_for_ray(wishes)]
    if found:
        raise ManifestError(found)
    wishes = _by_nodes(wishes)
    config, facts = _on_ray(config, wishes), facts_in_pods(config)
    plan = plan_of(config, facts)
    worker = replace(wishes.worker, gpus=wishes.gpus_per_worker)
    wanted = math.ceil(plan.num_workers / max(1, worker.gpus))
    pods, problems = _pods(wanted, wishes)
    secrets, unread = read_secrets(wishes.secret_env)
    volumes, claims, odd = _volumes(wishes)
    problems += [*unread, *check_names(plan.run, wishes, MAX_RAY_NAME_LENGTH), *_sizes(wishes)]
    problems += [
        *_ray_version(wishes),
        *find_inexpressible_settings(config),
        *_room(plan, worker, wanted),
        *odd,
    ]
    if problems:
        raise ManifestError(problems)
    return JobSpec(
        name=plan.run,
        image=wishes.image,
        pods=pods,
        command=train_command(config, facts),
        namespace=wishes.namespace,
        head=wishes.head,
        worker=worker,
        profile=Profile(wishes.profile),
        secrets=secrets,
        pull_secret=wishes.pull_secret,
        has_node_port=wishes.node_port,
        limits=wishes.limits,
        ray_version=wishes.ray_version,
        volumes=volumes,
        claims=claims,
    )


def _on_ray(config: TrainConfig, wishes: JobOptions) -> TrainConfig:
    if config.launcher not in (None, Launcher.RAY):
        what = f"launcher is {config.launcher}, but a job on a Ray cluster is launched by ray"
        raise ManifestError([Problem(what, "leave launcher out", config.origin("launcher"))])
    device = Device.CUDA if wishes.gpus_per_worker and config.device is None else config.device
    workers = config.num_workers
    if wishes.torch.nodes is not None and workers is None:
        workers = wishes.torch.nodes * max(1, wishes.gpus_per_worker)
    return replace(config, launcher=Launcher.RAY, address="auto", device=device, num_workers=workers)


def _by_nodes(wishes: JobOptions) -> JobOptions:
    """A node of other kinds of job is a worker pod of Ray's."""
    return replace(wishes, gpus_per_worker=wishes.gpus_per_worker or wishes.torch.gpus_per_node)


def _not_for_ray(wishes: JobOptions) -> list[Problem]:
    said = [flag for flag in wishes.torch.said() if flag not in _ALSO_FOR_RAY]
    hint = "leave it out, or choose the target pytorchjob, trainjob, job or hyperpod"
    return [
        Problem(f"{flag} is for jobs that torchrun starts, and Ray starts these", hint, flag) for flag in said
    ]


def _volumes(wishes: JobOptions) -> tuple[tuple[Volume, ...], tuple[Claim, ...], list[Problem]]:
    """A head and a worker are two pods at least, and may be on two nodes."""
    volumes, problems = read_volumes(wishes.torch.volumes, "--volume")
    claims, more = read_claims(wishes.torch.create_volumes, volumes, nodes=2)
    return volumes, claims, [*problems, *more, *find_mount_conflicts(volumes)]


def _pods(wanted: int, wishes: JobOptions) -> tuple[Pods, list[Problem]]:
    fixed = Pods(wanted=wanted, least=wanted, most=wanted)
    said = [(f, t) for f, t in (("autoscale", wishes.autoscale), ("resizable", wishes.resizable)) if t]
    if not said:
        return fixed, []
    if len(said) == 2:
        hint = "keep --autoscale if Ray shall decide, --resizable if you do"
        return fixed, [Problem("autoscale and resizable are both said", hint)]
    flag, text = said[0]
    need = "the run needs {} worker pods from its beginning"
    bounds, problems = read_range(flag, text, wanted, need, "--num-workers")
    if bounds is None:
        return fixed, problems
    return Pods(wanted=wanted, least=bounds[0], most=bounds[1], is_automatic=flag == "autoscale"), []


def _ray_version(wishes: JobOptions) -> list[Problem]:
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", wishes.ray_version):
        return []
    what = f"ray_version is {wishes.ray_version!r}, but it must be that of the image, such as {RAY_VERSION}"
    return [Problem(what, f"write --ray-version {RAY_VERSION}", "--ray-version")]


def _sizes(wishes: JobOptions) -> list[Problem]:
    problems: list[Problem] = []
    for who, size in (("head", wishes.head), ("worker", wishes.worker)):
        memory = read_quantity(size.memory)
        if memory is None or memory < _LEAST_MEMORY:
            what = f"{who}_memory is {size.memory!r}, but it must be an amount of at least 512Mi"
            problems.append(Problem(what, f"write --{who}-memory 4Gi, for example", f"--{who}-memory"))
    return problems


def _room(plan: Plan, worker: Size, pods: int) -> list[Problem]:
    """Does everybody fit into the pods? One CPU for each thread, one GPU for each worker."""
    problems: list[Problem] = []
    if plan.device is Device.CUDA and not worker.gpus:
        what, hint = "device is cuda, but the worker pods have no GPU", "add --gpus-per-worker 1"
        problems.append(Problem(what, hint, "--device"))
    if plan.elastic is not None:
        what = "workers of an elastic run share the memory of one machine, and those in pods share none"
        problems.append(Problem(what, "use --restarts 3 instead of --elastic", "--elastic"))
    participants = plan.num_workers + (plan.transport is Transport.TCP)
    places = worker.cpus // plan.threads_per_worker
    placement = None if plan.ray is None else plan.ray.placement
    room = pods * places
    if placement is Placement.STRICT_SPREAD:
        room = pods * min(1, places)
    elif placement is Placement.STRICT_PACK:
        room = places
    if room < participants:
        what = f"the run has {participants} participants with {plan.threads_per_worker} threads each, but "
        what += f"{pods} worker pods with {worker.cpus} CPUs have room for {room}"
        cpus = plan.threads_per_worker * math.ceil(participants / pods)
        hint = f"write --worker-cpus {max(cpus, worker.cpus)}"
        if placement is not None:
            hint += ", or leave placement out"
        problems.append(Problem(what, hint))
    return problems

"""What does a wish mean for a job that torchrun starts? One intent, whatever kind of object asks for it.

Either a complete intent, or a ConfigError with every problem.
"""

from dataclasses import dataclass, replace

from paceline.config.facts import Facts
from paceline.config.train_config import TrainConfig
from paceline.config.world import World
from paceline.errors import ManifestError, Problem
from paceline.kube.command import facts_in_pods, flags_of, plan_of, worker_command
from paceline.kube.intent import Claim, ConfigFile, Intent, Pods, Profile, Rendezvous, Torch, Volume
from paceline.kube.render import Target
from paceline.kube.torch_checks import find_in_torch_wishes
from paceline.kube.torch_flags import (
    clashes,
    find_taken,
    read_claims,
    read_labels,
    read_variables,
    read_volumes,
    secret_of,
)
from paceline.kube.torch_parts import CONFIG, PORT, RESULTS
from paceline.kube.well_known import INSTANCE_TYPE
from paceline.kube.wishes import Wishes, find_in_names, read_range, read_secrets, untold
from paceline.plan.plan import Launcher

LONGEST_NAME = 40  # operators add to it, and 63 is the most that a pod may be called


@dataclass(frozen=True, slots=True, kw_only=True)
class Travelling:
    """A file of settings that goes with the job, and what was said beside it."""

    file: ConfigFile
    beside: TrainConfig


def torch_intent_of(
    config: TrainConfig, wishes: Wishes, target: Target, travelling: Travelling | None = None
) -> Intent:
    torch = wishes.torch
    procs = torch.procs_per_node or max(1, torch.gpus_per_node)
    pods, problems = _pods(wishes)
    config, more = _sized(config, pods.wanted * procs)
    facts = _facts(config, pods.wanted, procs, wishes)
    plan = plan_of(config, facts)
    read, unread = _read(wishes, pods.most)
    said = [*wishes.secret_env, *([secret_of(torch.hf_secret)] if torch.hf_secret else [])]
    secrets, unknown = read_secrets(said)
    problems += [*more, *unread, *unknown, *find_in_names(plan.run, wishes, LONGEST_NAME), *untold(config)]
    problems += find_taken((one.name for one in secrets), "--secret-env")
    problems += find_in_torch_wishes(plan, wishes, target, procs)
    results, elsewhere = _results(config, read.checkpoints)
    problems += elsewhere
    if problems:
        raise ManifestError(problems)
    file = None if travelling is None else travelling.file
    made = Torch(procs=procs, program=_program(wishes, target), results=results, config=file)
    return Intent(
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
        torch=_torch(made, wishes, read, plan.run),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What flags say in words of their own."""

    volumes: tuple[Volume, ...]
    checkpoints: Volume | None
    claims: tuple[Claim, ...]
    variables: tuple[tuple[str, str], ...]
    node_labels: tuple[tuple[str, str], ...]


def _read(wishes: Wishes, nodes: int) -> tuple[_Reading, list[Problem]]:
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
    return reading, [*problems, *unread, *unknown, *odd, *strange, *clashes(volumes)]


def _torch(made: Torch, wishes: Wishes, read: _Reading, name: str) -> Torch:
    said = wishes.torch
    return replace(
        made,
        rendezvous=_rendezvous(wishes),
        shm=said.shm,
        has_gpu_claims=said.gpu_claims,
        efa=said.efa,
        volumes=read.volumes,
        claims=read.claims,
        variables=read.variables,
        node_labels=read.node_labels,
        queue=said.queue,
        priority=said.priority,
        service_account=name if said.rbac else said.service_account,
        has_cache=said.hf_secret is not None,
        has_debug=said.torch_debug,
        has_rbac=said.rbac,
        has_network_policy=said.network_policy,
        trainer=said.trainer,
        runtime=said.runtime,
        spares=said.spares,
    )


def _program(wishes: Wishes, target: Target) -> str:
    usual = "hyperpodrun" if target is Target.HYPERPOD else "/opt/conda/bin/torchrun"
    return wishes.torch.torchrun or usual


def _rendezvous(wishes: Wishes) -> Rendezvous:
    return Rendezvous.C10D if wishes.torch.elastic_nodes else Rendezvous(wishes.torch.rdzv)


def _pods(wishes: Wishes) -> tuple[Pods, list[Problem]]:
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


def _facts(config: TrainConfig, nodes: int, procs: int, wishes: Wishes) -> Facts:
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
    config: TrainConfig, facts: Facts, results: str, wishes: Wishes, travelling: Travelling | None
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

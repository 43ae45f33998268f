"""What does a user's wish mean for the cluster? Settings of the run and flags of the job to one intent.

Either a complete intent, or a ConfigError with every problem. A job that cannot
fit into the pods it asks for is refused here, before anything exists.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.config.train_config import TrainConfig
from paceline.config.values import read_option
from paceline.errors import ManifestError, Problem
from paceline.kube.command import facts_in_pods, plan_of, train_command
from paceline.kube.intent import (
    RAY_VERSION,
    Claim,
    Intent,
    Limits,
    Pods,
    Profile,
    SecretVariable,
    Size,
    Volume,
)
from paceline.kube.torch_asked import TorchWishes
from paceline.kube.torch_flags import clashes, read_claims, read_volumes
from paceline.kube.words import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    IMAGE,
    LONGEST_LABEL,
    LONGEST_RAY_NAME,
    NAME,
    VARIABLE,
    read_quantity,
)
from paceline.plan.plan import Device, Launcher, Placement, Plan, Transport

_RANGE = re.compile(r"([0-9]{1,5}):([0-9]{1,5})")
_ALSO_FOR_RAY = ("--nodes", "--gpus-per-node", "--volume", "--create-volume")
_LEAST_MEMORY = 1 << 29  # Ray's own processes need about this much


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The flags of `job render` that are not settings of the run."""

    image: str
    namespace: str | None = None
    gpus_per_worker: int = 0
    autoscale: str | None = None  # MIN:MAX
    resizable: str | None = None  # MIN:MAX
    node_port: bool = False
    profile: str = Profile.STRICT
    head: Size = field(default_factory=Size)
    worker: Size = field(default_factory=Size)
    secret_env: Sequence[str] = ()  # VARIABLE=SECRET/KEY
    pull_secret: str | None = None
    limits: Limits = field(default_factory=Limits)
    ray_version: str = RAY_VERSION
    torch: TorchWishes = field(default_factory=TorchWishes)


def intent_of(config: TrainConfig, wishes: Wishes, found: Sequence[Problem] = ()) -> Intent:
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
    problems += [*unread, *find_in_names(plan.run, wishes, LONGEST_RAY_NAME), *_sizes(wishes)]
    problems += [*_ray_version(wishes), *untold(config), *_room(plan, worker, wanted), *odd]
    if problems:
        raise ManifestError(problems)
    return Intent(
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


def _on_ray(config: TrainConfig, wishes: Wishes) -> TrainConfig:
    if config.launcher not in (None, Launcher.RAY):
        what = f"launcher is {config.launcher}, but a job on a Ray cluster is launched by ray"
        raise ManifestError([Problem(what, "leave launcher out", config.origin("launcher"))])
    device = Device.CUDA if wishes.gpus_per_worker and config.device is None else config.device
    workers = config.num_workers
    if wishes.torch.nodes is not None and workers is None:
        workers = wishes.torch.nodes * max(1, wishes.gpus_per_worker)
    return replace(config, launcher=Launcher.RAY, address="auto", device=device, num_workers=workers)


def _by_nodes(wishes: Wishes) -> Wishes:
    """A node of other kinds of job is a worker pod of Ray's."""
    return replace(wishes, gpus_per_worker=wishes.gpus_per_worker or wishes.torch.gpus_per_node)


def _not_for_ray(wishes: Wishes) -> list[Problem]:
    said = [flag for flag in wishes.torch.said() if flag not in _ALSO_FOR_RAY]
    hint = "leave it out, or choose the target pytorchjob, trainjob, job or hyperpod"
    return [
        Problem(f"{flag} is for jobs that torchrun starts, and Ray starts these", hint, flag) for flag in said
    ]


def _volumes(wishes: Wishes) -> tuple[tuple[Volume, ...], tuple[Claim, ...], list[Problem]]:
    """A head and a worker are two pods at least, and may be on two nodes."""
    volumes, problems = read_volumes(wishes.torch.volumes, "--volume")
    claims, more = read_claims(wishes.torch.create_volumes, volumes, nodes=2)
    return volumes, claims, [*problems, *more, *clashes(volumes)]


def _pods(wanted: int, wishes: Wishes) -> tuple[Pods, list[Problem]]:
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


def read_range(
    flag: str, text: str, wanted: int, need: str, by: str
) -> tuple[tuple[int, int] | None, list[Problem]]:
    """MIN:MAX around what is wanted."""
    match = _RANGE.fullmatch(text)
    least, most = (int(match[1]), int(match[2])) if match else (1, 0)
    if least > most or most == 0:
        what = f"{flag} is {text!r}, but it must be MIN:MAX"
        return None, [Problem(what, f"write --{flag} 1:3, for example", f"--{flag}")]
    if not least <= wanted <= most:
        what = f"{flag} is {text}, but {need.format(wanted)}"
        hint = f"write --{flag} {min(least, wanted)}:{max(most, wanted)}, or change {by}"
        return None, [Problem(what, hint, f"--{flag}")]
    return (least, most), []


def read_secrets(texts: Sequence[str]) -> tuple[tuple[SecretVariable, ...], list[Problem]]:
    found: list[SecretVariable] = []
    problems: list[Problem] = []
    for text in texts:
        name, _, reference = text.partition("=")
        secret, _, key = reference.partition("/")
        if (
            VARIABLE.fullmatch(name)
            and DNS_SUBDOMAIN.fullmatch(secret)
            and re.fullmatch(r"[-._A-Za-z0-9]+", key)
        ):
            found.append(SecretVariable(name=name, secret=secret, key=key))
            continue
        # What was typed may be the secret itself, so only the variable's name is shown.
        what = f"secret_env for {name[:40]!r} is not VARIABLE=SECRET/KEY"
        hint = (
            "name a Secret of the cluster and a key in it, such as HF_TOKEN=hf-token/token; never the value"
        )
        problems.append(Problem(what, hint, "--secret-env"))
    return tuple(found), problems


def find_in_names(run: str, wishes: Wishes, longest: int) -> list[Problem]:
    """What no object, namespace, Secret or image can be called."""
    problems: list[Problem] = []
    if not NAME.fullmatch(run) or len(run) > longest:
        what = f"name is {run!r}, but Kubernetes wants a small letter, then letters, digits and dashes"
        what += f", {longest} at most"
        problems.append(Problem(what, "write --name demo, for example", "--name"))
    space = wishes.namespace
    if space is not None and (not DNS_LABEL.fullmatch(space) or len(space) > LONGEST_LABEL):
        what = f"namespace is {space!r}, which no namespace can be called"
        problems.append(Problem(what, "write --namespace ml-training, for example", "--namespace"))
    if wishes.pull_secret is not None and not DNS_SUBDOMAIN.fullmatch(wishes.pull_secret):
        what = f"pull_secret is {wishes.pull_secret!r}, which no Secret can be called"
        problems.append(Problem(what, "name a Secret of type dockerconfigjson", "--pull-secret"))
    return [*problems, *_image(wishes)]


def _ray_version(wishes: Wishes) -> list[Problem]:
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", wishes.ray_version):
        return []
    what = f"ray_version is {wishes.ray_version!r}, but it must be that of the image, such as {RAY_VERSION}"
    return [Problem(what, f"write --ray-version {RAY_VERSION}", "--ray-version")]


def _image(wishes: Wishes) -> list[Problem]:
    match = IMAGE.fullmatch(wishes.image)
    if match is None:
        what, hint = f"image is {wishes.image!r}, which no image can be called", "write registry/name:tag"
    elif match["digest"] is None and match["tag"] in (None, "latest") and wishes.profile == Profile.STRICT:
        what = f"image is {wishes.image}, which may be another one at the next attempt"
        hint = "name a tag that stays, such as :1, or a digest; or use --profile compat"
    else:
        return []
    return [Problem(what, hint, "--image")]


def _sizes(wishes: Wishes) -> list[Problem]:
    problems: list[Problem] = []
    for who, size in (("head", wishes.head), ("worker", wishes.worker)):
        memory = read_quantity(size.memory)
        if memory is None or memory < _LEAST_MEMORY:
            what = f"{who}_memory is {size.memory!r}, but it must be an amount of at least 512Mi"
            problems.append(Problem(what, f"write --{who}-memory 4Gi, for example", f"--{who}-memory"))
    return problems


def untold(config: TrainConfig) -> list[Problem]:
    """What a command line in a pod cannot say."""
    problems: list[Problem] = []
    if any(rule.steps is not None for rule in config.straggler or ()):
        what, hint = "a trace of stragglers is a file of this machine", "use rules, such as worker=1,factor=3"
        problems.append(Problem(what, hint, config.origin("straggler")))
    for name, value in (config.task_options or {}).items():
        if isinstance(value, str) and read_option(value) != value:
            what = f"task option {name} is the text {value!r}, which a command line would read as a number"
            where = config.origin(f"task_options.{name}")
            problems.append(Problem(what, "let the task read it as a number, or another word", where))
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

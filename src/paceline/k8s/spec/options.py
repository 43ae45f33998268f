"""What does a user's wish mean for the cluster? Settings of the run and flags of the job to one intent.

Either a complete intent, or a ConfigError with every problem. A job that cannot
fit into the pods it asks for is refused here, before anything exists.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from paceline.config.train_config import TrainConfig
from paceline.config.values import read_option
from paceline.core.errors import ManifestError, Problem
from paceline.k8s.objects import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    IMAGE,
    LABEL_KEY,
    LABEL_VALUE,
    MAX_LABEL_LENGTH,
    MAX_RAY_NAME_LENGTH,
    NAME,
    VARIABLE,
    read_quantity,
)
from paceline.k8s.spec.command import facts_in_pods, plan_of, train_command
from paceline.k8s.spec.job import (
    RAY_VERSION,
    Claim,
    JobSpec,
    Limits,
    Pods,
    Profile,
    SecretVariable,
    Size,
    Volume,
)
from paceline.plan.plan import Device, Launcher, Placement, Plan, Transport

TRAINERS = ("2.1", "2.2", "2.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunOptions:
    nodes: int | None = None  # None: one
    gpus_per_node: int = 0
    gpu_claims: bool = False  # by DRA, where no device plugin offers nvidia.com/gpu
    procs_per_node: int | None = None  # None: one for each GPU, or one
    torchrun: str | None = None  # None: where the images of conda have it
    rdzv: str = "static"
    elastic_nodes: str | None = None  # MIN:MAX
    efa: int = 0
    shm: str = "1Gi"
    checkpoint_volume: str | None = None  # CLAIM[:PATH]
    volumes: Sequence[str] = ()  # CLAIM:PATH[:ro]
    create_volumes: Sequence[str] = ()  # CLAIM=SIZE[/STORAGECLASS]
    config_map: bool = False
    env: Sequence[str] = ()  # NAME=VALUE
    torch_debug: bool = False
    hf_secret: str | None = None  # SECRET[/KEY]
    instance_type: str | None = None
    node_selector: Sequence[str] = ()  # KEY=VALUE
    queue: str | None = None
    priority: str | None = None
    service_account: str | None = None
    rbac: bool = False
    network_policy: bool = False
    trainer: str = "2.3"
    runtime: str | None = None  # [KIND/]NAME
    spares: int = 0
    allow_restart_from_zero: bool = False

    def said(self) -> list[str]:
        """The flags that were said."""
        usual = TorchrunOptions()
        names = [one.name for one in fields(self) if getattr(self, one.name) != getattr(usual, one.name)]
        return [f"--{_FLAGS.get(name, name).replace('_', '-')}" for name in names]


_FLAGS = {"volumes": "volume", "create_volumes": "create_volume"}


# Each reader gives what it understood, and a problem for what it did not.

Item = TypeVar("Item")
Parsed = tuple[tuple[Item, ...], list[Problem]]

_PATH = re.compile(r"/[A-Za-z0-9._/-]*[A-Za-z0-9._-]")
# Ours, torchrun's and the operators': whoever changes them contradicts the manifest.
_TAKEN = re.compile(r"PET_.*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|JOB_NAME")
_OURS = ("/dev/shm", "/config", "/cache", "/results")


def read_volumes(texts: Sequence[str], flag: str) -> Parsed[Volume]:
    """CLAIM:PATH[:ro]"""
    found: list[Volume] = []
    problems: list[Problem] = []
    for text in texts:
        claim, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if DNS_LABEL.fullmatch(claim) and len(claim) <= 63 and _PATH.fullmatch(path) and mode in ("", "ro"):
            found.append(Volume(claim=claim, path=path, is_read_only=mode == "ro"))
        else:
            what = f"{flag.removeprefix('--')} is {text!r}, but it must be CLAIM:PATH, or CLAIM:PATH:ro"
            problems.append(Problem(what, f"write {flag} data:/data:ro, for example", flag))
    return tuple(found), problems


def find_mount_conflicts(volumes: Sequence[Volume]) -> list[Problem]:
    """Two volumes at one place, one claim twice, or one where something else is."""
    problems: list[Problem] = []
    paths = [volume.path.rstrip("/") for volume in volumes]
    for path in sorted({path for path in paths if paths.count(path) > 1 or path in _OURS}):
        what = f"{path} is where something else is mounted already"
        problems.append(Problem(what, "choose another path, such as /data", "--volume"))
    claims = [volume.claim for volume in volumes]
    for claim in sorted({claim for claim in claims if claims.count(claim) > 1}):
        problems.append(Problem(f"claim {claim} is mounted twice", "mount it once", "--volume"))
    for claim in sorted({"shm", "config", "cache", "results"}.intersection(claims)):
        what = f"claim {claim} has the name of a volume that every pod has"
        problems.append(Problem(what, "give the claim another name", "--volume"))
    return problems


def read_claims(texts: Sequence[str], volumes: Sequence[Volume], nodes: int) -> Parsed[Claim]:
    """CLAIM=SIZE[/STORAGECLASS]; the number of nodes says who must be able to reach it."""
    found: list[Claim] = []
    problems: list[Problem] = []
    mounted = {volume.claim for volume in volumes}
    for text in texts:
        name, _, rest = text.partition("=")
        size, _, storage = rest.partition("/")
        amount = read_quantity(size)
        if amount is None or amount < 1 or (storage and not DNS_SUBDOMAIN.fullmatch(storage)):
            what = f"create_volume is {text!r}, but it must be CLAIM=SIZE, or CLAIM=SIZE/STORAGECLASS"
            problems.append(Problem(what, "write --create-volume data=10Gi, for example", "--create-volume"))
        elif name not in mounted:
            what = f"create_volume names {name!r}, which no pod mounts"
            hint = "mount it by --volume or --checkpoint-volume, or leave it out"
            problems.append(Problem(what, hint, "--create-volume"))
        else:
            # Also for reading only: it must be filled first, and few drivers take two modes, or ReadOnlyMany.
            mode = "ReadWriteMany" if nodes > 1 else "ReadWriteOnce"
            found.append(Claim(name=name, size=size, storage_class=storage or None, modes=(mode,)))
    return tuple(found), problems


def read_variables(texts: Sequence[str]) -> Parsed[tuple[str, str]]:
    """NAME=VALUE. Whether a value is a secret is asked of the finished manifest."""
    found: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            # What was typed may be a secret, so only the name is shown.
            what = f"env for {name[:40]!r} is not NAME=VALUE"
            problems.append(Problem(what, "write --env OMP_NUM_THREADS=4, for example", "--env"))
        elif taken := find_reserved([name], "--env"):
            problems += taken
        else:
            found.append((name, value))
    return tuple(found), problems


def find_reserved(names: Iterable[str], flag: str) -> list[Problem]:
    hint, said = "leave it out: it is set for every pod", flag.removeprefix("--").replace("-", "_")
    return [
        Problem(f"{said} sets {name}, which says who is who in a job", hint, flag)
        for name in names
        if _TAKEN.fullmatch(name)
    ]


def read_labels(texts: Sequence[str], flag: str) -> Parsed[tuple[str, str]]:
    """KEY=VALUE of nodes."""
    found: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if equals and LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) and len(value) <= 63:
            found.append((key, value))
        else:
            what = f"{flag.removeprefix('--').replace('-', '_')} is {text!r}, but it must be KEY=VALUE"
            problems.append(Problem(what, f"write {flag} disktype=ssd, for example", flag))
    return tuple(found), problems


def secret_of(text: str) -> str:
    """SECRET[/KEY] as VARIABLE=SECRET/KEY, which is read, and complained about, in one place."""
    secret, _, key = text.partition("/")
    return f"HF_TOKEN={secret}/{key or 'token'}"


_RANGE = re.compile(r"([0-9]{1,5}):([0-9]{1,5})")
_ALSO_FOR_RAY = ("--nodes", "--gpus-per-node", "--volume", "--create-volume")
_LEAST_MEMORY = 1 << 29  # Ray's own processes need about this much


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
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
    torch: TorchrunOptions = field(default_factory=TorchrunOptions)


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


def check_names(run: str, wishes: JobOptions, longest: int) -> list[Problem]:
    """What no object, namespace, Secret or image can be called."""
    problems: list[Problem] = []
    if not NAME.fullmatch(run) or len(run) > longest:
        what = f"name is {run!r}, but Kubernetes wants a small letter, then letters, digits and dashes"
        what += f", {longest} at most"
        problems.append(Problem(what, "write --name demo, for example", "--name"))
    space = wishes.namespace
    if space is not None and (not DNS_LABEL.fullmatch(space) or len(space) > MAX_LABEL_LENGTH):
        what = f"namespace is {space!r}, which no namespace can be called"
        problems.append(Problem(what, "write --namespace ml-training, for example", "--namespace"))
    if wishes.pull_secret is not None and not DNS_SUBDOMAIN.fullmatch(wishes.pull_secret):
        what = f"pull_secret is {wishes.pull_secret!r}, which no Secret can be called"
        problems.append(Problem(what, "name a Secret of type dockerconfigjson", "--pull-secret"))
    return [*problems, *_image(wishes)]


def _ray_version(wishes: JobOptions) -> list[Problem]:
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", wishes.ray_version):
        return []
    what = f"ray_version is {wishes.ray_version!r}, but it must be that of the image, such as {RAY_VERSION}"
    return [Problem(what, f"write --ray-version {RAY_VERSION}", "--ray-version")]


def _image(wishes: JobOptions) -> list[Problem]:
    match = IMAGE.fullmatch(wishes.image)
    if match is None:
        what, hint = f"image is {wishes.image!r}, which no image can be called", "write registry/name:tag"
    elif match["digest"] is None and match["tag"] in (None, "latest") and wishes.profile == Profile.STRICT:
        what = f"image is {wishes.image}, which may be another one at the next attempt"
        hint = "name a tag that stays, such as :1, or a digest; or use --profile compat"
    else:
        return []
    return [Problem(what, hint, "--image")]


def _sizes(wishes: JobOptions) -> list[Problem]:
    problems: list[Problem] = []
    for who, size in (("head", wishes.head), ("worker", wishes.worker)):
        memory = read_quantity(size.memory)
        if memory is None or memory < _LEAST_MEMORY:
            what = f"{who}_memory is {size.memory!r}, but it must be an amount of at least 512Mi"
            problems.append(Problem(what, f"write --{who}-memory 4Gi, for example", f"--{who}-memory"))
    return problems


def find_inexpressible_settings(config: TrainConfig) -> list[Problem]:
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

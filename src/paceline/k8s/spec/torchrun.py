"""The spec of a job that torchrun starts, the same for every kind of object.

Either a complete intent, or a ConfigError with every problem.
"""

import re
from dataclasses import dataclass, replace

from paceline.config.environment import Facts, World
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ManifestError, Problem
from paceline.k8s.objects import DNS_SUBDOMAIN, read_quantity
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
    NodeRange,
    Pods,
    Profile,
    Rendezvous,
    SecretVariable,
    Target,
    TorchrunSpec,
    Volume,
)
from paceline.k8s.spec.options import PodFields, explicit_flags
from paceline.k8s.spec.pods import read_pod_fields
from paceline.k8s.spec.readers import (
    check_names,
    find_inexpressible_settings,
    find_mount_conflicts,
    find_reserved,
    read_claims,
    read_range,
    read_secrets,
    read_volumes,
    secret_of,
)
from paceline.k8s.spec.script import JobScript
from paceline.plan.plan import Device, Launcher, Plan

LEAST_MEMORY = 1 << 29  # torch alone needs about this much
_PROGRAM = re.compile(r"[A-Za-z0-9._/-]+")
_RDZV_ID = re.compile(r"[A-Za-z0-9._-]+")
_HOST = re.compile(r"[A-Za-z0-9.$()_:-]*[A-Za-z0-9)]")  # also $(VARIABLE), which the kubelet expands
_ENDPOINT = re.compile(r"[A-Za-z0-9.$()_-]+(:[0-9]{1,5})?")
_RUNTIME = re.compile(r"((Cluster)?TrainingRuntime/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def check_torchrun_options(plan: Plan, options: JobOptions, target: Target, procs: int) -> list[Problem]:
    return [*_check_room(plan, options, procs), *_restarts(plan, options), *check_pods(options, target)]


def check_pods(options: JobOptions, target: Target) -> list[Problem]:
    """Problems of the pods alone, whatever runs in them."""
    problems = [*_ray_only_options(options), *_check_memory(options), *_check_names(options)]
    problems += [*_claims(options, target), *_trainer(options, target), *_hyperpod(options, target)]
    return [*problems, *_rendezvous_problems(options, target)]


def _rendezvous_problems(options: JobOptions, target: Target) -> list[Problem]:
    """Flags that torchrun, or its replacement, would ignore."""
    backend = _rendezvous(options)
    ignored = ("--master-addr", "--master-port") if backend is Rendezvous.C10D else ("--rdzv-endpoint",)
    hint = "write --rdzv-endpoint HOST:PORT" if backend is Rendezvous.C10D else "write --master-addr HOST"
    problems: list[Problem] = []
    for flag in explicit_flags(options.rendezvous):
        if target is Target.HYPERPOD and flag != "--max-restarts":
            message = f"{flag} is set, but HyperPod's agent controls the rendezvous"
            problems.append(Problem(message, "leave it out", flag))
        elif flag in ignored:
            message = f"{flag} is set, but it is not used by the rendezvous backend {backend}"
            problems.append(Problem(message, f"{hint}, or choose another --rdzv", flag))
    for name, pattern, example in (
        ("rdzv_id", _RDZV_ID, "my-job"),
        ("rdzv_endpoint", _ENDPOINT, "node-0.example.com:29400"),
        ("master_addr", _HOST, "node-0.example.com"),
    ):
        value = getattr(options.rendezvous, name)
        if value is not None and not pattern.fullmatch(value):
            flag = f"--{name.replace('_', '-')}"
            problems.append(Problem(f"{name} is {value!r}", f"write {flag} {example}, for example", flag))
    return problems


def _claims(options: JobOptions, target: Target) -> list[Problem]:
    torch = options.torch
    if not torch.gpu_claims:
        return []
    if target is Target.TRAINJOB:
        message = "gpu_claims is set, but a TrainJob does not support claims"
        return [Problem(message, "use the target pytorchjob or job", "--gpu-claims")]
    if not torch.gpus_per_node:
        message = "gpu_claims is set, but no GPU is requested"
        return [Problem(message, "add --gpus-per-node 8, for example", "--gpu-claims")]
    return []


def _ray_only_options(options: JobOptions) -> list[Problem]:
    defaults = JobOptions(image=options.image)
    names = ("gpus_per_worker", "autoscale", "resizable", "node_port", "head", "ray_version")
    hints = {"gpus_per_worker": "write --gpus-per-node", "autoscale": "write --elastic-nodes 1:3"}
    problems: list[Problem] = []
    for name in names:
        if getattr(options, name) != getattr(defaults, name):
            flag = "--head-cpus or --head-memory" if name == "head" else f"--{name.replace('_', '-')}"
            hint = hints.get(name, "leave it out, or choose the target rayjob or raycluster")
            problems.append(Problem(f"{flag} is an option of Ray jobs, not of torchrun jobs", hint, flag))
    return problems


def _check_room(plan: Plan, options: JobOptions, procs: int) -> list[Problem]:
    problems: list[Problem] = []
    torch = options.torch
    size = options.worker
    if plan.device is Device.CUDA and torch.gpus_per_node != procs:
        message = f"there are {procs} processes per node, but {torch.gpus_per_node} GPUs"
        problems.append(
            Problem(message, f"write --gpus-per-node {procs}: one per process", "--gpus-per-node")
        )
    if size.cpus < procs * plan.threads_per_worker:
        message = (
            f"{procs} processes with {plan.threads_per_worker} threads each do not fit on {size.cpus} CPUs"
        )
        hint = f"write --worker-cpus {procs * plan.threads_per_worker}"
        problems.append(Problem(message, hint, "--worker-cpus"))
    return problems


def _check_memory(options: JobOptions) -> list[Problem]:
    torch = options.torch
    size = options.worker
    problems: list[Problem] = []
    memory = read_quantity(size.memory)
    shm = read_quantity(torch.shm)
    if memory is None or memory < LEAST_MEMORY:
        message = f"worker_memory is {size.memory!r}, but it must be an amount of at least 512Mi"
        problems.append(Problem(message, "write --worker-memory 4Gi, for example", "--worker-memory"))
    elif shm is None or not 0 < shm < memory:
        message = f"shm is {torch.shm!r}, but it must be an amount below the pod's memory, {size.memory}"
        problems.append(Problem(message, "write --shm 1Gi, or a larger --worker-memory", "--shm"))
    return problems


def _check_names(options: JobOptions) -> list[Problem]:
    """Names that must be names."""
    torch = options.torch
    rules = (
        ("torchrun", torch.torchrun, _PROGRAM, "/opt/conda/bin/torchrun"),
        ("service_account", torch.service_account, DNS_SUBDOMAIN, "trainer"),
        ("runtime", torch.runtime, _RUNTIME, "torch-distributed"),
    )
    problems: list[Problem] = []
    for name, given, pattern, example in rules:
        if given is not None and not pattern.fullmatch(given):
            flag = f"--{name.replace('_', '-')}"
            problems.append(Problem(f"{name} is {given!r}", f"write {flag} {example}, for example", flag))
    problems += check_identity(options)
    if torch.rbac and torch.service_account is not None:
        message = "rbac creates a service account, but service_account names an existing one"
        problems.append(Problem(message, "keep one of the two", "--rbac"))
    return problems


def check_identity(options: JobOptions) -> list[Problem]:
    if not options.torch.rbac or options.namespace is not None:
        return []
    message = "rbac is set, but a RoleBinding needs the namespace of its account"
    return [Problem(message, "add --namespace ml-training, for example", "--rbac")]


def _restarts(plan: Plan, options: JobOptions) -> list[Problem]:
    torch = options.torch
    if not options.limits.retries or torch.allow_restart_from_zero:
        return []
    hint = "or add --allow-restart-from-zero"
    if torch.checkpoint_volume is None:
        message = f"retries is {options.limits.retries}, but checkpoints are lost with the pod"
        return [Problem(message, f"add --checkpoint-volume CLAIM, {hint}", "--retries")]
    if not plan.checkpoint_every:
        message = f"retries is {options.limits.retries}, but the first checkpoint is written at the end"
        return [Problem(message, f"add --checkpoint-every 100, {hint}", "--retries")]
    return []


# Fields that a TrainJob's patches of its runtime have.
_IN_PATCHES = ("--toleration", "--label", "--annotation", "--ephemeral-storage")
_IN_RUNTIME = "set it in the runtime, or leave --runtime out"


def _trainer(options: JobOptions, target: Target) -> list[Problem]:
    torch = options.torch
    problems: list[Problem] = []
    if torch.trainer not in TRAINERS:
        message = f"trainer is {torch.trainer!r}, but it must be one of {', '.join(TRAINERS)}"
        problems.append(Problem(message, "write --trainer 2.3, for example", "--trainer"))
    if target is not Target.TRAINJOB:
        flags = [flag for flag in explicit_flags(torch) if flag in ("--trainer", "--runtime")]
        return problems + [
            Problem(f"{flag} is an option of trainjob", "leave it out", flag) for flag in flags
        ]
    if torch.runtime is not None:
        problems += [
            Problem(
                f"{flag} is set, but a TrainJob cannot set it in the pods of an existing runtime",
                _IN_RUNTIME,
                flag,
            )
            for flag in explicit_flags(options.pod)
            if flag not in _IN_PATCHES
        ]
    if torch.elastic_nodes is not None:
        message = "elastic_nodes is set, but a TrainJob has a fixed number of nodes"
        problems.append(Problem(message, "use --rdzv c10d, or the target pytorchjob", "--elastic-nodes"))
    return problems


def _hyperpod(options: JobOptions, target: Target) -> list[Problem]:
    torch = options.torch
    if target is not Target.HYPERPOD:
        return (
            [Problem("--spares is an option of hyperpod", "leave it out", "--spares")] if torch.spares else []
        )
    problems: list[Problem] = []
    for flag in ("--rdzv", "--elastic-nodes"):
        if flag in explicit_flags(torch):
            message = f"{flag} is set, but HyperPod's agent controls the rendezvous"
            problems.append(Problem(message, "leave it out", flag))
    if torch.network_policy:
        message = "a network policy would block HyperPod's operator from its agents"
        problems.append(Problem(message, "leave it out", "--network-policy"))
    if torch.instance_type is not None and not torch.instance_type.startswith("ml."):
        message = f"instance_type is {torch.instance_type}, but instance types of HyperPod start with ml."
        problems.append(
            Problem(message, f"write --instance-type ml.{torch.instance_type}", "--instance-type")
        )
    return problems


MAX_NAME_LENGTH = 40  # operators add to it, and 63 is the most that a pod may be called


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedConfig:
    """A config file that is shipped with the job, and the settings given in addition."""

    file: ConfigFile
    beside: TrainConfig


def build_torchrun_spec(
    config: TrainConfig,
    options: JobOptions,
    target: Target,
    travelling: AttachedConfig | None = None,
    script: JobScript | None = None,
) -> JobSpec:
    torch = options.torch
    procs = torch.procs_per_node or max(1, torch.gpus_per_node)
    pods, problems = torchrun_pods(options)
    config, more = _sized(config, pods.wanted * procs)
    facts = _facts(config, pods.wanted, procs, options)
    plan = plan_of(config, facts)
    read, unread = read_parts(config, options, plan.run, pods.most)
    if torch.coordinator is not None:
        message = "coordinator is set, but the run is not elastic"
        problems.append(Problem(message, "add --elastic, or leave it out", "--coordinator"))
    problems += [*more, *unread, *check_torchrun_options(plan, options, target, procs)]
    if problems:
        raise ManifestError(problems)
    return assemble_spec(
        plan.run,
        options,
        read,
        pods,
        command=_command(config, facts, read.results, options, travelling, script),
        procs=procs,
        program=torchrun_program(options, target),
        files=travelling_files(None if travelling is None else travelling.file, script),
        script_sha256=None if script is None else script.sha256,
    )


def assemble_spec(
    run: str,
    options: JobOptions,
    read: "OptionParts",
    pods: Pods,
    *,
    command: tuple[str, ...],
    procs: int,
    program: str,
    files: tuple[ConfigFile, ...],
    script_sha256: str | None,
    is_raw: bool = False,
) -> JobSpec:
    """`run`: the name of the job. `is_raw`: `command` is the whole command, without torchrun."""
    torch = options.torch
    spec = TorchrunSpec(
        options=torch,
        procs=procs,
        program=program,
        rendezvous=_rendezvous(options),
        results=read.results,
        volumes=read.volumes,
        claims=read.claims,
        service_account=run if torch.rbac else torch.service_account,
        has_cache=torch.hf_secret is not None,
        is_raw=is_raw,
    )
    return JobSpec(
        name=run,
        image=options.image,
        pods=pods,
        command=command,
        namespace=options.namespace,
        head=options.head,
        worker=replace(options.worker, gpus=torch.gpus_per_node),
        profile=Profile(options.profile),
        secrets=read.secrets,
        pull_secret=options.pull_secret,
        limits=options.limits,
        rendezvous=options.rendezvous,
        fields=read.fields,
        torch=spec,
        files=files,
        script_sha256=script_sha256,
    )


def travelling_files(config: ConfigFile | None, script: JobScript | None) -> tuple[ConfigFile, ...]:
    files = () if script is None else script.files
    return files if config is None else (config, *files)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionParts:
    """Options that are texts of several parts, parsed."""

    volumes: tuple[Volume, ...]
    claims: tuple[Claim, ...]
    fields: PodFields
    secrets: tuple[SecretVariable, ...]
    results: str  # the folder that holds the run's


def read_parts(
    config: TrainConfig, options: JobOptions, run: str, nodes: int
) -> tuple[OptionParts, list[Problem]]:
    """The parts, and every problem of names and texts."""
    torch = options.torch
    checkpoint = [] if torch.checkpoint_volume is None else [torch.checkpoint_volume]
    checkpoint = [text if ":" in text else f"{text}:/checkpoints" for text in checkpoint]
    checkpoints, problems = read_volumes(checkpoint, "--checkpoint-volume")
    more_volumes, unread = read_volumes(torch.volumes, "--volume")
    volumes = (*checkpoints, *more_volumes)
    claims, unknown = read_claims(torch.create_volumes, volumes, nodes)
    pod_fields, odd = read_pod_fields(options)
    hf_secret = [secret_of(torch.hf_secret)] if torch.hf_secret else []
    secrets, unreadable = read_secrets([*options.secret_env, *hf_secret])
    results, elsewhere = _results(config, checkpoints[0] if checkpoints else None)
    if checkpoints and checkpoints[0].is_read_only:
        hint = "leave :ro out"
        problems = [*problems, Problem("checkpoint_volume cannot be read-only", hint, "--checkpoint-volume")]
    problems = [*problems, *unread, *unknown, *odd, *unreadable, *find_mount_conflicts(volumes)]
    problems += [
        *check_names(run, options, MAX_NAME_LENGTH),
        *find_inexpressible_settings(config),
        *find_reserved((secret.name for secret in secrets), "--secret-env"),
        *elsewhere,
    ]
    parts = OptionParts(
        volumes=volumes,
        claims=claims,
        fields=pod_fields,
        secrets=secrets,
        results=results,
    )
    return parts, problems


def torchrun_program(options: JobOptions, target: Target) -> str:
    default = "hyperpodrun" if target is Target.HYPERPOD else "/opt/conda/bin/torchrun"
    return options.torch.torchrun or default


def _rendezvous(options: JobOptions) -> Rendezvous:
    return Rendezvous.C10D if options.torch.elastic_nodes else Rendezvous(options.torch.rdzv)


def torchrun_pods(options: JobOptions) -> tuple[Pods, list[Problem]]:
    nodes = options.torch.nodes or 1
    if isinstance(nodes, NodeRange):
        return Pods(wanted=nodes.most, least=nodes.most, most=nodes.most), [range_problem(nodes)]
    text = options.torch.elastic_nodes
    fixed = Pods(wanted=nodes, least=nodes, most=nodes)
    if text is None:
        return fixed, []
    bounds, problems = read_range("elastic-nodes", text, nodes, "the job has {} nodes", "--nodes")
    return (fixed if bounds is None else Pods(wanted=nodes, least=bounds[0], most=bounds[1])), problems


def range_problem(nodes: NodeRange) -> Problem:
    message = f"nodes is the range {nodes}, but the run is not elastic"
    return Problem(message, f"add --elastic, or write --nodes {nodes.most}", "--nodes")


def _sized(config: TrainConfig, size: int) -> tuple[TrainConfig, list[Problem]]:
    """The number of workers and the launcher are torchrun's."""
    problems: list[Problem] = []
    if config.launcher not in (None, Launcher.TORCHRUN):
        message = f"launcher is {config.launcher}, but this job is launched by torchrun"
        problems.append(Problem(message, "leave launcher out", config.origin("launcher")))
    if config.num_workers not in (None, size):
        message = f"num_workers is {config.num_workers}, but nodes and processes per node make {size}"
        hint = "leave num_workers out: --nodes and --gpus-per-node (or --procs-per-node) set it"
        problems.append(Problem(message, hint, config.origin("num_workers")))
    return _unsized(config), problems


def _unsized(config: TrainConfig) -> TrainConfig:
    origins = {
        key: origin for key, origin in config.origins.items() if key not in ("launcher", "num_workers")
    }
    return replace(config, launcher=None, num_workers=None, origins=origins)


def _facts(config: TrainConfig, nodes: int, procs: int, options: JobOptions) -> Facts:
    host = None if nodes * procs == 1 else "node-0"
    world = World(size=nodes * procs, local_size=procs, host=host, port=PORT, has_agent=True)
    gpus = options.torch.gpus_per_node
    cpus = options.worker.cpus
    return replace(facts_in_pods(config), world=world, cuda_devices=gpus, cpu_count=cpus)


def _results(config: TrainConfig, checkpoints: Volume | None) -> tuple[str, list[Problem]]:
    """Parent of run folders: on the volume, or else in the pod, in a folder that its user may write."""
    folder = RESULTS if checkpoints is None else checkpoints.path
    for key in ("save_dir", "run_dir"):
        path = getattr(config, key)
        origin = config.origin(key) or ""
        if path is None or not origin.startswith("--"):
            continue  # a file sets the folder of results on the machine that it was written for
        if not (path == folder or path.startswith(f"{folder}/")):
            message = f"{key} is {path}, but only {folder} is kept"
            return folder, [Problem(message, f"name a folder in {folder}, or leave {key} out", origin)]
    return folder, []


def _command(
    config: TrainConfig,
    facts: Facts,
    results: str,
    options: JobOptions,
    travelling: AttachedConfig | None,
    script: JobScript | None,
) -> tuple[str, ...]:
    if travelling is None:
        argv = list(worker_command(without_paths(config), facts, has_script=script is not None))
    else:
        argv = ["-m", "paceline.worker", "--config", f"{CONFIG}/{travelling.file.name}"]
        argv += flags_of(without_paths(_unsized(travelling.beside)))
    if options.torch.gpus_per_node and "--device" not in argv:
        argv += ["--device", "cuda"]  # a GPU that does not work shall not go unnoticed
    argv += path_flags(config, results)
    argv += [] if options.torch.checkpoint_volume is None else ["--resume", "auto"]
    return tuple(argv) if script is None else (*argv, *script.command)


def without_paths(config: TrainConfig) -> TrainConfig:
    return replace(config, save_dir=None, run_dir=None)


def path_flags(config: TrainConfig, results: str) -> list[str]:
    for key in ("run_dir", "save_dir"):
        if (config.origin(key) or "").startswith("--"):
            return [f"--{key.replace('_', '-')}", str(getattr(config, key))]
    return ["--save-dir", results]

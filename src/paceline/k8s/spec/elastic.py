"""The spec of an elastic job: pods that each run an agent, and a pod with the command that directs them.

A host is a pod: `paceline agent` starts the workers in it. The command, `paceline train --elastic --launcher
agents`, runs in a pod of its own, without workers. Both find each other at a deployed coordinator. All hosts
of the range are requested, and the run begins when the fewest have come.
See docs/decisions/0064-elastic-kubernetes.md.
"""

import re
from dataclasses import replace

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ManifestError, Problem
from paceline.k8s.objects import DNS_LABEL, DRAINED, read_quantity
from paceline.k8s.spec.command import facts_in_pods, flags_of, plan_of, run_command, train_command
from paceline.k8s.spec.job import (
    CONFIG,
    AgentsSpec,
    JobOptions,
    JobSpec,
    NodeRange,
    Pods,
    Target,
)
from paceline.k8s.spec.options import explicit_flags
from paceline.k8s.spec.script import JobScript
from paceline.k8s.spec.torchrun import (
    LEAST_MEMORY,
    AttachedConfig,
    assemble_spec,
    check_torchrun_options,
    path_flags,
    read_parts,
    travelling_files,
    without_paths,
)
from paceline.plan.catalog import server_names
from paceline.plan.plan import Device, Launcher, Plan

DRAIN_S = 90  # of the 120 s that a pod has after SIGTERM; the rest is for what still has to be sent
_COORDINATOR = re.compile(r"(?P<name>[^:]+)(:(?P<nodes>[1-9]))?")
# Of torchrun, or of kinds whose operator restarts all pods.
_NOT_ELASTIC = ("--torchrun", "--rdzv", "--elastic-nodes", "--runtime", "--spares")


def build_elastic_spec(
    config: TrainConfig,
    options: JobOptions,
    target: Target,
    travelling: AttachedConfig | None = None,
    script: JobScript | None = None,
) -> JobSpec:
    """Raises ManifestError with every problem."""
    torch = options.torch
    nodes = node_range(options)
    procs = torch.procs_per_node or max(1, torch.gpus_per_node)
    problems = _refusals(options, target)
    coordinator, unknown = _coordinator(torch.coordinator)
    if problems or unknown:
        raise ManifestError([*problems, *unknown])
    assert coordinator is not None, "without one there is a problem"
    config, problems = _sized(config, nodes, procs)
    facts = replace(facts_in_pods(config), cuda_devices=torch.gpus_per_node, cpu_count=options.worker.cpus)
    if torch.gpus_per_node and config.device is None:
        config = replace(config, device=Device.CUDA)
    plan = plan_of(config, facts)
    read, unread = read_parts(config, options, plan.run, nodes.most)
    # The pod of the command has the size of Ray's head, and no GPUs.
    torchs = replace(options, head=JobOptions(image="").head)
    problems += [*unread, *check_torchrun_options(plan, torchs, target, procs), *_head(options)]
    if problems:
        raise ManifestError(problems)
    spec = assemble_spec(
        plan.run,
        options,
        read,
        Pods(wanted=nodes.most, least=nodes.least, most=nodes.most),
        command=_command(config, facts, read.results, options, travelling, script),
        procs=procs,
        program="paceline",
        files=travelling_files(None if travelling is None else travelling.file, script),
        script_sha256=None if script is None else script.sha256,
    )
    agents = AgentsSpec(
        coordinator=coordinator[0], coordinator_nodes=coordinator[1], agent=_agent(plan, procs)
    )
    return replace(spec, elastic=nodes, agents=agents)


def node_range(options: JobOptions) -> NodeRange:
    """Without a minimum one host is enough."""
    nodes = options.torch.nodes
    return nodes if isinstance(nodes, NodeRange) else NodeRange(1, nodes or 1)


def elastic_config(config: TrainConfig, nodes: NodeRange, procs: int) -> TrainConfig:
    """The run begins with all workers of the hosts that have come, at least with those of the fewest."""
    return replace(
        config,
        num_workers=nodes.most * procs,
        min_workers=config.min_workers or nodes.least * procs,
        elastic=True,
    )


def _sized(config: TrainConfig, nodes: NodeRange, procs: int) -> tuple[TrainConfig, list[Problem]]:
    problems: list[Problem] = []
    if config.launcher not in (None, Launcher.AGENTS):
        message = f"launcher is {config.launcher}, but an elastic job is launched by agents"
        problems.append(Problem(message, "leave launcher out", config.origin("launcher")))
    if config.num_workers not in (None, nodes.most * procs):
        message = f"num_workers is {config.num_workers}, but {nodes.most} nodes with {procs} workers each"
        hint = "leave num_workers out: --nodes and --gpus-per-node (or --procs-per-node) set it"
        problems.append(Problem(f"{message} make {nodes.most * procs}", hint, config.origin("num_workers")))
    return replace(elastic_config(config, nodes, procs), launcher=Launcher.AGENTS), problems


def _refusals(options: JobOptions, target: Target) -> list[Problem]:
    problems: list[Problem] = []
    if target is Target.HYPERPOD:
        message = "an elastic job needs pods that come and go, but HyperPod's operator restarts all of them"
        problems.append(Problem(message, "use the target pytorchjob, trainjob or job", "--elastic"))
    rendezvous = list(explicit_flags(options.rendezvous))
    for flag in (*explicit_flags(options.torch), *rendezvous):
        if flag in (*_NOT_ELASTIC, *rendezvous):
            message = f"{flag} is an option of jobs that torchrun starts, but this job is elastic"
            problems.append(Problem(message, "leave it out, or leave --elastic out", flag))
    return problems


def _coordinator(text: str | None) -> tuple[tuple[str, int] | None, list[Problem]]:
    if text is None:
        message = "an elastic job needs a coordinator in its namespace"
        hint = "deploy one with `paceline cluster deploy apply coordinator`, and name it with --coordinator"
        return None, [Problem(message, hint, "--coordinator")]
    match = _COORDINATOR.fullmatch(text)
    if match is None or not DNS_LABEL.fullmatch(match["name"]):
        message = f"coordinator is {text!r}, but it must be NAME, or NAME:NODES"
        return None, [Problem(message, "write --coordinator paceline-coordinator", "--coordinator")]
    return (match["name"], int(match["nodes"] or 3)), []


def _head(options: JobOptions) -> list[Problem]:
    memory = read_quantity(options.head.memory)
    if memory is not None and memory >= LEAST_MEMORY:
        return []
    message = f"head_memory is {options.head.memory!r}, but it must be an amount of at least 512Mi"
    return [Problem(message, "write --head-memory 4Gi, for example", "--head-memory")]


def _agent(plan: Plan, procs: int) -> tuple[str, ...]:
    slots = procs + bool(server_names(plan))  # a parameter server and its backup take slots, on two hosts
    argv = ("paceline", "agent", "--run", plan.run, "--slots", str(slots))
    return (*argv, "--drain-timeout", str(DRAIN_S), "--exit-code", str(DRAINED))


def _command(
    config: TrainConfig,
    facts: Facts,
    results: str,
    options: JobOptions,
    travelling: AttachedConfig | None,
    script: JobScript | None,
) -> tuple[str, ...]:
    if travelling is None:
        command = train_command if script is None else run_command
        argv = list(command(without_paths(config), facts))
    else:
        beside = replace(
            travelling.beside,
            launcher=config.launcher,
            elastic=True,
            num_workers=config.num_workers,
            min_workers=config.min_workers,
            device=config.device,
        )
        argv = [
            "paceline",
            "train" if script is None else "run",
            "--config",
            f"{CONFIG}/{travelling.file.name}",
        ]
        argv += flags_of(without_paths(beside))
    argv += path_flags(config, results)
    argv += [] if options.torch.checkpoint_volume is None else ["--resume", "auto"]
    return tuple(argv) if script is None else (*argv, *script.command)

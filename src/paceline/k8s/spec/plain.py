"""The spec of a job that needs nothing of Paceline in its image: a user's script, or any other command.

torchrun starts a plain script in the pods of a torchrun job, and Python on the head of a Ray cluster. A raw
command is executed as it is, in every pod of a torchrun job or on the head. Settings of Paceline's runs do
not apply: what the program does is said by its own arguments.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from paceline.config.train_config import TrainConfig
from paceline.core.errors import ManifestError, Problem
from paceline.k8s.objects import MAX_RAY_NAME_LENGTH
from paceline.k8s.spec.elastic import node_range
from paceline.k8s.spec.job import ON_RAY, RESULTS, ConfigFile, JobOptions, JobSpec, NodeRange, Target
from paceline.k8s.spec.ray import assemble_ray_spec, not_for_ray, options_by_nodes, ray_pods
from paceline.k8s.spec.script import JobScript
from paceline.k8s.spec.torchrun import (
    MAX_NAME_LENGTH,
    assemble_spec,
    check_pods,
    range_problem,
    read_parts,
    torchrun_pods,
    torchrun_program,
)

_NAME_LENGTH = min(MAX_NAME_LENGTH, MAX_RAY_NAME_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainProgram:
    """A script with its arguments, or a whole command."""

    words: tuple[str, ...]
    is_raw: bool = False  # a whole command: nothing is put before it
    files: tuple[ConfigFile, ...] = ()  # the script first; empty: the image has it
    sha256: str | None = None  # of a script that travels

    @property
    def default_name(self) -> str:
        """After the script, or after the program of a command."""
        scripts = [word for word in self.words if word.endswith(".py")]
        module = self.words[1] if self.words[0] == "-m" and len(self.words) > 1 else None
        named = module or (scripts or self.words)[0]
        stem = PurePosixPath(named).stem if module is None else named
        name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
        return name[:_NAME_LENGTH].strip("-") or "job"

    def describe(self) -> str:
        if self.is_raw:
            return (
                f"command: {self.words[0]} is started as it is, without torchrun; the image needs no Paceline"
            )
        where = "from the image" if not self.files else f"from a ConfigMap, sha256 {self.sha256}"
        start = f"script: {self.words[0]} is started {where} without Paceline"
        return f"{start}; if it uses Paceline, add --paceline"


def plain_program(script: JobScript) -> PlainProgram:
    return PlainProgram(words=script.command, files=script.files, sha256=script.sha256)


def raw_command(words: Sequence[str]) -> PlainProgram:
    return PlainProgram(words=tuple(words), is_raw=True)


def build_plain_spec(program: PlainProgram, name: str | None, options: JobOptions, target: Target) -> JobSpec:
    """`name`: of the job; None: after the program. Raises ManifestError with every problem."""
    run = name or program.default_name
    if isinstance(options.torch.nodes, NodeRange):
        raise ManifestError([range_problem(options.torch.nodes)])
    if target in ON_RAY:
        return _on_ray(program, run, options)
    return _on_nodes(program, run, options, target)


def _on_nodes(program: PlainProgram, run: str, options: JobOptions, target: Target) -> JobSpec:
    torch = options.torch
    pods, problems = torchrun_pods(options)
    read, unread = read_parts(TrainConfig(), options, run, pods.most)
    problems += [*unread, *check_pods(options, target), *_not_for_programs(options), *_restarts(options)]
    if program.is_raw:
        problems += _not_for_commands(options)
    if problems:
        raise ManifestError(problems)
    # Only a run folder needs a place for results; without a volume a script writes where it wants.
    read = replace(read, results="" if read.results == RESULTS else read.results)
    return assemble_spec(
        run,
        options,
        read,
        pods,
        command=program.words,
        procs=torch.procs_per_node or max(1, torch.gpus_per_node),
        program=program.words[0] if program.is_raw else torchrun_program(options, target),
        files=program.files,
        script_sha256=program.sha256,
        is_raw=program.is_raw,
    )


def _not_for_programs(options: JobOptions) -> list[Problem]:
    """Options of Paceline's runs."""
    problems = []
    if options.torch.config_map:
        hint = "leave it out, or add --paceline if the script uses Paceline"
        problems.append(Problem("config_map is for the settings of Paceline's runs", hint, "--config-map"))
    if options.torch.coordinator is not None:
        message = "coordinator is for elastic runs of Paceline"
        problems.append(Problem(message, "leave it out, or add --paceline --elastic", "--coordinator"))
    return problems


def _not_for_commands(options: JobOptions) -> list[Problem]:
    if options.torch.torchrun is None:
        return []
    message = "torchrun is set, but --command starts no torchrun"
    return [Problem(message, "leave it out, or begin the command with it", "--torchrun")]


def _restarts(options: JobOptions) -> list[Problem]:
    """A restarted program finds its checkpoints only on a volume; whether it resumes is up to it."""
    torch = options.torch
    is_kept = torch.checkpoint_volume is not None or bool(torch.volumes)
    if not options.limits.retries or torch.allow_restart_from_zero or is_kept:
        return []
    message = f"retries is {options.limits.retries}, but what the program writes is lost with the pod"
    hint = "add --checkpoint-volume CLAIM, or add --allow-restart-from-zero"
    return [Problem(message, hint, "--retries")]


def _on_ray(program: PlainProgram, run: str, options: JobOptions) -> JobSpec:
    problems = not_for_ray(options)
    options = options_by_nodes(options)
    count = node_range(options).most
    pods, more = ray_pods(count, options)
    if problems or more:
        raise ManifestError([*problems, *more])
    words = program.words if program.is_raw else ("python", *program.words)
    spec = assemble_ray_spec(run, words, options, pods, ())
    return replace(spec, files=program.files, script_sha256=program.sha256)

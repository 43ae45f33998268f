"""Manifests from options, and validation of manifest files. Nothing is sent."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, ManifestError, Problem, UnreadableFileError
from paceline.k8s.render.patch import Patch, apply_patches
from paceline.k8s.render.pod import Object
from paceline.k8s.render.targets import render, to_yaml
from paceline.k8s.spec.elastic import build_elastic_spec
from paceline.k8s.spec.job import METRICS, ON_RAY, JobOptions, JobSpec, MetricsSpec, Profile, Target
from paceline.k8s.spec.plain import PlainProgram, build_plain_spec
from paceline.k8s.spec.ray import RayTool, build_ray_spec, build_tool_spec
from paceline.k8s.spec.readers import read_metrics
from paceline.k8s.spec.script import JobScript, settings_of_script
from paceline.k8s.spec.torchrun import AttachedConfig, build_torchrun_spec
from paceline.k8s.validate.manifest import find_secrets
from paceline.k8s.validate.offline import ValidationResult, find_problems, find_repeated, validate
from paceline.plan.decide import elastic_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedJob:
    intent: JobSpec
    target: Target
    objects: list[Object]
    text: str


def render_job(
    config: TrainConfig,
    options: JobOptions,
    target: Target,
    config_problems: Sequence[Problem] = (),
    travelling: AttachedConfig | None = None,
    program: JobScript | PlainProgram | RayTool | None = None,
    patches: Sequence[Patch] = (),
) -> RenderedJob:
    """`config_problems`: problems of the settings as read. `travelling`: a file for a ConfigMap."""
    try:
        intent = _intent(config, options, target, config_problems, travelling, program)
    except ConfigError as error:
        problems = [Problem(problem.what, problem.hint, problem.where) for problem in error.problems]
        raise ManifestError(problems) from None
    _refuse_secrets(intent)
    objects = render(intent, target)
    _refuse_invalid(objects, intent.profile)
    if patches:
        objects = apply_patches(objects, patches)
        _refuse_invalid(objects, intent.profile, " after --patch")
    return RenderedJob(intent=intent, target=target, objects=objects, text=to_yaml(objects))


def _refuse_secrets(intent: JobSpec) -> None:
    """In the command, which a standing cluster does not have in its manifests: it is printed for the user."""
    problems = [
        Problem(finding.what, finding.hint, "command")
        for finding in find_secrets({"command": [*intent.command]})
    ]
    if problems:
        raise ManifestError(problems[:1])


def _refuse_invalid(objects: Sequence[Object], profile: Profile, when: str = "") -> None:
    """All findings, not only secrets: no manifest that validation refuses may be returned."""
    problems = [
        Problem(finding.what, finding.hint, f"{_where(finding.path)}{when}")
        for obj in objects
        for finding in find_problems(obj, profile)
    ]
    problems += find_repeated(objects)
    if problems:
        raise ManifestError(problems)


def _intent(
    config: TrainConfig,
    options: JobOptions,
    target: Target,
    problems: Sequence[Problem],
    travelling: AttachedConfig | None,
    program: JobScript | PlainProgram | RayTool | None,
) -> JobSpec:
    if isinstance(program, PlainProgram | RayTool):
        if problems:
            raise ManifestError(problems)
        return _without_settings(program, config.name, options, target)
    script = program
    if script is not None:
        config = settings_of_script(config, script)
    metrics, unread = read_metrics(config, options)
    if metrics is not None and target is Target.TRAINJOB and options.torch.runtime is not None:
        message = "metrics_port is set, but a TrainJob cannot add a port to the pods of a given runtime"
        unread.append(Problem(message, "leave --runtime out", "--runtime"))
    problems = [*problems, *unread]
    if metrics is not None and not unread:
        config = _serving(config, metrics)
        if travelling is not None:
            travelling = replace(travelling, beside=_serving(travelling.beside, metrics))
    return replace(_build(config, options, target, problems, travelling, script), metrics=metrics)


def _serving(config: TrainConfig, metrics: MetricsSpec) -> TrainConfig:
    return replace(config, metrics_port=metrics.port, metrics_token_file=f"{METRICS}/token")


def _build(
    config: TrainConfig,
    options: JobOptions,
    target: Target,
    problems: Sequence[Problem],
    travelling: AttachedConfig | None,
    script: JobScript | None,
) -> JobSpec:
    if target in ON_RAY:
        return build_ray_spec(config, options, problems, script)
    if problems:
        raise ManifestError(problems)
    if elastic_of(config) is not None:
        return build_elastic_spec(config, options, target, travelling, script)
    return build_torchrun_spec(config, options, target, travelling, script)


def _without_settings(
    program: PlainProgram | RayTool, name: str | None, options: JobOptions, target: Target
) -> JobSpec:
    if isinstance(program, PlainProgram):
        return build_plain_spec(program, name, options, target)
    if target not in ON_RAY:
        message = f"{program.name} makes its runs on a Ray cluster"
        hint = "use the target rayjob or raycluster; or, with processes of one pod, --command -- paceline"
        raise ManifestError([Problem(message, f"{hint} {program.words[1]} …", "--target")])
    return build_tool_spec(program, name, options)


def validate_file(path: Path, profile: Profile) -> ValidationResult:
    return validate(read_text(path), str(path), profile)


def read_text(path: Path) -> str:
    """Text of a file, or of stdin (-). Raises PacelineError."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UnreadableFileError(
            f"cannot read {path}: {reason}", "name a file of manifests in YAML"
        ) from error


def _where(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))

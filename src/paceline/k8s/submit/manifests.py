"""Manifests from options, and validation of manifest files. Nothing is sent."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, ManifestError, Problem, UnreadableFileError
from paceline.k8s.render.pod import Object
from paceline.k8s.render.targets import render, to_yaml
from paceline.k8s.spec.elastic import build_elastic_spec
from paceline.k8s.spec.job import METRICS, ON_RAY, JobOptions, JobSpec, MetricsSpec, Profile, Target
from paceline.k8s.spec.ray import build_ray_spec
from paceline.k8s.spec.readers import read_metrics
from paceline.k8s.spec.script import JobScript, settings_of_script
from paceline.k8s.spec.torchrun import AttachedConfig, build_torchrun_spec
from paceline.k8s.validate.offline import ValidationResult, find_problems, find_repeated, validate
from paceline.plan.decide import elastic_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedJob:
    intent: JobSpec
    objects: list[Object]
    text: str


def render_job(
    config: TrainConfig,
    options: JobOptions,
    target: Target,
    config_problems: Sequence[Problem] = (),
    travelling: AttachedConfig | None = None,
    script: JobScript | None = None,
) -> RenderedJob:
    """`config_problems`: problems of the settings as read. `travelling`: a file for a ConfigMap."""
    try:
        intent = _intent(config, options, target, config_problems, travelling, script)
    except ConfigError as error:
        problems = [Problem(problem.what, problem.hint, problem.where) for problem in error.problems]
        raise ManifestError(problems) from None
    objects = render(intent, target)
    # All findings, not only secrets: no manifest that validation refuses may be returned.
    findings = [finding for obj in objects for finding in find_problems(obj, intent.profile)]
    problems = [Problem(finding.what, finding.hint, _where(finding.path)) for finding in findings]
    problems += find_repeated(objects)
    if problems:
        raise ManifestError(problems)
    return RenderedJob(intent=intent, objects=objects, text=to_yaml(objects))


def _intent(
    config: TrainConfig,
    options: JobOptions,
    target: Target,
    problems: Sequence[Problem],
    travelling: AttachedConfig | None,
    script: JobScript | None,
) -> JobSpec:
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

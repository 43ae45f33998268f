"""`paceline job submit`: send a job to a cluster if it can run there, and follow it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from paceline.cli.job_live import follow_options
from paceline.cli.job_options import read_job_options, render_options
from paceline.cli.job_program import (
    describe_program,
    is_program,
    program_options,
    read_patch_files,
    read_program,
)
from paceline.cli.k8s_options import k8s_target_options
from paceline.cli.options import SettingsCommand, common_options
from paceline.cli.output import emit, print_message
from paceline.config.values import RawSetting
from paceline.core.errors import ExitCode, ManifestError, Problem, UnreadableFileError
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.k8s.client.connection import ClusterTarget
    from paceline.k8s.client.hyp import HypSubmitter
    from paceline.k8s.diagnose.snapshot import Object
    from paceline.k8s.spec.torchrun import AttachedConfig
    from paceline.k8s.submit.manifests import RenderedJob
    from paceline.plan.codec import Json


script_arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")

_WITH_A_FILE = ("profile", "pending_s")  # of render's flags, those that are also for what a file holds


@click.command("submit", cls=SettingsCommand)
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True), metavar="[FILE]")
@script_arguments
@click.option("--skip-fit", is_flag=True, help="Submit even if no nodes have room for the job.")
@click.option(
    "--infra-retries",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="Maximum restarts of the whole job after infrastructure failures.",
)
@click.option(
    "--app-retries",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="Maximum restarts after failures of the program.",
)
@click.option(
    "--allow",
    type=click.Choice(["memory"]),
    multiple=True,
    help="Change allowed on a restart; memory: 1.5 times the memory, once, after an out-of-memory failure.",
)
@click.option(
    "--through",
    type=click.Choice(["api", "hyp"]),
    default="api",
    show_default=True,
    help="Submit through the Kubernetes API, or with the HyperPod CLI (HyperPodPyTorchJob only).",
)
@follow_options(300.0)
@click.option("--detach", is_flag=True, help="Return at once and start the watcher in the background.")
@program_options
@render_options(required=False)
@common_options
@k8s_target_options
def submit(
    session: Session,
    place: "ClusterTarget",
    *,
    file: Path | None,
    arguments: Sequence[str],
    target: str | None,
    flags: Sequence[RawSetting],
    skip_fit: bool,
    infra_retries: int,
    app_retries: int,
    allow: Sequence[str],
    for_s: float,
    through: str,
    output: Path | None,
    detach: bool,
    **said: Any,  # Any: render's flags, from click
) -> ExitCode:
    """Submit a job to a cluster and follow the logs of all ranks. The job is read from FILE (- is stdin), or
    rendered from options as by `job render`: --target, --image, --name and all settings of `train`. FILE may
    also be what the job runs, with its arguments: --target job --image NAME:TAG -- train.py ARGS.

    Permissions, resource types, versions, quotas, free capacity and a server-side dry run are checked first;
    if a check fails, nothing is created. Failures are explained; after an infrastructure failure the whole
    job restarts from its last checkpoint. Ctrl-C stops following, not the job.
    """
    from paceline.cli.job_live import follow_job
    from paceline.k8s.client.connection import open_cluster
    from paceline.k8s.diagnose.retry import RetryPolicy
    from paceline.k8s.submit.capacity import format_table
    from paceline.k8s.submit.submission import submit as send

    policy = RetryPolicy(
        infra=infra_retries, app=app_retries, pending_s=said["pending_s"], allowed_changes=frozenset(allow)
    )
    script = file if file is not None and is_program(file, target, said) else None
    if arguments and script is None:
        raise click.UsageError(f"{file} is no training script, so it has no arguments: {arguments[0]}")
    if script is not None or file is None:
        rendered = _rendered(session, place, target, flags, said, script, arguments)
        if said["explain_command"]:
            show_command(session, rendered, "job.submit")
            return ExitCode.OK
        manifests: list[Object] = [*rendered.objects]
    else:
        manifests = _read_file(session, file, target, flags, said)
    sender = _sender(place) if through == "hyp" else None
    with open_cluster(place) as cluster:
        sent = send(cluster, manifests, policy, fits=not skip_fit, through=sender)
        for text in (*format_table(sent.rows), *(f"note: {note}" for note in sent.notes)):
            print_message(session, text)
        print_message(session, f"{sent.kind}/{sent.name} submitted to namespace {sent.namespace}")
        if not detach:
            return follow_job(
                session, cluster, place, sent.name, for_s=for_s, output=output, command="job.submit"
            )
        return _detached(session, place, sent.namespace, sent.name)


def _sender(place: "ClusterTarget") -> "HypSubmitter":
    from paceline.k8s.client.hyp import HypSubmitter

    return HypSubmitter(place)


def _read_file(
    session: Session,
    file: Path,
    target: str | None,
    flags: Sequence[RawSetting],
    said: dict[str, Any],  # Any: from click
) -> "list[Object]":
    """The manifests of a file, checked as `job validate` does."""
    from paceline.k8s.spec.job import Profile
    from paceline.k8s.submit.submission import read_manifests

    profile = Profile(said["profile"])
    _refuse_flags(session, flags, said, target)
    source = click.get_current_context().get_parameter_source("profile")
    if source is not ParameterSource.COMMANDLINE:  # the default is for what is rendered here
        profile = Profile.COMPAT
    return read_manifests(file if str(file) == "-" else session.folder / file, profile)


def _rendered(
    session: Session,
    place: "ClusterTarget",
    target: str | None,
    flags: Sequence[RawSetting],
    said: dict[str, Any],  # Any: from click
    script: Path | None,
    arguments: Sequence[str],
) -> "RenderedJob":
    if target is None or said["image"] is None:
        missing = "--target" if target is None else "--image"
        hint = "name a FILE of manifests, or use --target, --image and --name, as for `paceline job render`"
        raise ManifestError([Problem("no job is given", hint, missing)])
    options = {**said, "namespace": place.namespace}
    return render_manifests(session, flags, target, options, script, arguments)


def _refuse_flags(
    session: Session, flags: Sequence[RawSetting], said: dict[str, Any], target: str | None
) -> None:
    """Flags do not change what a file says: which of the two was meant would be ambiguous."""
    context = click.get_current_context()
    names = [name for name in said if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    given = [f"--{name.replace('_', '-')}" for name in names if name not in _WITH_A_FILE]
    given += [one.where for one in flags]
    given += ["--set"] if session.common.sets else []
    given += ["--target"] if target is not None else []
    if given:
        hint = "leave them out, or leave FILE out to render a job from these flags"
        what = f"FILE is a complete job, so it cannot be combined with {', '.join(given)}"
        raise ManifestError([Problem(what, hint, given[0])])


def _detached(session: Session, place: "ClusterTarget", namespace: str, name: str) -> ExitCode:
    from paceline.k8s.submit.submission import start_watcher

    watcher = start_watcher(place, namespace, name)
    print_message(session, f"process {watcher.pid} watches it: {watcher.log}")
    answer: dict[str, Json] = {"name": name, "namespace": namespace, "ended": False}
    emit(session, "job.submit", {**answer, "watcher": watcher.pid, "log": str(watcher.log)}, [])
    return ExitCode.OK


@click.command("render", cls=SettingsCommand)
@click.argument("script", required=False, type=click.Path(path_type=Path), metavar="[SCRIPT]")
@script_arguments
@click.option("--namespace", "-n", metavar="NAME", help="Namespace. [default: the one it is applied to]")
@program_options
@render_options(required=True)
@common_options
def render(
    session: Session,
    flags: Sequence[RawSetting],
    target: str,
    script: Path | None,
    arguments: Sequence[str],
    **said: Any,  # Any: from click
) -> None:
    """Print the manifests of a training job on Kubernetes.

    Accepts all settings of `train`; those that differ from the default become the job's command. --name is
    also the name of the objects. With pytorchjob, trainjob, job and hyperpod, torchrun starts the workers in
    --nodes pods.

    With a training SCRIPT (-- train.py ARGS) and settings of `run`, the script runs under Paceline. Without
    settings torchrun starts it, or Python on Ray, and nothing of Paceline need be in the image. A local file
    of a relative path travels in a ConfigMap, with the modules beside it that it imports; an absolute path is
    one of the image. Also: -- -m MODULE ARGS, --command -- PROGRAM ARGS, and on Ray -- compare ARGS.
    """
    done = render_manifests(session, flags, target, said, script, arguments)
    if said["explain_command"]:
        show_command(session, done, "job.render")
        return
    answer: dict[str, Json] = {"manifests": list(done.objects), "yaml": done.text}
    answer["command"] = list(done.intent.command)
    emit(session, "job.render", answer, done.text.splitlines())


def render_manifests(
    session: Session,
    flags: Sequence[RawSetting],
    target: str,
    said: dict[str, Any],  # Any: from click
    script: Path | None = None,
    arguments: Sequence[str] = (),
) -> "RenderedJob":
    """What is worth knowing about it is said. Raises ConfigError."""
    # Imported here, so that --help does not pay for it.
    from paceline.config.load import from_set_flags, load
    from paceline.k8s.render.pod import describe_relaxations
    from paceline.k8s.render.targets import describe_manifest
    from paceline.k8s.spec.job import Target
    from paceline.k8s.submit.manifests import render_job

    sets = from_set_flags(session.common.sets)
    options = read_job_options(said)
    entries = [*flags, *sets.entries]
    given = [entry.where for entry in entries if entry.key != "name"]
    given += ["--config"] if session.common.config is not None else []
    program = read_program(session, script, arguments, said, given)
    patches = read_patch_files(session, said["patch_files"])
    loaded = load(flags=entries, variables=session.variables, file=session.common.config)
    found = [*sets.problems, *loaded.problems]
    has_config = options.torch.config_map and (script is None or bool(given))
    travelling = _mounted_config(session, entries) if has_config else None
    done = render_job(loaded.config, options, Target(target), found, travelling, program, patches)
    if program is not None:
        print_message(session, describe_program(program))
    for line in describe_relaxations(done.intent.profile):
        print_message(session, f"compat: {line}")
    for line in describe_manifest(done.intent, Target(target)):
        print_message(session, f"note: {line}")
    if target == Target.RAYCLUSTER:
        print_message(session, f"command on the head: {' '.join(done.intent.command)}")
    return done


def show_command(session: Session, done: "RenderedJob", name: str) -> None:
    """The command of the pods instead of the manifests."""
    from paceline.k8s.render.explain_command import explain_command

    explained = explain_command(done.intent, done.target, done.objects)
    answer: dict[str, Json] = {
        "job": explained.job,
        "where": explained.where,
        "program": list(explained.program),
        "flags": [{"flag": flag.flag, "meaning": flag.meaning} for flag in explained.flags],
        "words": list(explained.words),
        "on_node_0": list(explained.on_node_0),
    }
    emit(session, name, answer, explained.lines())


def _mounted_config(session: Session, entries: Sequence[RawSetting]) -> "AttachedConfig":
    """The file of --config as it is, and what was said beside it."""
    from paceline.config.load import load
    from paceline.k8s.spec.job import ConfigFile
    from paceline.k8s.spec.torchrun import AttachedConfig

    file = session.common.config
    if file is None:
        hint = "name a file with --config, or leave --config-map out"
        raise ManifestError(
            [Problem("config_map is set, but there is no file to put into it", hint, "--config-map")]
        )
    beside = load(flags=entries, variables=session.variables).config
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UnreadableFileError(
            f"cannot read {file}: {reason}", "name a settings file with --config"
        ) from error
    name = "config.toml" if file.suffix == ".toml" else "config.yaml"
    return AttachedConfig(file=ConfigFile(name=name, text=text), beside=beside)

"""`paceline job render`: which manifests ask a cluster for this run? Printed as YAML, and nothing is sent."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.job_render_options import render_options, wishes_of
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.config.written import Written
from paceline.errors import ManifestError, Problem, UnreadableFileError

if TYPE_CHECKING:
    from paceline.app.job import Rendered
    from paceline.kube.torch_wishes import Travelling
    from paceline.plan.codec import Json


@click.command("render")
@click.option("--namespace", "-n", metavar="NAME", help="[default: wherever it is applied]")
@render_options(required=True)
@common_options
def render(session: Session, flags: Sequence[Written], target: str, **said: Any) -> None:  # Any: from click
    """Print the manifests of a run on Kubernetes.

    All settings of `train` work; those that are not default become the job's command. --name is the name of
    the objects too. With pytorchjob, trainjob, job and hyperpod, torchrun starts the workers in --nodes pods.
    """
    done = rendered(session, flags, target, said)
    answer: dict[str, Json] = {"manifests": list(done.objects), "yaml": done.text}
    answer["command"] = list(done.intent.command)
    emit(session, "job.render", answer, done.text.splitlines())


def rendered(
    session: Session, flags: Sequence[Written], target: str, said: dict[str, Any]
) -> "Rendered":  # Any: from click
    """What is worth knowing about it is said. Raises ConfigError."""
    # Imported here, so that --help does not pay for it.
    from paceline.app.job import render_job
    from paceline.config.load import load
    from paceline.config.sources import from_sets
    from paceline.kube.notes import notes
    from paceline.kube.parts import relaxed
    from paceline.kube.render import Target

    sets, wishes = from_sets(session.common.sets), wishes_of(said)
    entries = [*flags, *sets.entries]
    loaded = load(flags=entries, variables=session.variables, file=session.common.config)
    found = [*sets.problems, *loaded.problems]
    travelling = _travelling(session, entries) if wishes.torch.config_map else None
    done = render_job(loaded.config, wishes, Target(target), found, travelling)
    for line in relaxed(done.intent.profile):
        say(session, f"compat: {line}")
    for line in notes(done.intent, Target(target)):
        say(session, f"note: {line}")
    if target == Target.RAYCLUSTER:
        say(session, f"on its head, this runs: {' '.join(done.intent.command)}")
    return done


def _travelling(session: Session, entries: Sequence[Written]) -> "Travelling":
    """The file of --config as it is, and what was said beside it."""
    from paceline.config.load import load
    from paceline.kube.intent import ConfigFile
    from paceline.kube.torch_wishes import Travelling

    file = session.common.config
    if file is None:
        hint = "name a file by --config, or leave --config-map out"
        raise ManifestError(
            [Problem("config_map is said, but there is no file to put there", hint, "--config-map")]
        )
    beside = load(flags=entries, variables=session.variables).config
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UnreadableFileError(
            f"cannot read {file}: {reason}", "name a file of settings by --config"
        ) from error
    name = "config.toml" if file.suffix == ".toml" else "config.yaml"
    return Travelling(file=ConfigFile(name=name, text=text), beside=beside)

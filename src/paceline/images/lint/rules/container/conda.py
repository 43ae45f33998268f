"""Rules about conda: names of environments, their activation, unanswered questions (34, 40)."""

import posixpath
import re
from collections.abc import Iterator

import yaml

from paceline.images.lint.dockerfile import substituted
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.container.interpreter import LAUNCHED, OTHER, TOOLS
from paceline.images.lint.rules.container.start import argv_of, last_start
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

NO_ENVIRONMENT = Pattern(
    number=40,
    id="no-such-environment",
    what="A conda environment is named that no step creates, or a package that no channel has.",
    fix="only reported: the name that environment.yml or `conda create -n` gives it",
)
ASKS = Pattern(
    number=34,
    id="conda-asks",
    what="conda asks for confirmation, and a build has no terminal.",
    fix="only reported: `-y`",
)
PATTERNS = (NO_ENVIRONMENT, ASKS)


def conda_environment(view: StageView) -> Iterator[Finding]:
    """Names of conda environments that are used, against those that are created."""
    created, is_known = _created(view)
    if not view.has_conda or not is_known or not created:
        return
    for step in view.stage.instructions:
        texts = list(step.values) if step.is_json else [w for c in step.commands for w in c.texts]
        if step.word in ("CMD", "ENTRYPOINT") and not step.is_json:
            texts = argv_of(step)
        line = " ".join(texts)
        used = re.search(
            r"\b(?:conda|mamba) run (?:-\S+ )*?(?:-n|--name)[ =](\S+)|\b(?:conda|mamba) activate "
            r"([\w-]+)|/envs/([\w-]+)/bin",
            line,
        )
        used = used or (
            re.search(r"/envs/([\w-]+)/bin()()", " ".join(step.values)) if step.word == "ENV" else None
        )
        name = next((group for group in used.groups() if group), "") if used else ""
        if name and name not in created and name != "base" and "$" not in name:
            yield NO_ENVIRONMENT.finding(
                view,
                step,
                f"no step creates the environment {name}: `EnvironmentLocationNotFound`",
                f"{line[:100]}; created: {', '.join(sorted(created))}",
                f"write {min(created)}",
            )
            return
    yield from _not_activated(view, created)


def _created(view: StageView) -> tuple[set[str], bool]:
    names: set[str] = set()
    for step in view.steps:
        if step.word == "COPY" and step.flag("from") is not None and "conda" in " ".join(step.values):
            return names, False
        for command in step.commands:
            argv = [
                substituted(word, view.docker.variables(view.stage, step.first)) for word in command.texts
            ]
            if not re.search(r"(?:conda|mamba)$", argv[0]) or not {"create", "update"} & set(argv[1:3]):
                continue
            named = [argv[n + 1] for n, w in enumerate(argv[:-1]) if w in ("-n", "--name")]
            named += [w.partition("=")[2] for w in argv if w.startswith("--name=")]
            if any(w in ("-p", "--prefix") or "$" in w for w in argv):
                return names, False
            if not named:
                file = next(
                    (argv[n + 1] for n, w in enumerate(argv[:-1]) if w in ("-f", "--file")),
                    "environment.yml",
                )
                manifest = view.file_named(file)
                name = _name_of(manifest.text) if manifest is not None else ""
                if not name:
                    return names, False
                named = [name]
            names |= set(named)
    return names, True


def _name_of(text: str) -> str:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        return ""
    return str(document.get("name", "")) if isinstance(document, dict) else ""


def _not_activated(view: StageView, created: set[str]) -> Iterator[Finding]:
    """CMD runs the Python of conda's base, which has none of the environment's packages."""
    steps = last_start(view)
    step = steps.get("ENTRYPOINT") or steps.get("CMD")
    if step is None or not view.is_last or created & {"base"} or id(step) not in view.own_steps:
        return
    argv = argv_of(step)
    path = view.variables.get("PATH", "")
    shell = " ".join(v for s in view.steps if s.word == "SHELL" for v in s.values)
    chosen = (
        "envs/" in path
        or (not step.is_json and re.search(r"run|-\w*[li]|login", shell))
        or "CONDA_DEFAULT_ENV" in view.variables
    )
    is_used = any(
        package.by.instruction
        for package in view.installed
        if not re.search(r"\.ya?ml$", package.spec.path) and package.spec.name not in TOOLS
    )
    if not argv or not LAUNCHED.match(posixpath.basename(argv[0])) or "/" in argv[0] or chosen or is_used:
        return
    yield OTHER.finding(
        view,
        step,
        f"the packages are in the environment {min(created)}, and the container runs conda's base: `No "
        "module named …`",
        f"{step.word} {' '.join(argv)}"[:120],
        f"put the bin folder of {min(created)} first on PATH with ENV, or start with `conda run -n "
        f"{min(created)}`",
    )


def conda_asks(view: StageView) -> Iterator[Finding]:
    script = " ".join(view.words)
    if (
        re.search(r"always_yes|condarc", script)
        or "CONDA_ALWAYS_YES" in view.variables
        or "MAMBA_NO_PROMPT" in view.variables
    ):
        return
    if any("condarc" in v for s in view.steps for v in s.values) or re.search(r"mambaorg/", view.base.name):
        return
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        for command in step.commands:
            argv = command.texts
            verb = (
                argv[1]
                if len(argv) > 1 and re.fullmatch(r"(?:\S*/)?(?:conda|mamba|micromamba)", argv[0])
                else ""
            )
            answered = any(
                re.fullmatch(r"-[a-z]*y[a-z]*|--yes|-[a-z]*f[a-z]*y|--dry-run|--help|-qy|-yq", w)
                for w in argv
            )
            piped = re.search(r"yes\b|echo|printf", step.values[0]) is not None
            if (
                verb in ("install", "create", "remove", "update")
                and not answered
                and not piped
                and id(command) not in conditional
            ):
                yield ASKS.finding(
                    view,
                    step,
                    f"conda {verb} asks for confirmation, and a build has no terminal: it ends with an error",
                    " ".join(argv[:6]),
                    "add -y",
                )
                return


RULES = (conda_asks, conda_environment)

"""Rules about conda: names of environments, their activation, unanswered questions (34, 40)."""

import posixpath
import re
from collections.abc import Iterator

import yaml

from paceline.images.lint.dockerfile import substituted
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.container.interpreter import LAUNCHED, OTHER, TOOLS
from paceline.images.lint.rules.container.start import last_start, words_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

NO_ENVIRONMENT = Pattern(
    number=40,
    id="no-such-environment",
    what="A conda environment is named that no step creates, or a package that no channel has.",
    fix="only reported: the name that environment.yml or `conda create -n` gives it",
)
ASKS = Pattern(
    number=34,
    id="conda-asks",
    what="conda asks for confirmation, and a build has no terminal to answer from.",
    fix="only reported: `-y`",
)
PATTERNS = (NO_ENVIRONMENT, ASKS)


def conda_environment(place: Place) -> Iterator[Finding]:
    """Names of conda environments that are used, against those that are created."""
    created, is_known = _created(place)
    if not place.has_conda or not is_known or not created:
        return
    for step in place.stage.instructions:
        texts = list(step.values) if step.is_json else [w for c in step.commands for w in c.texts]
        if step.word in ("CMD", "ENTRYPOINT") and not step.is_json:
            texts = words_of(step)
        line = " ".join(texts)
        used = re.search(
            r"\b(?:conda|mamba) run (?:-\S+ )*?(?:-n|--name)[ =](\S+)|\b(?:conda|mamba) activate "
            r"([\w-]+)|/envs/([\w-]+)/bin",
            line,
        )
        used = used or (
            re.search(r"/envs/([\w-]+)/bin()()", " ".join(step.values)) if step.word == "ENV" else None
        )
        name = next((one for one in used.groups() if one), "") if used else ""
        if name and name not in created and name != "base" and "$" not in name:
            yield NO_ENVIRONMENT.found(
                place,
                step,
                f"no step creates the environment {name}: `EnvironmentLocationNotFound`",
                f"{line[:100]}; created: {', '.join(sorted(created))}",
                f"write {min(created)}",
            )
            return
    yield from _not_activated(place, created)


def _created(place: Place) -> tuple[set[str], bool]:
    found: set[str] = set()
    for step in place.steps:
        if step.word == "COPY" and step.flag("from") is not None and "conda" in " ".join(step.values):
            return found, False
        for command in step.commands:
            words = [
                substituted(word, place.docker.variables(place.stage, step.first)) for word in command.texts
            ]
            if not re.search(r"(?:conda|mamba)$", words[0]) or not {"create", "update"} & set(words[1:3]):
                continue
            named = [words[n + 1] for n, w in enumerate(words[:-1]) if w in ("-n", "--name")]
            named += [w.partition("=")[2] for w in words if w.startswith("--name=")]
            if any(w in ("-p", "--prefix") or "$" in w for w in words):
                return found, False
            if not named:
                file = next(
                    (words[n + 1] for n, w in enumerate(words[:-1]) if w in ("-f", "--file")),
                    "environment.yml",
                )
                manifest = place.file_named(file)
                name = _name_of(manifest.text) if manifest is not None else ""
                if not name:
                    return found, False
                named = [name]
            found |= set(named)
    return found, True


def _name_of(text: str) -> str:
    try:
        said = yaml.safe_load(text)
    except yaml.YAMLError:
        return ""
    return str(said.get("name", "")) if isinstance(said, dict) else ""


def _not_activated(place: Place, created: set[str]) -> Iterator[Finding]:
    """CMD runs the Python of conda's base, which has none of the environment's packages."""
    steps = last_start(place)
    step = steps.get("ENTRYPOINT") or steps.get("CMD")
    if step is None or not place.is_last or created & {"base"} or id(step) not in place.own_steps:
        return
    words = words_of(step)
    path = place.variables.get("PATH", "")
    shell = " ".join(v for s in place.steps if s.word == "SHELL" for v in s.values)
    chosen = (
        "envs/" in path
        or (not step.is_json and re.search(r"run|-\w*[li]|login", shell))
        or "CONDA_DEFAULT_ENV" in place.variables
    )
    others = any(
        one.by.instruction
        for one in place.installed
        if not re.search(r"\.ya?ml$", one.asked.path) and one.asked.name not in TOOLS
    )
    if not words or not LAUNCHED.match(posixpath.basename(words[0])) or "/" in words[0] or chosen or others:
        return
    yield OTHER.found(
        place,
        step,
        f"the packages are in the environment {min(created)}, and the container runs conda's base: `No "
        "module named …`",
        f"{step.word} {' '.join(words)}"[:120],
        f"put the bin folder of {min(created)} first on PATH with ENV, or start with `conda run -n "
        f"{min(created)}`",
    )


def conda_asks(place: Place) -> Iterator[Finding]:
    said = " ".join(place.words)
    if (
        re.search(r"always_yes|condarc", said)
        or "CONDA_ALWAYS_YES" in place.variables
        or "MAMBA_NO_PROMPT" in place.variables
    ):
        return
    if any("condarc" in v for s in place.steps for v in s.values) or re.search(r"mambaorg/", place.base.name):
        return
    for step in place.stage.instructions:
        maybe = conditional_commands(step)
        for command in step.commands:
            words = command.texts
            verb = (
                words[1]
                if len(words) > 1 and re.fullmatch(r"(?:\S*/)?(?:conda|mamba|micromamba)", words[0])
                else ""
            )
            answered = any(
                re.fullmatch(r"-[a-z]*y[a-z]*|--yes|-[a-z]*f[a-z]*y|--dry-run|--help|-qy|-yq", w)
                for w in words
            )
            piped = re.search(r"yes\b|echo|printf", step.values[0]) is not None
            if (
                verb in ("install", "create", "remove", "update")
                and not answered
                and not piped
                and id(command) not in maybe
            ):
                yield ASKS.found(
                    place,
                    step,
                    f"conda {verb} asks for confirmation, and a build has no terminal to answer from: it "
                    "ends with an error",
                    " ".join(words[:6]),
                    "add -y",
                )
                return


RULES = (conda_asks, conda_environment)

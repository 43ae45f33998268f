"""Findings for secrets that an image, or its build context, would give away.

A secret in a Dockerfile or in a requirements file is readable in the repository and most often in
`docker history`. A copied key file stays in its layer, even if a later step removes it.
`paceline.core.redaction` defines the patterns of secrets; a finding never repeats one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from paceline.core.redaction import Secret, redact, secrets_in, tokens_in
from paceline.core.secret_names import is_secret_name
from paceline.images.lint.dockerfile import Instruction, argument_values, substituted
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

SECRET = Pattern(
    number=20,
    id="secret-in-image",
    what="A password, key or token is written in the Dockerfile or in a requirements file.",
    fix="only reported: pass it to the build with `RUN --mount=type=secret`",
    level=Level.PROBLEM,
)
COPIED = Pattern(
    number=20,
    id="secret-file-copied",
    what="A file of keys or passwords is copied into the image, such as .env, id_rsa or .aws/credentials.",
    fix="only reported: exclude it in .dockerignore, and pass it to the build with `RUN --mount=type=secret`",
    level=Level.PROBLEM,
)
PATTERNS = (SECRET, COPIED)
_ADVICE = "remove it, rotate the secret, and pass it to the build with RUN --mount=type=secret"
_KEEP_OUT = (
    "exclude it in .dockerignore, and mount it where it is needed: RUN --mount=type=secret, or a Secret"
)

# By the end of a path in lower case. The first group holds nothing but secrets.
_CERTAIN = (
    *(".netrc", "_netrc", ".pypirc", ".pgpass", ".git-credentials", ".vault-token", "kaggle.json"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".aws/credentials", ".docker/config.json", ".dockercfg"),
    *(".kube/config", ".huggingface/token", "huggingface/token", "application_default_credentials.json"),
    *(
        "service-account.json",
        "service_account.json",
        "privkey.pem",
        "*private*.pem",
        "*-key.pem",
        "*_key.pem",
    ),
    *(
        "server.key",
        "*.ppk",
        "*.p12",
        "*.pfx",
        "*.jks",
        "*.keystore",
        "secrets.toml",
        "secrets.yaml",
        "secrets.yml",
    ),
)
_LIKELY = (
    ".env",
    ".env.*",
    "*.env",
    "*.pem",
    "*.key",
    ".npmrc",
    ".boto",
    ".s3cfg",
    "credentials.json",
    "credentials",
)
_HARMLESS = (
    "*.example",
    "*.sample",
    "*.template",
    "*.dist",
    "*.pub",
    "*.tpl",
    "*cert*.pem",
    "*ca*.pem",
    "*chain*.pem",
)
_BARE = {
    ".aws": ".aws/credentials",
    ".ssh": ".ssh/id_rsa",
    ".docker": ".docker/config.json",
    ".kube": ".kube/config",
}


def is_secret_file(path: str) -> bool:
    """Whether a file, by its name alone, always or most often holds passwords and keys."""
    return _level_of(path) is not None


def secret_in_image(view: StageView) -> Iterator[Finding]:
    text = view.docker.text
    first, last = _lines_of_stage(view)
    comments = _comment_lines(text, view)
    by_shape = {token.start for token in tokens_in(text)}
    for secret in secrets_in(text):
        line = text.count("\n", 0, secret.start) + 1
        if first <= line <= last and (line not in comments or secret.start in by_shape):
            yield _written(view, _step_at(view, line), view.docker.path, text, secret, line)
    yield from _build_arguments(view)
    if view.is_last:
        for file in view.project.files:
            if file.path.endswith((".txt", ".in")) and file.path != view.docker.path:
                for secret in secrets_in(file.text):
                    line = file.text.count("\n", 0, secret.start) + 1
                    yield _written(view, view.stage.origin, file.path, file.text, secret, line)


def _written(view: StageView, step: Instruction, path: str, text: str, secret: Secret, line: int) -> Finding:
    shown = " ".join(redact(text).splitlines()[_shown_line(text, secret)].split())
    finding = SECRET.finding(
        view,
        step,
        f"{secret.kind} is in {path}: it is visible in the repository, and possibly in `docker history`",
        shown[:200],
        _ADVICE,
    )
    return replace(finding, path=path, line=line)


def _shown_line(text: str, secret: Secret) -> int:
    """The line of the redacted text that held the secret; several lines of a secret become one."""
    return redact(text[: secret.start]).count("\n")


def _build_arguments(view: StageView) -> Iterator[Finding]:
    """`ARG TOKEN`: the value is passed with --build-arg, and is kept in the image's history."""
    for step in view.stage.instructions:
        if step.word == "ARG":
            for name, value in argument_values(step).items():
                if is_secret_name(name) and not value:
                    yield SECRET.finding(
                        view,
                        step,
                        f"the value of {name} given by --build-arg can be read with `docker history`",
                        f"ARG {name}",
                        _ADVICE,
                        level=Level.WARNING,
                    )


def _lines_of_stage(view: StageView) -> tuple[int, int]:
    """Line range of a stage; lines before the first FROM belong to the first stage."""
    stages = view.docker.stages
    number = view.stage.number
    first = 1 if number == 0 else view.stage.origin.first
    last = stages[number + 1].origin.first - 1 if number + 1 < len(stages) else len(view.docker.text)
    return first, last


def _comment_lines(text: str, view: StageView) -> set[int]:
    """Lines that begin with `#`, but not those of a here document, which a build writes into a file."""
    heredocs = [step for step in view.stage.instructions if "<<" in text.split("\n")[step.first - 1]]
    inside = {line for step in heredocs for line in range(step.first + 1, step.last)}
    lines = enumerate(text.split("\n"), start=1)
    return {number for number, line in lines if line.lstrip().startswith("#") and number not in inside}


def _step_at(view: StageView, line: int) -> Instruction:
    steps = [*view.docker.arguments, view.stage.origin, *view.stage.instructions]
    return next((step for step in steps if step.first <= line <= step.last), view.stage.origin)


def secret_file_copied(view: StageView) -> Iterator[Finding]:
    last = view.docker.stages[-1]
    stays = view.stage in view.docker.chain(last)
    for step in view.stage.instructions:
        if step.word not in ("COPY", "ADD") or step.flag("from") is not None or not _has_sources(step):
            continue
        values = view.docker.variables(view.stage, step.first)
        sources = [substituted(source, values) for source in step.values[:-1]]
        levels = {
            path: level for path in _copied(view, step, sources) if (level := _level_of(path)) is not None
        }
        if levels:
            level = Level.PROBLEM if stays and Level.PROBLEM in levels.values() else Level.WARNING
            named = ", ".join(sorted(levels)[:5])
            yield COPIED.finding(
                view,
                step,
                f"{named} would be copied into a layer of the image, where it stays readable",
                f"{step.word} {' '.join(step.values)}",
                _KEEP_OUT,
                level=level,
            )


def _has_sources(step: Instruction) -> bool:
    return len(step.values) >= 2 and not any(source.startswith("<<") for source in step.values[:-1])


def _copied(view: StageView, step: Instruction, sources: Sequence[str]) -> Iterator[str]:
    """The named files, and those of the context that lie below a named folder and are not ignored."""
    excluded = [
        *ignored_patterns(view),
        *(flag.partition("=")[2] for flag in step.flags if "exclude=" in flag),
    ]
    for source in sources:
        if "://" in source:
            continue
        path = _plain(source)
        if path in _BARE:
            yield _BARE[path]
        elif path and _level_of(path) is not None and not is_ignored(path, excluded):
            yield path
        for name in view.project.names:
            if _is_below(name, path) and not is_ignored(name, excluded):
                yield name


def _plain(source: str) -> str:
    return "/".join(part for part in source.split("/") if part not in ("", "."))


def _is_below(name: str, source: str) -> bool:
    if source == "":
        return True
    parts = name.split("/")
    heads = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatchcase(head, source) and head.count("/") == source.count("/") for head in heads)


def _level_of(path: str) -> Level | None:
    name = path.lower()
    if any(_ends_as(name, pattern) for pattern in _CERTAIN) and not _ends_as(name, "*.pub"):
        return Level.PROBLEM
    if any(_ends_as(name, pattern) for pattern in _HARMLESS):
        return None
    return Level.WARNING if any(_ends_as(name, pattern) for pattern in _LIKELY) else None


def _ends_as(path: str, pattern: str) -> bool:
    count = pattern.count("/") + 1
    return fnmatchcase("/".join(path.split("/")[-count:]), pattern)


def ignored_patterns(view: StageView) -> list[str]:
    """A Dockerfile's own list of ignored files replaces that of the context."""
    for name in (f"{view.project.dockerfile}.dockerignore", ".dockerignore"):
        if view.project.has(name):
            return view.project.text(name).splitlines()
    return []


def is_ignored(path: str, patterns: Iterable[str]) -> bool:
    """Whether it is excluded: the last pattern that matches the path, or a folder above it, decides."""
    is_ignored = False
    parts = path.split("/")
    heads = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    for line in patterns:
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        is_exception = pattern.startswith("!")
        matcher = _matcher(_plain(pattern.removeprefix("!")))
        if any(matcher.fullmatch(head) for head in heads):
            is_ignored = not is_exception
    return is_ignored


@cache
def _matcher(pattern: str) -> re.Pattern[str]:
    regex = ""
    for part in re.split(r"(\*\*/?|\*|\?)", pattern):
        match part:
            case "**/":
                regex += "(?:.*/)?"
            case "**":
                regex += ".*"
            case "*":
                regex += "[^/]*"
            case "?":
                regex += "[^/]"
            case _:
                regex += re.escape(part)
    return re.compile(regex)


RULES = (secret_in_image, secret_file_copied)

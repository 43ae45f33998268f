"""Would `paceline` understand the command of a job? Its flags are read, its plan made, as by `train`."""

from collections.abc import Iterator, Sequence

from paceline.config.key import Key, Kind
from paceline.config.keys import KEYS
from paceline.config.load import load
from paceline.config.nearest import did_you_mean
from paceline.config.written import Written
from paceline.errors import ConfigError, ManifestError
from paceline.kube.command import facts_in_pods, plan_of
from paceline.kube.schema import Finding, Path
from paceline.plan.plan import Launcher, Plan

_FLAGS = {flag: key for key in KEYS.values() for flag in (key.flag, key.also) if flag}
_NO_FLAGS = {f"--no-{key.flag.removeprefix('--')}": key for key in KEYS.values() if key.kind is Kind.YES_NO}
_SWITCHES = ("--json", "--quiet", "--verbose", "-q", "-v", "--dry-run", "-n")
# Settings from elsewhere, which are not here to be checked.
_ELSEWHERE = ("--config", "-c", "--set", "--color", "--resume")


def find_in_command(words: Sequence[str], path: Path) -> Iterator[Finding]:
    """Other programs than `paceline train` are nobody's business here."""
    if list(words[:2]) != ["paceline", "train"]:
        return
    written, problems = read_flags(words[2:])
    for what, hint in problems:
        yield Finding(path, what, hint)
    if problems or any(word in _ELSEWHERE for word in words):
        return
    try:
        plan = plan_from(written)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding(path, problem.what, problem.hint)
        return
    if plan.launcher is not Launcher.RAY:
        what = f"the launcher is {plan.launcher.value}, so the head would train alone"
        yield Finding(path, what, "add --launcher ray --address auto")
    elif plan.ray is not None and plan.ray.address == "local":
        what = "the address is local, so a second Ray would be started inside the head"
        yield Finding(path, what, "add --address auto")


def plan_from(written: Sequence[Written]) -> Plan:
    loaded = load(flags=written)
    if loaded.problems:
        raise ManifestError(loaded.problems)
    return plan_of(loaded.config, facts_in_pods(loaded.config))


def read_flags(words: Sequence[str]) -> tuple[list[Written], list[tuple[str, str]]]:
    """What the flags say, and what cannot be read."""
    written: list[Written] = []
    problems: list[tuple[str, str]] = []
    todo = list(words)
    while todo:
        flag, equals, value = todo.pop(0).partition("=")
        if flag in _SWITCHES:
            continue
        if flag in _NO_FLAGS:
            written.append(Written(key=_NO_FLAGS[flag].name, raw=False, where=flag))
        elif flag in _FLAGS and _FLAGS[flag].kind is Kind.YES_NO:
            written.append(Written(key=_FLAGS[flag].name, raw=True, where=flag))
        elif flag not in _FLAGS and flag not in _ELSEWHERE:
            hint = did_you_mean(flag, _FLAGS, otherwise="see `paceline train --help`")
            problems.append((f"`paceline train` has no flag {flag}", hint))
        elif not equals and not todo:
            problems.append((f"{flag} has no value", f"write one behind {flag}"))
        else:
            value = value if equals else todo.pop(0)
            if flag in _FLAGS:
                written.append(_written(_FLAGS[flag], value))
    return written, problems


def _written(key: Key, value: str) -> Written:
    if key.kind is Kind.OPTIONS and "=" in value:
        name, _, option = value.partition("=")
        return Written(key=key.name, raw={name.strip(): option}, where=key.flag)
    return Written(key=key.name, raw=value, where=key.flag)

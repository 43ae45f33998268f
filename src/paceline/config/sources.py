"""What did PACELINE_* variables and `--set` write? Each to `Written`, unread."""

from collections.abc import Iterable, Mapping

from paceline.config.key import Kind
from paceline.config.keys import KEYS
from paceline.config.sections import in_flat_keys
from paceline.config.values import Raw
from paceline.config.written import FileContent, Written
from paceline.environ import PREFIX
from paceline.errors import Problem


def from_variables(variables: Mapping[str, str]) -> list[Written]:
    """`{"num_workers": "4"}`, as environ.config_variables gives it. Empty means not said."""
    return [
        Written(key=key, raw=_listed(key, text), where=PREFIX + key.upper())
        for key, text in variables.items()
        if text.strip()
    ]


def from_sets(texts: Iterable[str]) -> FileContent:
    """`--set steps=50`, `--set task_options.hidden=64`, `--set train.epochs=5`."""
    entries: list[Written] = []
    problems: list[Problem] = []
    for text in texts:
        name, equals, value = text.partition("=")
        key, dot, option = name.strip().partition(".")
        key = key.replace("-", "_")
        if not equals or not key:
            hint = "write --set key=value, such as --set steps=50"
            problems.append(Problem(f"--set got {text!r}, which is not key=value", hint, "--set"))
            continue
        raw: Raw = {option: value} if dot else _listed(key, value)
        entries.append(Written(key=key, raw=raw, where=f"--set {name.strip()}"))
    return in_flat_keys(FileContent(entries=tuple(entries), problems=tuple(problems)))


def _listed(key: str, text: str) -> Raw:
    """One line of text holds several rules when they are separated by `;`."""
    if key in KEYS and KEYS[key].kind in (Kind.STRAGGLERS, Kind.BYZANTINE, Kind.EXPORTS):
        return [part.strip() for part in text.split(";") if part.strip()]
    return text

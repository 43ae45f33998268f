"""`paceline explain`: meaning and remedy of an error code, an exit code or an alert."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from paceline.cli.options import code_names, common_options
from paceline.cli.output import emit
from paceline.core.error_catalog.index import ERROR_CATALOG, EXIT_CODE_MEANINGS
from paceline.core.errors import ConfigError, ErrorEntry, ExitCode, Problem
from paceline.core.humanize import did_you_mean
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.monitoring.alerts.rules import Rule
    from paceline.plan.codec import Json

_VALUE = re.compile(r"\{\w+\}")  # known only when it fires


@click.command("explain")
@click.argument("what", nargs=-1, metavar="[CODE | exit NUMBER | ALERT]", shell_complete=code_names)
@common_options
def explain(session: Session, what: tuple[str, ...]) -> None:
    """Explain an error code: meaning, common causes and remedies.

    Also explains exit codes (`exit 7`) and alerts (by name). Without an argument, lists all error codes.
    """
    match [word.strip() for word in what]:
        case []:
            _list(session)
        case [word] if word.upper() in ERROR_CATALOG:
            _error(session, ERROR_CATALOG[word.upper()])
        case ["exit", number] | [number] if number.isdecimal() and int(number) in list(ExitCode):
            _exit_code(session, ExitCode(int(number)))
        case words:
            _alert(session, " ".join(words))


def _list(session: Session) -> None:
    rows: list[Json] = [{"code": row.code, "why": row.why} for row in ERROR_CATALOG.values()]
    lines = [f"{row.code}  {row.why}" for row in ERROR_CATALOG.values()]
    emit(session, "explain.list", {"errors": rows}, [*lines, "", "more: paceline explain E201"])


def _error(session: Session, row: ErrorEntry) -> None:
    data: dict[str, Json] = {
        "code": row.code,
        "exit_code": int(row.exit_code),
        "error": row.kind.rpartition(":")[2] or None,
        "why": row.why,
        "causes": list(row.causes),
        "do": list(row.do),
        "example": row.example,
    }
    emit(session, "explain", data, error_lines(row))


def error_lines(row: ErrorEntry) -> list[str]:
    return [
        f"{row.code}: {row.why}",
        "",
        "common causes:",
        *_listed(row.causes),
        "remedies:",
        *_listed(row.do),
        f"exit code: {int(row.exit_code)}, {EXIT_CODE_MEANINGS[row.exit_code]}",
        f"example: error[{row.code}]: {row.example}",
    ]


def _exit_code(session: Session, number: ExitCode) -> None:
    rows = [row for row in ERROR_CATALOG.values() if row.exit_code is number]
    codes: list[Json] = [row.code for row in rows]
    lines = [f"exit code {int(number)}: {EXIT_CODE_MEANINGS[number]}"]
    if rows:
        lines += ["", "errors with this exit code:", *(f"  {row.code}  {row.why}" for row in rows)]
    data: dict[str, Json] = {"exit_code": int(number), "meaning": EXIT_CODE_MEANINGS[number], "errors": codes}
    emit(session, "explain.exit", data, lines)


def _alert(session: Session, word: str) -> None:
    from paceline.monitoring.alerts.rule_file import default_rules

    rules = {rule.name: rule for rule in default_rules().rules}
    by_lower = {name.lower(): rule for name, rule in rules.items()}
    if word.lower() not in by_lower:
        known = "`paceline explain` lists the codes; `paceline alerts check` the alerts"
        hint = did_you_mean(word, [*ERROR_CATALOG, *rules], otherwise=known)
        raise ConfigError([Problem(f"there is no error, exit code or alert {word!r}", hint, "CODE")])
    rule = by_lower[word.lower()]
    emit(session, "explain.alert", _alert_data(rule), _alert_lines(rule))


def _alert_data(rule: "Rule") -> dict[str, "Json"]:
    fields = {name: value for name, value in asdict(rule).items() if isinstance(value, str | int | float)}
    return {**fields, "severity": rule.severity.name.lower(), "runbook": _runbook(rule)}


def _alert_lines(rule: "Rule") -> list[str]:
    return [
        f"{rule.name} ({rule.severity.name.lower()}, {rule.component}): {_VALUE.sub('…', rule.summary)}",
        "",
        rule.description,
        f"runbook: {_runbook(rule)}",
    ]


def _runbook(rule: "Rule") -> str:
    return f"docs/runbooks/{rule.name}.md"


def _listed(lines: Sequence[str]) -> list[str]:
    return [f"  - {line}" for line in lines]

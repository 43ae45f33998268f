"""Which notifiers does a rule file name, and does each have what it needs?"""

import shlex

from paceline.watch.rule_values import Near, Table, Values
from paceline.watch.rules import NotifierKind, NotifierSetting

_KEYS = {"name", "kind", "min_severity", "most_per_minute", "retries", "timeout"}
_NEEDS: dict[NotifierKind, tuple[str, ...]] = {  # what it cannot do without; of a|b one of both
    NotifierKind.TERMINAL: (),
    NotifierKind.LOG: ("path",),
    NotifierKind.WEBHOOK: ("url|url_file",),
    NotifierKind.COMMAND: ("command",),
    NotifierKind.SMTP: ("host", "from", "to"),
    NotifierKind.ALERTMANAGER: ("url|url_file",),
}
_MAY: dict[NotifierKind, tuple[str, ...]] = {
    NotifierKind.TERMINAL: ("bell",),
    NotifierKind.WEBHOOK: ("format",),
    NotifierKind.SMTP: ("port", "user", "password_file", "ca_file"),
}
FORMATS = ("slack", "discord", "json")


def read_notifier(values: Values, said: object, index: int, near: Near) -> NotifierSetting | None:
    place = f"notifier {index + 1}"
    everything = {*_KEYS, *(o for kind in NotifierKind for o in _options(kind))}
    table = values.mapping(said, place, everything, near)
    if not table:
        return None  # that has been said
    word = str(table.get("kind", ""))
    if word not in {k.value for k in NotifierKind}:
        values.problem(f"{place}: kind is {word!r}", f"use one of {', '.join(NotifierKind)}", said, "kind")
        return None
    kind, place = NotifierKind(word), f"notifier {word}"
    for key in table:
        if key in everything and key not in {*_KEYS, *_options(kind)}:
            allowed = ", ".join(sorted({*_KEYS, *_options(kind)}))
            values.problem(f"{place} has no {key}", f"it may have {allowed}", said, key)
    options = {k: str(v) for k, v in table.items() if k in _options(kind)}
    _check(values, kind, table, options, place)
    return NotifierSetting(
        name=str(table.get("name", word)),
        kind=kind,
        min_severity=values.severity(table, "min_severity", place),
        most_per_minute=values.count(table, "most_per_minute", 20, place, least=1),
        retries=values.count(table, "retries", 3, place),
        timeout_s=values.seconds(table, "timeout", 5.0, place) or 5.0,
        options=options,
    )


def _options(kind: NotifierKind) -> list[str]:
    return [name for need in _NEEDS[kind] for name in need.split("|")] + list(_MAY.get(kind, ()))


def _check(values: Values, kind: NotifierKind, table: Table, options: dict[str, str], place: str) -> None:
    for need in _NEEDS[kind]:
        names = need.split("|")
        if sum(name in options for name in names) != 1:
            values.problem(f"{place} needs {' or '.join(names)}", f"{names[0]}: …", table)
    if "format" in options:
        values.choice(table, "format", "slack", FORMATS, place)
    if "port" in options:
        values.count(table, "port", 25, place, least=1)
    if "bell" in options:
        values.choice(table, "bell", "True", ("True", "False"), place)
    if ("user" in options) != ("password_file" in options):
        values.problem(f"{place} needs user and password_file, or neither", "password_file: …", table)
    if "command" in options:
        try:
            has_words = bool(shlex.split(options["command"]))
        except ValueError:
            has_words = False
        if not has_words:
            what = f"{place}: command cannot be split into words, or has none"
            values.problem(what, "command: notify-send paceline", table, "command")

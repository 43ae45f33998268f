"""How is one rule of a repeatable setting, `worker=1,factor=3`, read by a table of its parts?"""

from collections.abc import Callable, Mapping

from paceline.config.nearest import did_you_mean
from paceline.config.values import Raw, Unreadable, shown
from paceline.errors import Problem

# Written name, to the field of the rule and its reader.
Fields = Mapping[str, tuple[str, Callable[[Raw], float | str]]]


def read_fields(
    pairs: Mapping[str, Raw], fields: Fields, *, what: str, also: str = "", example: str, where: str | None
) -> tuple[dict[str, float | str], list[Problem]]:
    """The rule's fields that could be read, and a problem for each that could not.

    `what` is the setting's name; `also` names parts that are read elsewhere.
    """
    problems: list[Problem] = []
    found: dict[str, float | str] = {}
    for name, value in pairs.items():
        if name not in fields:
            hint = did_you_mean(name, fields, otherwise=f"a rule knows {', '.join(fields)}{also}")
            problems.append(Problem(f"{what} has no setting {shown(name)}", hint, where))
            continue
        field, reader = fields[name]
        try:
            found[field] = reader(value)
        except Unreadable as error:
            problems.append(Problem(f"{what}'s {name} is {shown(value)}, but {error.why}", example, where))
    return found, problems

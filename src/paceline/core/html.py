"""HTML elements that escape everything they hold, for text of unknown origin.

Only what these functions made is markup; any other text is text.
"""

import html
import json
from collections.abc import Iterable
from typing import TypeAlias

VOID = frozenset({"meta", "line", "path", "circle", "rect", "polyline", "col"})


class Markup(str):
    """Text that is HTML already. Made here only."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child]"


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """`tag("td", "a < b", scope="row")`; `class_` and `data_key` become `class` and `data-key`."""
    attributes_text = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{attributes_text}/>")
    return Markup(f"<{name}{attributes_text}>{inner(children)}</{name}>")


def inner(child: Child) -> Markup:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return Markup(html.escape(child, quote=False))
    return Markup("".join(inner(part) for part in child))


def raw(text: str) -> Markup:
    """Text from paceline itself, such as a style sheet; it must not be able to end its element."""
    assert "</" not in text, "it would end its element"
    return Markup(text)


def number_cell(text: str, key: str, value: float | int | None, note: str = "") -> Markup:
    """A number as people read it, with exactly what comparison.json holds under this key."""
    small = [" ", tag("span", note, class_="note")] if note else []
    return tag("td", text, small, class_="number", data_key=key, data_value=json.dumps(value))


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text)}"'

"""How does a result look in a notebook? A small table, in which nothing is markup but ours."""

from collections.abc import Iterable, Sequence
from html import escape


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"<caption>{escape(title)}</caption>"]
    if heads:
        lines.append(_row(heads, "th"))
    lines += [_row(row, "td") for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

"""Markdown tables whose cells are escaped."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [_line(heads), _line(["---"] * len(heads))]
    return [*lines, *(_line(row) for row in rows)]


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Text in which `<name>` is no HTML tag, except inside code, where nothing is."""
    parts = text.split("`")
    return "`".join(p if n % 2 else p.replace("<", "&lt;").replace(">", "&gt;") for n, p in enumerate(parts))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(prose(cell).replace("|", "\\|").split()) for cell in cells) + " |"

"""Parser of documentation pages: headings, links, and code blocks to run.

A comment above a code block tells the tests what to do with it; it is not rendered:

    <!-- save as my_task.py -->           the block becomes this file
    <!-- run -->                          the block is run with bash and must succeed; a block of
                                          `python` is run by python, as a separate program
    <!-- run, exit code 8 -->             … must end with this code
    <!-- run, prints: bit by bit -->      … must succeed and print this
    <!-- not run: needs a cluster -->     … is only parsed; `docs/shell_blocks.py` lists the reasons

A block of shell without a comment is an error.

The blocks of one page are run in order, in one fresh folder.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

FENCE = re.compile(
    r"^(?:<!-- (?P<order>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.M)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Save:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    text: str
    exit_code: int = 0
    prints: str = ""
    language: str = "sh"


Order = Save | Run


def all_pages() -> list[Path]:
    beside = [ROOT / "infra" / "README.md", ROOT / "benchmarks" / "README.md"]
    return [*sorted(ROOT.glob("*.md")), *beside, *sorted((ROOT / "docs").rglob("*.md"))]


def orders(text: str) -> Iterator[Order]:
    """The orders for the blocks of a page, in order."""
    for block in FENCE.finditer(text):
        order, language = block["order"] or "", block["language"]
        if order.startswith("save as "):
            yield Save(order.removeprefix("save as "), block["text"])
        elif order.startswith("run, exit code "):
            code = int(order.removeprefix("run, exit code "))
            yield Run(block["text"], exit_code=code, language=language)
        elif order.startswith("run, prints: "):
            yield Run(block["text"], prints=order.removeprefix("run, prints: "), language=language)
        elif order == "run":
            yield Run(block["text"], language=language)
        else:
            known = not order.startswith(("run", "save", "not")) or order.startswith("not run: ")
            assert known, f"unknown comment {order!r}"


def links(text: str) -> list[str]:
    """The targets of all links, outside of code."""
    return _LINK.findall(_without_code(text))


def anchors(text: str) -> set[str]:
    """Anchors of this page, as GitHub derives them from the headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(_without_blocks(text)):
        number, plain = 0, slug(heading)
        free = plain
        while free in found:
            number += 1
            free = f"{plain}-{number}"
        found.add(free)
    return found


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub derives it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _without_blocks(text: str) -> str:
    return FENCE.sub("", text)


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", _without_blocks(text))

"""The examples of the pages work when saved and run in a fresh folder."""

from pathlib import Path

import pytest
from docs.pages import ROOT, all_pages, orders
from tests.fixtures.processes.shell_blocks import type_all

# The pages of the exercise build on each other: test_exercise.py types them one after the other.
ELSEWHERE = ROOT / "docs" / "learn"
PAGES = [
    page for page in all_pages() if page.parent != ELSEWHERE and any(orders(page.read_text(encoding="utf-8")))
]
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Run by what is installed and nothing else; on other pages `paceline` shares the import of torch.
COLD = [ROOT / "README.md"]
# Each of its blocks starts torchrun, and each of those imports torch for itself.
LONG = [ROOT / "docs" / "guides" / "torchrun.md"]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.soak] if page in LONG else []) for page in PAGES],
    ids=IDS,
)
def test_the_commands_of_a_page_do_what_it_states(page: Path, tmp_path: Path) -> None:
    type_all(orders(page.read_text(encoding="utf-8")), tmp_path, is_cold=page in COLD)


def test_the_readme_and_the_guides_are_run() -> None:
    guides = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "guides").glob("*.md")}
    assert {"README.md", *guides} <= set(IDS)

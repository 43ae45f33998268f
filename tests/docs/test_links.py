"""Every link resolves, and every page that the code names exists."""

import re
import tomllib
from pathlib import Path

import pytest
from docs.pages import ROOT, all_pages, anchors, links

PAGES = all_pages()
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
MAKE_TARGET = re.compile(r"\bmake ([a-z][a-z-]*)\b")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_link_is_dead(page: Path) -> None:
    dead = [link for link in links(page.read_text(encoding="utf-8")) if not _leads_somewhere(page, link)]
    assert not dead


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = (_target(page, link)[0] for link in links(page.read_text(encoding="utf-8")))
        todo += [target for target in targets if target.suffix == ".md" and target.exists()]
    assert set(PAGES) <= reached


def test_every_page_that_the_code_names_exists() -> None:
    named = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\bdocs/[\w/.-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named, "the code points to its documentation"
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_every_make_target_is_documented_and_every_documented_one_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    named = {t for page in PAGES for t in MAKE_TARGET.findall(_code_of(page))}
    assert named <= targets
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert targets <= set(MAKE_TARGET.findall(contributing))


def test_decisions_are_numbered_without_a_gap_and_have_a_status_and_rejected_alternatives() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert {"context", "decision", "consequences", "rejected"} <= anchors(text), path.name
        assert re.search(r"^Status: (accepted|superseded by)\b", text, re.M), path.name


def test_the_index_of_decisions_lists_each_once_with_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(.+?)\]\((0\d+-.+?\.md)\)", index, re.M)
    titles = {
        path.name: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        for path in folder.glob("0*.md")
    }
    assert sorted(listed) == sorted((title, name) for name, title in titles.items())


def test_contributing_names_the_layers_of_the_import_rules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert " · ".join(f"`{layer}`" for layer in layers) in " ".join(contributing.split())


def test_commits_that_blame_ignores_are_whole_hashes() -> None:
    lines = (ROOT / ".git-blame-ignore-revs").read_text(encoding="utf-8").splitlines()
    hashes = [line for line in lines if line and not line.startswith("#")]
    assert hashes
    assert [line for line in hashes if not re.fullmatch(r"[0-9a-f]{40}", line)] == []


def _leads_somewhere(page: Path, link: str) -> bool:
    if re.match(r"https?://|mailto:", link):
        return True  # not ours to check: tests make no requests
    target, anchor = _target(page, link)
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target.read_text(encoding="utf-8"))


def _target(page: Path, link: str) -> tuple[Path, str]:
    name, _, anchor = link.partition("#")
    return (page.parent / name).resolve() if name else page, anchor


def _code_of(page: Path) -> str:
    """All inline code and code blocks: there `make x` is a command, elsewhere it may be a sentence."""
    text = page.read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```.*?^```|`[^`\n]+`", text, re.M | re.S))

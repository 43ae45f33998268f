"""Every shell block is run, or has a reason why not; every command on a page parses."""

import re
from pathlib import Path

import pytest
from docs.pages import FENCE, ROOT, all_pages
from docs.shell_blocks import REASONS, commands, problem, shell_blocks

from paceline.cli.main import cli

PAGES = [page for page in all_pages() if page.name != "CHANGELOG.md"]  # it tells of what was


def test_every_shell_block_is_run_or_gives_a_reason() -> None:
    silent = [
        f"{page.relative_to(ROOT)}:{block.line}"
        for page in PAGES
        for block in shell_blocks(page.read_text(encoding="utf-8"))
        if not re.match(r"run\b", block.order) and block.order not in {f"not run: {r}" for r in REASONS}
    ]
    assert not silent, "write <!-- run … --> above each, or <!-- not run: REASON --> with one of REASONS"


def test_every_command_in_a_shell_block_is_parsed() -> None:
    results = [
        (page, block.line, words)
        for page in PAGES
        for block in shell_blocks(page.read_text(encoding="utf-8"))
        for words in commands(block.text)
        if words[0] == "paceline"
    ]
    assert len(results) > 200
    wrong = [(_location(page), line, words, problem(words, cli)) for page, line, words in results]
    assert not [item for item in wrong if item[3]]


def test_every_command_that_a_sentence_names_exists() -> None:
    """Also `paceline job explain NAME`, where what is left out or in capitals is yours to say."""
    wrong = [
        (_location(page), words, error)
        for page in PAGES
        for text in re.findall(r"`(paceline [^`\n]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))
        for words in commands(text.replace("[OPTIONS]", "").replace("…", ""))
        if words[0] == "paceline" and (error := problem(words, cli, loosely=True))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("paceline trian --steps 3", "No such command 'trian'"),
        ("paceline train --step-count 3", "No such option '--step-count'"),
        ("paceline job render --target nomad", "'nomad' is not one of"),
        ("paceline replay", "Missing argument"),
        ("paceline replay runs/a runs/b", "unexpected: runs/b"),
        ("A=1 paceline coordinator stat | cat", "No such command 'stat'"),
        ("paceline train --set 'a=\n1' --color pink", "'pink' is not one of"),
    ],
)
def test_what_a_reader_would_be_refused_is_found(line: str, text: str) -> None:
    (words,) = (words for words in commands(line) if words[0] == "paceline")
    assert text in (problem(words, cli) or "")


def test_commands_of_other_programs_are_left_alone() -> None:
    text = "cat > paceline.txt <<'END'\npaceline nonsense\nEND\necho paceline nonsense  # paceline nonsense\n"
    assert [words[0] for words in commands(text)] == ["cat", "echo"]


def _location(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()

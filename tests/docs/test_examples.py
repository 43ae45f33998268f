"""Does what the pages tell you to type work? Saved and run as a reader would, in a fresh folder."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from docs.pages import ROOT, Run, Save, all_pages, orders
from tests.fixtures.warm_helpers import warm_helpers

PAGES = [page for page in all_pages() if any(orders(page.read_text(encoding="utf-8")))]
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Run by what is installed and nothing else; on other pages `paceline` shares the import of torch.
COLD = [ROOT / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    for order in orders(page.read_text(encoding="utf-8")):
        match order:
            case Save(name, text):
                (tmp_path / name).write_text(text, encoding="utf-8")
            case Run(text, exit_code, prints, language):
                done = _run(text, tmp_path, language, is_cold=page in COLD)
                said = f"{text}\n{done.stdout}\n{done.stderr}"
                assert done.returncode == exit_code, said
                assert prints in " ".join(said.split()), said  # lines are wrapped to the terminal's width


def test_the_readme_and_the_guides_are_run() -> None:
    guides = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "guides").glob("*.md")}
    assert {"README.md", *guides} <= set(IDS)


def _run(text: str, folder: Path, language: str, *, is_cold: bool) -> subprocess.CompletedProcess[str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    binaries = str(Path(sys.executable).parent)
    ours = binaries if is_cold else f"{warm_helpers().commands}:{binaries}"
    # What a command keeps for its user must not meet what this user has.
    own = {"PATH": f"{ours}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(folder / "config")}
    bash = ["bash", "-euo", "pipefail", "-c", text]
    command = [sys.executable, "-c", text] if language == "python" else bash
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**mine, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate()
        finally:
            with suppress(ProcessLookupError):  # nothing was left in the background
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)

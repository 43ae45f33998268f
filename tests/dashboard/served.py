"""A dashboard as a process, opened in a real browser as a user would."""

import fcntl
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page
from tests.fixtures.processes.command import ROOT
from tests.fixtures.waiting import NEVER_S, until

from paceline.dashboard.launch import PAGE

AXE = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
Scheme = Literal["light", "dark"]


def needs_page() -> None:
    if not (PAGE / "app.js").exists() or not AXE.exists() or not _is_of_these_sources():
        pytest.skip("NOT SEEN BY A BROWSER: the page was not built; run `make page`, which needs npm")


@cache
def _is_of_these_sources() -> bool:
    """A page that is older than its sources is rebuilt, so that tests see the sources' content."""
    with (Path(tempfile.gettempdir()) / "paceline-page.lock").open("w") as lock:  # several test processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, str(ROOT / "dashboard" / "build.py")]
        return subprocess.run(command, check=False).returncode == 0


@dataclass
class Served:
    url: str
    process: subprocess.Popen[str]

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    def get(self, path: str) -> Any:  # Any: JSON
        asking = urllib.request.Request(
            f"{self.origin}{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(asking, timeout=60) as answer:
            return json.loads(answer.read())


@contextmanager
def dashboard(*args: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "dashboard", *args, "--json", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        data = json.loads(process.stdout.readline())
        yield Served(str(data["data"]["url"]), process)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@dataclass
class Opened:
    """A page, and everything it said or asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def until(self, script: str, description: str) -> None:
        """Not by wait_for_function: the page's own policy forbids it to evaluate texts."""
        until(lambda: bool(self.page.evaluate(script)), description)

    def go(self, name: str) -> None:
        self.page.locator("nav a", has_text=name).click()
        self.until(f"document.getElementById('page').dataset.page === '{name.lower()}'", f"page {name}")

    def view(self) -> Any:  # Any: JSON
        return json.loads(str(self.page.evaluate("window.__paceline.view()")))

    def violations(self) -> list[str]:
        """What axe finds fault with, in words."""
        if not self.page.evaluate("!!window.axe"):
            self.page.evaluate(AXE.read_text() + "; undefined")
        violations = self.page.evaluate("axe.run({resultTypes: ['violations']}).then(r => r.violations)")
        return [f"{v['id']}: {[n['target'] for n in v['nodes']][:3]}" for v in violations]


@contextmanager
def opened(browser: Browser, url: str, scheme: Scheme = "light") -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(NEVER_S * 1000)
    page = context.new_page()
    tab = Opened(page)
    page.on("console", lambda m: tab.said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: tab.said.append(str(error)))
    page.on("request", lambda request: tab.asked.add(request.url))
    try:
        page.goto(url)
        tab.until("!!window.__paceline && window.__paceline.view() !== 'null'", "the run is shown")
        yield tab
    finally:
        context.close()


def lines_of(run_dir: Path) -> int:
    return (run_dir / "events.jsonl").read_bytes().count(b"\n")

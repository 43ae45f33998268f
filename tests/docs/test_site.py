"""The site is complete and loads nothing from other hosts; built strictly: a warning is a failure."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from docs.pages import ROOT
from tests.comparison.browser import open_browser

# What a page loads by itself. A link (`<a href>`) is the reader's own step, and may lead anywhere.
LOADED = re.compile(r"<(?:script|link|img|iframe|source|video|audio|embed|object)\b[^>]*")
ADDRESS = re.compile(r"""(?:src|href|data|srcset)\s*=\s*["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    """That the navigation names all, and nothing that is not there, is what `--strict` proves."""
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(settings)["validation"]["omitted_files"] == "warn", (
        "a page that was left out is told"
    )


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    elsewhere = {
        tag for page in pages for tag in LOADED.findall(page.read_text("utf-8")) if ADDRESS.search(tag)
    }
    assert not {tag for tag in elsewhere if 'rel="canonical"' not in tag}
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert not [text for text in styles if re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", text)]


def test_a_page_links_to_code_that_lies_in_the_site(site: Path) -> None:
    """And says of a block that it is not run, and why."""
    text = (site / "map.html").read_text("utf-8")
    assert 'href="source/src/paceline/worker/loop.py.txt"' in text
    assert (site / "source/src/paceline/worker/loop.py.txt").is_file()
    assert '<p class="not-run">' in (site / "guides/jobs.html").read_text("utf-8")


def test_it_opens_from_a_folder_searches_and_sends_no_request(site: Path) -> None:
    """And the quick reference is one sheet of paper."""
    with open_browser() as browser:
        page = browser.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        # By the address: what is typed before the page listens would be lost.
        page.goto((site / "guides" / "stragglers.html").as_uri() + "?q=staleness")
        page.wait_for_selector(".md-search-result__item", state="attached", timeout=120_000)
        assert not [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))]
        page.goto((site / "quick-reference.html").as_uri())
        sheet = page.pdf(format="A4", print_background=False)
        assert len(re.findall(rb"/Type\s*/Page\b", sheet)) == 1

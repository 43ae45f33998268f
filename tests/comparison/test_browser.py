"""The comparison report in a real browser, opened from the file alone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from playwright.sync_api import Browser, Page
from tests.comparison.browser import open_browser
from tests.comparison.made import comparison, default_runs, run, runs

from paceline.comparison.report.comparison import write_all
from paceline.comparison.report.runs import run_page
from paceline.plan.codec import Json

Scheme: TypeAlias = Literal["light", "dark"]
SCHEMES: list[Scheme] = ["light", "dark"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as result:
        yield result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("compared")
    result = default_runs() | {"ssgd-2": runs("ssgd", 2, (7.0, 7.1, 6.9), (0.95, 0.96, 0.94), waiting=0.3)}
    write_all(comparison(result), place)
    return place


class Opened:
    """A page, and everything it said or asked for."""

    def __init__(self, browser: Browser, path: Path, *, width: int = 1280, scheme: Scheme = "light") -> None:
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_report_sends_no_request_and_logs_no_error(browser: Browser, folder: Path, scheme: Scheme) -> None:
    path = folder / "report.html"
    opened = Opened(browser, path, scheme=scheme)
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [path.as_uri()]
    assert path.stat().st_size < 1_000_000


def test_the_numbers_on_the_page_are_those_of_the_file(browser: Browser, folder: Path) -> None:
    opened = Opened(browser, folder / "report.html")
    data = json.loads((folder / "comparison.json").read_text())
    shown: list[list[str]] = opened.page.eval_on_selector_all(
        "[data-key]", "found => found.map(e => [e.dataset.key, e.dataset.value, e.textContent])"
    )
    keys = {key for key, _, _ in shown}
    for label in data["cells"]:
        for name in ("seconds", "speedup/value", "efficiency/value", "quality/value", "bytes_out", "loss"):
            assert f"/cells/{label}/{name}" in keys
    for key, value, text in shown:
        assert json.loads(value) == _at(data, key), key
        number = re.search(r"−?\d[\d,]*\.?\d*", text)
        if number and text.endswith("×"):  # what is written is the number, rounded
            assert float(number.group()) == pytest.approx(json.loads(value), abs=0.0051)
    assert opened.page.locator("[data-use]").get_attribute("data-use") == data["verdict"]["use"]
    assert data["verdict"]["headline"] in opened.page.inner_text("main")


def test_the_verdict_comes_first_then_the_table_the_pictures_and_the_proof(
    browser: Browser, folder: Path
) -> None:
    opened = Opened(browser, folder / "report.html")
    heads = opened.page.eval_on_selector_all("h2", "found => found.map(e => e.textContent)")
    order = ["Which mode to use", "The numbers", "Cost", "Pictures", "How it was measured"]
    assert [head for head in heads if head in order] == order
    assert opened.page.locator("h1").count() == 1


def test_light_is_light_and_dark_is_dark(browser: Browser, folder: Path) -> None:
    def brightness(scheme: Scheme) -> tuple[int, int]:
        page = Opened(browser, folder / "report.html", scheme=scheme).page
        colours = page.evaluate(
            "() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color] }"
        )
        back, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
        return back, text

    (light_back, light_text), (dark_back, dark_text) = brightness("light"), brightness("dark")
    assert light_back > 700 > 200 > light_text
    assert dark_back < 150 < 600 < dark_text


def test_on_a_telephone_only_the_tables_scroll(browser: Browser, folder: Path) -> None:
    opened = Opened(browser, folder / "report.html", width=400)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_pictures_and_tables_have_text_for_screen_readers(browser: Browser, folder: Path) -> None:
    page = Opened(browser, folder / "report.html").page
    pictures = page.locator("figure > svg")
    assert pictures.count() >= 6
    assert page.locator("figure > svg:not([role=img])").count() == 0
    names = "e => ['aria-labelledby', 'aria-describedby'].map(name => e.getAttribute(name))"
    for title, text in page.eval_on_selector_all("figure > svg", f"found => found.map({names})"):
        assert page.locator(f"#{title}").count() == 1
        assert len(page.inner_text(f"#{text}")) > 20
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator(".scroll:not([aria-label])").count() == 0


def test_a_report_can_be_printed(browser: Browser, folder: Path) -> None:
    paper = Opened(browser, folder / "report.html", scheme="dark").page.pdf(format="A4")
    assert paper.startswith(b"%PDF")


def test_no_text_of_a_run_becomes_markup(browser: Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=console.log('run')></style></script>"
    path = tmp_path / "report.html"
    path.write_text(run_page([run("ssgd", 2, 3.0)], [evil]), encoding="utf-8")
    opened = Opened(browser, path)
    assert opened.said == []
    assert evil in opened.page.inner_text("h1")


def _at(data: Json, key: str) -> Json:
    for part in key.strip("/").split("/"):
        assert isinstance(data, dict), key
        data = data[part]
    return data

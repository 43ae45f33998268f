"""The browser opens the right address, and no other user can read it."""

import html
import queue
import re
import stat
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.fixtures.waiting import NEVER_S
from tests.fixtures.wording import Wording

from paceline.cli.dashboard import browser_opener

URL = "http://127.0.0.1:8642/?token=secret&more=1"


class Started(webbrowser.BaseBrowser):
    """Reads what it is given when it is given it, as a browser does."""

    def __init__(self) -> None:
        super().__init__("started")
        self.seen: queue.Queue[tuple[str, str, int]] = queue.Queue()

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        page = Path(unquote(urlsplit(url).path))
        self.seen.put((url, page.read_text(), page.stat().st_mode))
        return True


def test_it_is_led_there_by_a_file_of_this_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Started()
    monkeypatch.setattr(webbrowser, "open", browser.open)
    with browser_opener(print) as show:
        show(URL)
        reported, page, mode = browser.seen.get(timeout=NEVER_S)
    assert "secret" not in reported
    assert stat.S_IMODE(mode) == 0o600
    leads = re.search(r'url=([^"]*)"', page)
    assert leads is not None
    assert html.unescape(leads[1]) == URL
    assert not Path(unquote(urlsplit(reported).path)).exists()


def test_a_machine_without_a_browser_reports_that(monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _url: False)
    text: queue.Queue[str] = queue.Queue()
    with browser_opener(text.put) as show:
        show(URL)
        wording(text.get(timeout=NEVER_S))

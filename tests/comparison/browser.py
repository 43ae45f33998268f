"""A real browser: the system's chromium, or a skip that says what to install."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        pytest.skip(f"NOT SEEN BY A BROWSER: no {' or '.join(NAMES)} here; apt-get install chromium")
    with sync_playwright() as playwright:
        # Tests run as root in containers, where chromium's own sandbox cannot start.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()

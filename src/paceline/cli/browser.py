"""How is an address with a secret in it opened in a browser? By a file that leads there, for this user alone.

What a program is started with, all users of a machine may see; so a browser is not told the address itself.
"""

import html
import os
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = """<!doctype html>
<title>Paceline</title>
<meta http-equiv="refresh" content="0; url={url}">
<a href="{url}">here</a>
"""


@contextmanager
def opener(say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Opens an address; what that needs is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:  # nobody else may look into it
        yield lambda url: _open(url, Path(folder) / "dashboard.html", say)


def _open(url: str, page: Path, say: Callable[[str], None]) -> None:
    with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(PAGE.format(url=html.escape(url)))

    def look() -> None:
        if not webbrowser.open(page.as_uri()):
            say("no browser was found on this machine")

    # Some browsers stay in the foreground, and whoever serves must not wait for one.
    threading.Thread(target=look, daemon=True).start()

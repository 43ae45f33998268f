"""How is a long command run so that it is heard live, ends in time, and leaves nobody behind?

It leads a process group of its own. Whatever happens (Ctrl-C, a deadline, an error of ours), the whole group
is asked to end, and made to end where it does not listen. What is secret goes through stdin, never into argv.
"""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline import clock, environ
from paceline.errors import NotReadyError

_GRACE_S = 10.0
_ORPHANS_S = 10.0  # once their leader is gone: they may be clearing up
_LOOK_S = 0.02
_MOST_SIGNS = 10_000  # of one line: what a step prints may have no end, and patterns read all of it
# Colours and what else moves a terminal: CSI and OSC sequences, and control signs but the tab.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    code: int
    text: str  # stdout and stderr as they came, or stdout alone where they were kept apart
    errors: str = ""
    was_too_slow: bool = False

    @property
    def is_well(self) -> bool:
        return self.code == 0 and not self.was_too_slow


def stream(
    words: Sequence[str],
    *,
    timeout_s: float,
    on_line: Callable[[str], None],
    more: Mapping[str, str] | None = None,
) -> Finished:
    """Run it; every line, of stdout and stderr alike, is handed on as it comes."""
    process = _start(words, more, errors=subprocess.STDOUT, has_stdin=False)
    lines: list[str] = []
    with _Ending(process, timeout_s) as watch:
        assert process.stdout is not None
        for raw in process.stdout:
            line = plain(raw)
            lines.append(line)
            on_line(line)
        process.wait()
    return Finished(code=process.returncode, text="\n".join(lines), was_too_slow=watch.has_struck)


def plain(line: str) -> str:
    """As a log holds it: what steers a terminal is left out, and what is too long is cut."""
    text = _CONTROL.sub("", line[: 2 * _MOST_SIGNS])
    return text if len(text) <= _MOST_SIGNS else f"{text[:_MOST_SIGNS]}…"


def ask(
    words: Sequence[str],
    *,
    timeout_s: float = 60.0,
    said: str | None = None,
    more: Mapping[str, str] | None = None,
) -> Finished:
    """Run it to its end, with `said` on its stdin."""
    process = _start(words, more, errors=subprocess.PIPE, has_stdin=said is not None)
    with _Ending(process, timeout_s) as watch:
        text, errors = process.communicate(said)
    return Finished(code=process.returncode, text=text, errors=errors, was_too_slow=watch.has_struck)


def _start(
    words: Sequence[str], more: Mapping[str, str] | None, *, errors: int, has_stdin: bool
) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(
            list(words),
            env=environ.for_child(**(more or {})),
            stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise NotReadyError(
            f"cannot start {words[0]}: {error.strerror}", f"see whether it is there: {words[0]} --version"
        ) from error


class _Ending:
    """Around a process: it does not outlive the block, and not its time."""

    def __init__(self, process: "subprocess.Popen[str]", timeout_s: float) -> None:
        self._process = process
        self._timer = threading.Timer(timeout_s, self._strike)
        self._timer.daemon = True
        self.has_struck = False

    def __enter__(self) -> "_Ending":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._process.poll() is None:
            self._end()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _strike(self) -> None:
        if self._process.poll() is None:
            self.has_struck = True
            self._end()

    def _end(self) -> None:
        # First whoever works for it: an engine whose step ends takes away what it was building in, but one
        # that is stopped itself leaves the step running.
        followers = _followers(self._process.pid)
        for pid in followers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        if followers and self._is_gone(_GRACE_S):
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            if self._is_gone(_GRACE_S):
                return

    def _is_gone(self, within_s: float) -> bool:
        """The process and its whole group: a child in the background does not hear SIGINT."""
        deadline = clock.monotonic_s() + within_s
        while clock.monotonic_s() < deadline:
            if self._process.poll() is not None:
                try:
                    os.killpg(self._process.pid, 0)
                except ProcessLookupError:
                    return True
                deadline = min(deadline, clock.monotonic_s() + _ORPHANS_S)
            clock.SystemClock().sleep(_LOOK_S)
        return False


def _followers(leader: int) -> list[int]:
    """The other members of its process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state parent group …; a name may hold spaces and brackets
            group = stat.read_text("utf-8", "replace").rpartition(")")[2].split()[2]
        except (OSError, IndexError):  # it ended meanwhile
            continue
        if int(group) == leader and int(stat.parent.name) != leader:
            found.append(int(stat.parent.name))
    return found

"""Where the output of a rank goes: its log file, and library warnings once to the terminal.

`log_to` gives a process whose terminal belongs to another process (a forked worker, an actor of Ray) a log
file as stdout and stderr, on the level of file descriptors: C++ libraries write there without Python.

Ranks of torchrun share the terminal, and what they print must stay on it: logs of pods are read from there.
Only library warnings are separated (`RankOutput`). Python warnings arrive by `warnings.showwarning`; lines
of C++ libraries arrive on file descriptor 2, which is the pipe of a small process (this file, run as a
script). It writes every warning to the rank's log, and rank 0's also to the terminal; every other line goes
to the terminal. It is a process, and not a thread, because the last lines before an abort are the cause of
it. Warnings before the log is known, such as those of imports, are held until then.
"""

import io
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

DRAIN_S = 5.0  # timeout for the last lines; processes left by a task may hold the pipe for longer
_WARNING = re.compile(
    rb"(\[rank\d+\]:)?\[?[IW]\d{4} \d"  # glog, absl, c10: [W1116 21:24:51.123 file.cpp:12]
    rb"|\[[IW] \S+:\d+\]"  # c10 before torch 2.2
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: [IW] "  # TensorFlow
    rb"|WARNING: All log messages before absl::InitializeLog"
    rb"|To enable the following instructions: "  # the second line of TensorFlow's banner
    rb"|\S.*:\d+: \w*Warning: "  # Python, in a process that a task started
)


def log_to(path: Path) -> None:
    """This process prints into the file from here on, at once: a killed process flushes nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


class RankOutput:
    """Separates the library warnings of this process, which is a rank of torchrun, until `close`."""

    def __init__(self, rank: int) -> None:
        self._terminal = os.dup(2)
        lines_read, lines_write = os.pipe()
        orders_read, self._orders = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(rank), str(orders_read)],
            stdin=lines_read,
            stdout=subprocess.DEVNULL,
            pass_fds=[orders_read],
        )
        sys.stderr.flush()
        # Python prints to the terminal directly: progress displays test whether stderr is one.
        sys.stderr = _text_of(self._terminal)
        os.dup2(lines_write, 2)
        for fd in (lines_read, lines_write, orders_read):
            os.close(fd)
        warnings.showwarning = self._show

    def log_to(self, path: Path) -> None:
        """The rank's log. Where the run's folder cannot be reached, warnings go to this host's terminal."""
        is_reached = path.parent.parent.is_dir()
        if is_reached:
            path.parent.mkdir(exist_ok=True)
        self._send({"log": str(path) if is_reached else ""})

    def close(self) -> None:
        sys.stderr.flush()
        os.dup2(self._terminal, 2)
        os.close(self._orders)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DRAIN_S)

    def _show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        if file is None:
            self._send({"text": text})
        else:
            file.write(text)

    def _send(self, order: dict[str, str]) -> None:
        data = json.dumps(order).encode() + b"\n"
        with suppress(OSError):  # the process was killed: a warning ends no training
            while data:
                data = data[os.write(self._orders, data) :]


def _text_of(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.FileIO(fd, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
        write_through=True,
    )


class _Separator:
    """The small process: lines of fd 0 and warnings of `orders` in, terminal (fd 2) and log out."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._held: list[bytes] | None = []  # until the log is known
        self._log: int | None = None
        self._is_in_warning = False  # the next line may be the source line of a Python warning

    def line(self, line: bytes) -> None:
        is_source = self._is_in_warning and line.startswith(b"  ")
        self._is_in_warning = _WARNING.match(line) is not None
        if self._is_in_warning or is_source:
            self._warn(line)
        else:
            _write(2, line)

    def order(self, line: bytes) -> None:
        order = json.loads(line)
        if "text" in order:
            self._warn(order["text"].encode())
            return
        held = self._held or []
        self._held = None
        with suppress(OSError):  # no log: then the terminal has them
            if order["log"]:
                self._log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for text in held:
            self._warn(text)

    def end(self) -> None:
        held = self._held or []
        self._held = None
        for text in held:
            self._warn(text)

    def _warn(self, text: bytes) -> None:
        if self._held is not None:
            self._held.append(text)
            return
        if self._log is not None:
            _write(self._log, text)
        if self._log is None or self._rank == 0:
            _write(2, b"[rank %d] %b" % (self._rank, text))


def _write(fd: int, data: bytes) -> None:
    with suppress(OSError):  # a terminal that hung up, a full disk
        while data:
            data = data[os.write(fd, data) :]


class _Lines:
    """Whole lines of a pipe, and at its end what is left."""

    def __init__(self, fd: int, take: Callable[[bytes], None]) -> None:
        self._fd = fd
        self._take = take
        self._rest = b""

    def read(self) -> bool:
        """False: the pipe has ended."""
        data = os.read(self._fd, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line + b"\n")
        if not data and self._rest:
            self._take(self._rest)
        return bool(data)


def main(args: Sequence[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends with its rank, and not before
        signal.signal(number, signal.SIG_IGN)
    separator = _Separator(int(args[0]))
    orders = int(args[1])
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ, _Lines(0, separator.line))
        selector.register(orders, selectors.EVENT_READ, _Lines(orders, separator.order))
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fd)
    separator.end()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Isolated subprocesses: run one function per process from the first import to the end, and time it.

`run_apart` starts a Python process for each order, calls one function of this package there with it, and
returns the result of that function. Modules that it imports (torch, TensorFlow, Ray) are not kept, so no
later process starts warm. The output of such a process goes to its log; Ctrl-C and an error end all of them.
"""

import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from paceline.core import environ
from paceline.core.clock import monotonic_s, unix_now_s
from paceline.core.errors import ConfigError, ExitCode, NotReadyError, PacelineError, Problem, TrainingError
from paceline.core.processes import die_with_parent
from paceline.launchers.ray.client import RayUnreachableError
from paceline.plan.codec import Json

GRACE_S = 20.0  # time for an orderly end before the kill
Order = Mapping[str, Json]
Note = Callable[[str], None]
_KINDS = {kind.exit_code: kind for kind in (TrainingError, NotReadyError, RayUnreachableError)}


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedResult:
    values: list[dict[str, Json]]  # one for each order
    called_unix_s: float  # when the first process was started
    total_s: float  # until the last one had ended


def run_isolated(
    entry: str,
    orders: Sequence[Order],
    *,
    log: Path,
    note: Note,
    env: Mapping[str, str] | None = None,
) -> IsolatedResult:
    """`entry` is `module:function`, called as function(order, note), and answers with a JSON object.

    Raises the error of the first that fails, and ends the others.
    """
    called_unix_s = unix_now_s()
    began_s = monotonic_s()
    children = _Children(note)
    with ExitStack() as stack:
        stack.callback(children.end)
        for number, order in enumerate(orders):
            path = log if len(orders) == 1 else log.with_name(f"{log.stem}-{number}{log.suffix}")
            children.start(entry, order, path, dict(env or {}))
        children.follow()
    return IsolatedResult(
        values=children.answers(), called_unix_s=called_unix_s, total_s=monotonic_s() - began_s
    )


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    log: Path
    buffer: bytes = b""
    answer: dict[str, Json] | None = None


class _Children:
    def __init__(self, note: Note) -> None:
        self._note = note
        self._all: list[_Child] = []
        self._selector = selectors.DefaultSelector()

    def start(self, entry: str, order: Order, log: Path, env: dict[str, str]) -> None:
        read_fd, write_fd = os.pipe()
        with log.open("wb") as printed:
            # Its own session: Ctrl-C in the terminal reaches the command alone, which ends this in order.
            process = subprocess.Popen(
                [sys.executable, "-m", "paceline.launchers.isolated", str(write_fd)],
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.STDOUT,
                pass_fds=[write_fd],
                start_new_session=True,
                env=environ.for_child(**env),
            )
        os.close(write_fd)
        child = _Child(process, log)
        self._all.append(child)
        self._selector.register(read_fd, selectors.EVENT_READ, child)
        assert process.stdin is not None, "stdin is a pipe"
        with process.stdin as stdin:
            stdin.write(json.dumps({"entry": entry, "order": dict(order)}).encode())

    def follow(self) -> None:
        """Wait for the end of all; PacelineError as soon as one fails."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                child: _Child = key.data
                data = os.read(key.fd, 1 << 16)
                if not data:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                    self._reap(child)
                    continue
                *lines, child.buffer = (child.buffer + data).split(b"\n")
                for line in lines:
                    self._handle_message(child, json.loads(line))

    def _handle_message(self, child: _Child, message: dict[str, Json]) -> None:
        match message["ev"]:
            case "note":
                self._note(str(message["text"]))
            case "answer":
                assert isinstance(message["value"], dict), "an answer is an object"
                child.answer = message["value"]
            case "error":
                raise _error(message)

    def _reap(self, child: _Child) -> None:
        code = child.process.wait()
        if code != 0 or child.answer is None:
            died = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise TrainingError(
                f"a process of the benchmark {died}{_last_line(child.log)}", f"see {child.log}"
            )

    def answers(self) -> list[dict[str, Json]]:
        return [child.answer for child in self._all if child.answer is not None]

    def end(self) -> None:
        """End all that still run: by SIGTERM, and if that takes too long, by SIGKILL."""
        for child in self._all:
            if child.process.poll() is None:
                child.process.terminate()
        deadline_s = monotonic_s() + GRACE_S
        try:
            for child in self._all:
                child.process.wait(max(0.1, deadline_s - monotonic_s()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for child in self._all:
                child.process.kill()
                child.process.wait()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()


def _last_line(log: Path) -> str:
    """The last line of what it printed, if it did."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].strip()[:300]}" if lines else ""


def _error(message: dict[str, Json]) -> PacelineError:
    problems = message["problems"]
    assert isinstance(problems, list), "problems are listed"
    parsed = [
        Problem(str(p["what"]), str(p["hint"]), code=str(p.get("code", "")))
        for p in problems
        if isinstance(p, dict)
    ]
    code = ExitCode(int(str(message["exit_code"])))
    if code is ExitCode.BAD_CONFIG:
        return ConfigError(parsed)
    return _KINDS.get(code, TrainingError)(parsed[0].what, parsed[0].hint).known_as(parsed[0].code)


def main() -> NoReturn:
    """The other side: one order, one answer."""
    die_with_parent()
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        code = _answer(json.loads(sys.stdin.read()))
    except BaseException:
        traceback.print_exc()
        code = int(ExitCode.INTERNAL)
    sys.stdout.flush()
    sys.stderr.flush()
    # In the interpreter's finalization torch's threads may end in a wrong order and abort the process.
    os._exit(code)


def _answer(order: dict[str, Json]) -> int:
    module, _, name = str(order["entry"]).partition(":")
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as out:

        def send(message: dict[str, Json]) -> None:
            out.write(json.dumps(message) + "\n")

        try:
            function = getattr(importlib.import_module(module), name)
            value = function(order["order"], lambda text: send({"ev": "note", "text": text}))
            send({"ev": "answer", "value": value})
        except PacelineError as error:
            traceback.print_exc()
            problems: list[Json] = [dict(problem) for problem in error.to_dicts()]
            send({"ev": "error", "exit_code": int(error.exit_code), "problems": problems})
            return int(error.exit_code)
    return int(ExitCode.OK)


def _on_sigterm(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

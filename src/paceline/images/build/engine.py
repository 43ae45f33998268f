"""Container engines: find docker, podman or buildah, run it, and clean up after it.

Without a request the first engine that works is taken.
"""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paceline.core import clock, environ
from paceline.core.errors import NotReadyError

# The engine leads its own process group. In every case (Ctrl-C, a deadline, an internal error), the whole
# group is terminated, and killed if it does not end. Secrets are passed through stdin, never in argv.

_GRACE_S = 10.0
_ORPHANS_S = 10.0  # after their leader's end: they may be cleaning up
_POLL_S = 0.02
_MAX_LINE_LENGTH = 10_000  # per line: output may be unbounded, and patterns read all of it
# Colours and what else moves a terminal: CSI and OSC sequences, and control signs but the tab.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    code: int
    text: str  # stdout and stderr interleaved, or stdout alone if they were separated
    errors: str = ""
    was_too_slow: bool = False

    @property
    def is_well(self) -> bool:
        return self.code == 0 and not self.was_too_slow


def stream(
    argv: Sequence[str],
    *,
    timeout_s: float,
    on_line: Callable[[str], None],
    more: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run it; every line of stdout and stderr is passed on as it arrives."""
    process = _start(argv, more, errors=subprocess.STDOUT, has_stdin=False)
    lines: list[str] = []
    with _Ending(process, timeout_s) as watch:
        assert process.stdout is not None
        for raw in process.stdout:
            line = plain_line(raw)
            lines.append(line)
            on_line(line)
        process.wait()
    return CommandResult(code=process.returncode, text="\n".join(lines), was_too_slow=watch.has_struck)


def plain_line(line: str) -> str:
    """The line for a log: without terminal control sequences, and cut if too long."""
    text = _CONTROL.sub("", line[: 2 * _MAX_LINE_LENGTH])
    return text if len(text) <= _MAX_LINE_LENGTH else f"{text[:_MAX_LINE_LENGTH]}…"


def run_command(
    argv: Sequence[str],
    *,
    timeout_s: float = 60.0,
    stdin: str | None = None,
    more: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run the command to its end, with `stdin` as its standard input."""
    process = _start(argv, more, errors=subprocess.PIPE, has_stdin=stdin is not None)
    with _Ending(process, timeout_s) as watch:
        text, errors = process.communicate(stdin)
    return CommandResult(code=process.returncode, text=text, errors=errors, was_too_slow=watch.has_struck)


def _start(
    argv: Sequence[str], more: Mapping[str, str] | None, *, errors: int, has_stdin: bool
) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(
            list(argv),
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
            f"cannot start {argv[0]}: {error.strerror}", f"check that it is installed: {argv[0]} --version"
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
        # Its child processes first: an engine whose step ends takes away what it was building in, but one
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
        """The process and its whole group: a child in the background does not receive SIGINT."""
        deadline = clock.monotonic_s() + within_s
        while clock.monotonic_s() < deadline:
            if self._process.poll() is not None:
                try:
                    os.killpg(self._process.pid, 0)
                except ProcessLookupError:
                    return True
                deadline = min(deadline, clock.monotonic_s() + _ORPHANS_S)
            clock.SystemClock().sleep(_POLL_S)
        return False


def _followers(leader: int) -> list[int]:
    """The other members of its process group."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state parent group …; a name may hold spaces and brackets
            group = stat.read_text("utf-8", "replace").rpartition(")")[2].split()[2]
        except (OSError, IndexError):  # it ended meanwhile
            continue
        if int(group) == leader and int(stat.parent.name) != leader:
            pids.append(int(stat.parent.name))
    return pids


_INSTALL = "install one, such as: apt-get install podman runc, or start Docker; then --engine NAME"
_VERSION_TIMEOUT_S = 60.0  # a busy machine may take its time


class EngineKind(Enum):
    DOCKER = "docker"
    PODMAN = "podman"
    BUILDAH = "buildah"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    kind: EngineKind
    path: str
    version: str
    has_buildx: bool = False

    @property
    def name(self) -> str:
        return "docker buildx" if self.has_buildx else self.kind.value


def find_engine(name: str | None = None) -> Engine:
    """The requested engine, else the first of docker, podman, buildah that responds. Raises NotReadyError."""
    kinds = list(EngineKind) if name is None else [EngineKind(name)]
    missing = []
    for kind in kinds:
        path = shutil.which(kind.value)
        if path is None:
            missing.append(f"{kind.value} is not installed")
            continue
        result = run_command([path, *_VERSION[kind]], timeout_s=_VERSION_TIMEOUT_S)
        if result.is_well:
            if (
                kind is EngineKind.DOCKER
                and "podman" in run_command([path, "--version"], timeout_s=_VERSION_TIMEOUT_S).text
            ):
                kind = EngineKind.PODMAN  # the package podman-docker: that name, and podman behind it
            buildx = (
                kind is EngineKind.DOCKER
                and run_command([path, "buildx", "version"], timeout_s=_VERSION_TIMEOUT_S).is_well
            )
            version = result.text.strip().rpartition(" ")[2]
            return Engine(kind=kind, path=path, version=version, has_buildx=buildx)
        missing.append(f"{kind.value} does not respond: {_last_line(result.errors or result.text)}")
    raise NotReadyError(f"no container engine can be used: {'; '.join(missing)}", _INSTALL)


# docker's client alone cannot build: the version of its server is required.
_VERSION = {
    EngineKind.DOCKER: ("version", "--format", "{{.Server.Version}}"),
    EngineKind.PODMAN: ("version", "--format", "{{.Client.Version}}"),
    EngineKind.BUILDAH: ("--version",),
}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


# podman and buildah build in a working container, and keep it when they are stopped. Each of our builds adds
# one name to its containers' list of hosts; a working container with that name belongs to this build
# alone.


def new_build_marker() -> str:
    return f"paceline-build-{secrets.token_hex(8)}.invalid"


def remove_leftovers(engine: Engine, mark: str) -> None:
    """Remove the remains of this build; docker removes its own."""
    if engine.kind is EngineKind.DOCKER:
        return
    storage = _storage(engine)
    if storage is None:  # storage unknown: the user gets the error that stopped the build
        return
    for file in storage.glob("*-containers/*/userdata/buildah.json"):
        try:
            is_ours = mark in file.read_text("utf-8")
        except OSError:  # another build ended, and took its own away
            continue
        if is_ours:
            run_command(
                [
                    engine.path,
                    "rm",
                    *(["--force"] if engine.kind is EngineKind.PODMAN else []),
                    file.parent.parent.name,
                ]
            )


def _storage(engine: Engine) -> Path | None:
    more = ["--format", "{{.Store.GraphRoot}}"] if engine.kind is EngineKind.PODMAN else []
    result = run_command([engine.path, "info", *more])
    if not result.is_well:
        return None
    return Path(
        result.text.strip()
        if engine.kind is EngineKind.PODMAN
        else str(json.loads(result.text)["store"]["GraphRoot"])
    )

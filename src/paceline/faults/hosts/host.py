"""One test host: a network, processes, mounts, a host name and a monotonic clock of its own.

Its first process holds the other namespaces and reads from a pipe of this process. When the pipe closes, or
that process is killed, the kernel kills every process of the host: no host outlives its owner, even after
kill -9. What a host can write is its `/tmp`, a folder of its own that survives a restart like a disk,
and its `/dev/shm`; the rest of the file system is read-only, so hosts cannot meet in files.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from paceline.core import environ
from paceline.core.processes import children_of, kill_each
from paceline.faults.hosts.requirements import HIDDEN_FOLDER, NoHostsError, clock_library

CLOCK_FILE = ".wall-clock"  # in the host's folder: what libfaketime adds to the time
MONOTONIC_STEP_S = 100_000  # between the monotonic clocks of two hosts: comparing them is a bug
STARTED_S = 30.0
MOMENT_S = 0.002
# The filters of cuts are for IPv4, so it has no IPv6.
# Arguments: the folder for /tmp, the file for /etc/hosts, the host's name.
_BOOT = """set -e
trap "" CHLD
ipv6=/proc/sys/net/ipv6/conf/all/disable_ipv6
[ ! -e $ipv6 ] || echo 1 >$ipv6
mount --bind "$2" /etc/hosts
mount -o remount,bind,ro /etc/hosts
mount --bind "$1" /tmp
mount -t tmpfs -o size=1g tmpfs /dev/shm
mount -o remount,bind,ro /
hostname "$3"
echo up
exec cat >/dev/null"""

# nsenter's own --wd is a folder of the machine, not of the host.
_IN_ITS_FOLDER = ("sh", "-c", f'cd {HIDDEN_FOLDER} && exec "$@"', "sh")


@dataclass(slots=True)
class HostProcess:
    """A program on a host. `process` enters the host and waits for the program, whose exit code it has."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        """The program's process, as seen from outside of the host; -1 once it has ended."""
        deadline_s = time.monotonic() + STARTED_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            children = children_of(self.process.pid)
            if children:
                return children[0]
            time.sleep(MOMENT_S)  # nsenter has not entered yet
        return -1

    def signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid != -1:
            os.kill(pid, number)

    def kill(self) -> int:
        """`kill -9` of the program alone, not of its children; returns its exit code."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def wait(self, timeout_s: float | None = None) -> int:
        return self.process.wait(timeout_s)

    def has_ended(self) -> bool:
        return self.process.poll() is not None


@dataclass(slots=True)
class Host:
    name: str  # its host name, which all hosts resolve
    number: int  # from 1
    address: str
    network_namespace: str
    folder: Path  # its /tmp, as seen from outside
    names_file: Path
    has_wall_clock: bool = False  # that can be stepped
    _first: subprocess.Popen[str] | None = None
    _first_pid: int = -1
    _started: list[HostProcess] = field(default_factory=list)

    @property
    def is_up(self) -> bool:
        return self._first is not None

    def boot(self) -> None:
        """Start its first process; its link is up when its network says so."""
        assert self._first is None, f"{self.name} is up already"
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.has_wall_clock:
            self.step_wall_clock(0.0)
        offset = str(self.number * MONOTONIC_STEP_S)
        self._first = subprocess.Popen(
            [
                *("ip", "netns", "exec", self.network_namespace),
                *("unshare", "--mount", "--uts", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child"),
                *("--time", "--monotonic", offset, "--boottime", offset),
                *("sh", "-c", _BOOT, "sh", str(self.folder), str(self.names_file), self.name),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._first.stdout is not None, "its output is piped"
        if self._first.stdout.readline() != "up\n":
            reason = self._first.communicate()[1].strip()
            self._first = None
            raise NoHostsError(f"{self.name} does not start: {reason}", "see the message of the system")
        self._first_pid = children_of(self._first.pid)[0]

    def power_off(self) -> None:
        """`kill -9` of all its processes at once. Cut its link first, or their connections are closed."""
        if self._first is None:
            return
        kill_each([self._first_pid])
        self._first.communicate()
        self._first = None
        for started in self._started:
            with started.process:  # waits, and closes its pipes
                pass
        self._started.clear()

    def start(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> HostProcess:
        """Start a program in the host's /tmp; `log` gets its output, else it is piped."""
        output = subprocess.PIPE if log is None else log.open("a", encoding="utf-8")
        try:
            process = self._enter(command, env or {}, stdin, output)
        finally:
            if not isinstance(output, int):
                output.close()
        self._started.append(HostProcess(process))
        return self._started[-1]

    def run(
        self, command: Sequence[str], *, timeout_s: float = 600.0, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end, whatever its exit code."""
        process = self._enter(command, env or {}, subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE)
        with process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except BaseException:
                kill_each(children_of(process.pid))
                raise
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process by its pid on the host, which is what its own log says."""
        done = self.run(["kill", f"-{int(number)}", str(pid)])
        if done.returncode != 0:
            raise ProcessLookupError(f"{self.name} has no process {pid}: {done.stderr.strip()}")

    def step_wall_clock(self, seconds: float) -> None:
        """Set the wall clock of the host's processes, also running ones, this far from the true time."""
        assert self.has_wall_clock, "the network was made with wall clocks"
        place = self.folder / CLOCK_FILE
        new = place.with_suffix(".new")
        new.write_text(f"{seconds:+f}s\n", encoding="ascii")
        new.replace(place)  # a process that reads it meanwhile sees the old one

    def _enter(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        stdin: int,
        stdout: int | IO[str],
        stderr: int = subprocess.STDOUT,
    ) -> subprocess.Popen[str]:
        assert self._first is not None, f"{self.name} is not up"
        namespaces = ("--net", "--mount", "--uts", "--ipc", "--pid", "--time")
        return subprocess.Popen(
            ["nsenter", "--target", str(self._first_pid), *namespaces, *_IN_ITS_FOLDER, *command],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
            env=environ.for_child(**self._variables(), **env),
        )

    def _variables(self) -> dict[str, str]:
        """The user's own files are the host's, and so is the clock."""
        home = str(HIDDEN_FOLDER)
        names = ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
        return {**dict.fromkeys(names, home), **self._clock_variables()}

    def _clock_variables(self) -> dict[str, str]:
        if not self.has_wall_clock:
            return {}
        return {
            "LD_PRELOAD": str(clock_library()),
            "FAKETIME_TIMESTAMP_FILE": str(HIDDEN_FOLDER / CLOCK_FILE),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

"""Local launcher: workers on this machine, forked by one warm helper process (the zygote).

`LocalLauncher()` starts the helper at once, so that it imports torch while the caller is still reading its
configuration; `run` then sends it plans, one after another. This side never imports torch. The other side is
worker/entry/zygote.py.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from paceline.core import environ
from paceline.core.errors import ConfigError, ExitCode, NotReadyError, PacelineError, Problem, TrainingError
from paceline.core.processes import kill_each, members_of_session
from paceline.launchers.supervision import Failure, Ledger
from paceline.plan.codec import Json, dumps
from paceline.plan.plan import Option, Plan
from paceline.storage.store import DamagedDataError, UnreachableStoreError

Message = dict[str, Json]


@dataclass(slots=True)
class RunOutcome:
    """How a run ended: each participant's report, and whether it was stopped early."""

    reports: dict[str, Message] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptStart:
    """How a training script is started alone, before its run (`probe_script`)."""

    file: str
    arguments: tuple[str, ...]
    folder: str
    seed: int
    dtype: str
    num_workers: int  # of the planned run
    has_trials: bool = False  # also whether a share can be repeated, and a batch divided


class Supervisor(Protocol):
    """Decisions about the workers of an elastic run."""

    coordinator: Message  # its endpoint, for the workers

    def started(self, participant: str, pid: int) -> None: ...

    def failed(
        self, participant: str, message: str, hint: str, *, is_hopeless: bool = False, code: str = ""
    ) -> None:
        """A worker reported an error; its exit follows. Hopeless: a replacement would fail too."""
        ...

    def left(self, participant: str) -> None:
        """A worker goes without the run's end; its exit follows."""
        ...

    def exited(self, participant: str, code: int, ledger: Ledger) -> None: ...

    def slow(self, participant: str, reason: str) -> None:
        """The other workers report that this one is slow."""
        ...

    def evacuate(self, participant: str, reason: str) -> None:
        """Move it to another host."""
        ...

    def grow(self, count: int, why: str) -> None:
        """Start this many more workers, as far as the plan allows."""
        ...

    def stopping(self) -> None:
        """Handle a request for an orderly stop of the run."""
        ...

    def cancel(self) -> None:
        """All participants are about to be killed: none is replaced."""
        ...

    def wait_s(self) -> float | None:
        """How long until `orders` may return some; None: until the next message."""
        ...

    def orders(self) -> list[Message]:
        """Orders to the process that starts the workers: which to start now, or that the run is over."""
        ...


class LocalLauncher:
    def __init__(self, *, import_from: Sequence[str] = ()) -> None:
        """`import_from`: folders from which workers import modules, as in the caller's sys.path."""
        extra = {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in import_from)} if import_from else {}
        ours, theirs = socket.socketpair()
        with theirs:
            # Its own session: Ctrl-C in the terminal reaches the command alone, which stops the run in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paceline.worker.entry.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environ.for_child(
                    OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **extra
                ),
            )
        self._socket = ours
        self._buffer = b""
        self._steps: list[int] = []
        self._supervisor: Supervisor | None = None
        self._is_ready = False
        self._wants_stop = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(ours, selectors.EVENT_READ)

    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> RunOutcome:
        """Start the plan's participants and follow them to their end.

        With a `supervisor` a lost worker is its business, and not the end of the run.
        """
        self._steps = []
        self._supervisor = supervisor
        folder = None if resume_from is None else str(resume_from.resolve())
        order: Message = {"op": "start", "plan": dumps(plan), "run_dir": str(run_dir.resolve())}
        coordinator = None if supervisor is None else supervisor.coordinator
        self._send({**order, "resume_from": folder, "coordinator": coordinator})
        if self._wants_stop:  # the request arrived before the run started
            self.stop()
        try:
            return self._follow(run_dir, on_message, supervisor)
        finally:
            self._wants_stop = False

    def _follow(
        self, run_dir: Path, on_message: Callable[[Message], None], supervisor: Supervisor | None
    ) -> RunOutcome:
        ended = RunOutcome()
        while True:
            message = self._receive(None if supervisor is None else supervisor.wait_s())
            if message is not None:
                on_message(message)
                self._note(ended, message, run_dir, supervisor)
                if message["ev"] == "over":
                    return ended
            if supervisor is not None:
                for order in supervisor.orders():
                    self._send(order)

    def count_samples(self, task: str, *, options: Mapping[str, Option], seed: int, dtype: str) -> int:
        """How many training samples the task has; its own error if it cannot be built."""
        order: Message = {"op": "count", "task": task, "options": dict(options), "seed": seed, "dtype": dtype}
        self._send(order)
        while True:
            message = self._receive(None)
            assert message is not None, "without a timeout there is always a message"
            if (counted := read_sample_count(message)) is not None:
                return counted
            self._note(RunOutcome(), message, Path(), None)

    def probe_script(self, start: ScriptStart) -> Message:
        """Run a training script until its second batch; what it prepared, as options of its task.

        With trials also whether a share can be repeated, and a batch divided.
        """
        self._send({"op": "probe", **asdict(start), "arguments": list(start.arguments)})
        while True:
            message = self._receive(None)
            assert message is not None, "without a timeout there is always a message"
            if message["ev"] == "probed":
                return message
            self._note(RunOutcome(), message, Path(), None)

    @property
    def pid(self) -> int:
        """Pid of the helper process."""
        return self._process.pid

    def stop(self) -> None:
        """Request a stop at the next step on which the workers agree."""
        self._wants_stop = True
        if self._supervisor is not None:
            self._supervisor.stopping()
        self._send({"op": "stop"})

    def kill(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
        self._send({"op": "kill"})

    def close(self) -> None:
        """End the helper and every process that it still runs."""
        self._selector.close()
        self._socket.close()
        if not self._is_ready:
            self._process.kill()  # it is still importing, has no children, and is not needed
        self._process.wait()

    def __enter__(self) -> "LocalLauncher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(
        self, ended: RunOutcome, message: Message, run_dir: Path, supervisor: Supervisor | None
    ) -> None:
        match message["ev"]:
            case "ready":
                self._is_ready = True
            case "refused":
                raise refusal_error(message)
            case "report":
                ended.reports[str(message["who"])] = message
            case "progress" if isinstance(message["steps"], list):
                self._steps = [int(str(s)) for s in message["steps"]]
            case "started" if supervisor is not None:
                supervisor.started(str(message["who"]), int(str(message["pid"])))
            case "exited" if supervisor is not None:
                supervisor.exited(str(message["who"]), int(str(message["code"])), ended.ledger)
            case "left" if supervisor is not None:
                supervisor.left(str(message["who"]))
            case "slow" if supervisor is not None:
                supervisor.slow(str(message["worker"]), str(message["reason"]))
            case "error" if supervisor is not None:
                participant, description, hint = (str(message[name]) for name in ("who", "what", "hint"))
                is_hopeless = bool(message.get("hopeless"))
                code = str(message.get("code", ""))
                supervisor.failed(participant, description, hint, is_hopeless=is_hopeless, code=code)
            case "error":
                ended.ledger.error(
                    Failure(
                        str(message["who"]),
                        str(message["what"]),
                        str(message["hint"]),
                        is_consequence=bool(message["secondary"]),
                        exit_code=ExitCode(int(str(message["exit_code"]))),
                        code=str(message.get("code", "")),
                    )
                )
            case "exited":
                participant = str(message["who"])
                log = os.path.join(run_dir, "logs", f"{participant}.log")
                if message["by_us"]:
                    ended.ledger.end(participant, log=log)
                ended.ledger.exit(
                    participant, int(str(message["code"])), last_step=self._last_step(participant), log=log
                )

    def _last_step(self, participant: str) -> int | None:
        kind, _, number = participant.partition("-")
        return self._steps[int(number)] if kind == "worker" and self._steps else None

    def _send(self, message: Message) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._helper_lost() from error

    def _receive(self, timeout_s: float | None) -> Message | None:
        """The next message; None after the timeout."""
        while b"\n" not in self._buffer:
            # Returns after a signal, so that a handler can raise.
            if not self._selector.select(timeout_s) and timeout_s is not None:
                return None
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:  # it ended before it read all we sent
                data = b""
            if not data:
                raise self._helper_lost()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def _helper_lost(self) -> TrainingError:
        # Before it is reaped: until then its pid, which is the session id, is not reused.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        orphans = [pid for pid in members_of_session(self._process.pid) if pid != self._process.pid]
        kill_each(orphans)  # processes started by tasks; the participants ended with the helper
        code = self._process.wait()
        if code < 0:
            return TrainingError(
                f"the process that starts the workers was killed by signal {-code}",
                "the workers ended with it; run `paceline train --resume RUN` if the run has a checkpoint",
            )
        return TrainingError(
            f"the process that starts the workers ended with exit code {code}",
            f"check that torch imports:  {sys.executable} -c 'import torch'",
        )


def read_sample_count(message: Message) -> int | None:
    """How many samples were counted; None: the message is of something else."""
    if message["ev"] == "refused":
        raise refusal_error(message)
    return int(str(message["num_samples"])) if message["ev"] == "counted" else None


def refusal_error(message: Message) -> PacelineError:
    """The error that the helper raised, rebuilt from its message."""
    problems = _problems(message)
    kinds: dict[ExitCode, type[PacelineError]] = {
        ExitCode.NOT_READY: NotReadyError,
        ExitCode.UNREACHABLE: UnreachableStoreError,
        ExitCode.GATE_FAILED: DamagedDataError,
    }
    kind = kinds.get(ExitCode(int(str(message["exit_code"]))))
    return ConfigError(problems) if kind is None else _rebuild_error(kind, problems[0])


def _rebuild_error(kind: type[PacelineError], problem: Problem) -> PacelineError:
    return kind(problem.what, problem.hint).known_as(problem.code)


def _problems(message: Message) -> list[Problem]:
    problems = message["problems"]
    assert isinstance(problems, list), "the helper lists its problems"
    return [
        Problem(str(p["what"]), str(p["hint"]), code=str(p.get("code", "")))
        for p in problems
        if isinstance(p, dict)
    ]


class RunLauncher(Protocol):
    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> RunOutcome:
        """Follow the plan's participants to their end."""
        ...

    def stop(self) -> None:
        """Request a stop at the next step on which the workers agree."""
        ...

    def kill(self) -> None:
        """End everything now."""
        ...

    def close(self) -> None: ...

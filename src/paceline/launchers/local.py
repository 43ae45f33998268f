"""How are workers started on this machine? By one warm helper process that forks them.

`LocalLauncher()` starts the helper at once, so that it imports torch while the
caller is still reading its configuration; `run` then hands it plans, one after
another. This side never imports torch. See worker/zygote.py for the other end.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline import environ
from paceline.errors import ConfigError, ExitCode, Problem, TrainingError
from paceline.launchers.supervise import Failure, Ledger
from paceline.plan.codec import Json, dumps
from paceline.plan.plan import Plan

Message = dict[str, Json]


@dataclass(slots=True)
class Ended:
    """How a run ended: each participant's report, and whether it was stopped early."""

    reports: dict[str, Message] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)


class LocalLauncher:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # Its own session: Ctrl-C in the terminal reaches the command alone, which stops the run in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paceline.worker.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environ.for_child(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
            )
        self._socket = ours
        self._buffer = b""
        self._steps: list[int] = []
        self._is_ready = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(ours, selectors.EVENT_READ)

    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
    ) -> Ended:
        """Start the plan's participants and follow them to their end."""
        self._steps = []
        folder = None if resume_from is None else str(resume_from.resolve())
        self._send(
            {"op": "start", "plan": dumps(plan), "run_dir": str(run_dir.resolve()), "resume_from": folder}
        )
        ended = Ended()
        while True:
            message = self._receive()
            on_message(message)
            self._note(ended, message, run_dir)
            if message["ev"] == "over":
                return ended

    def stop(self) -> None:
        """Ask the run to stop at the next step on which its workers agree."""
        self._send({"op": "stop"})

    def kill(self) -> None:
        self._send({"op": "kill"})

    def close(self) -> None:
        """End the helper; whatever it still runs ends with it."""
        self._selector.close()
        self._socket.close()
        if not self._is_ready:
            self._process.kill()  # it is still importing, has no children, and nobody needs it
        self._process.wait()

    def __enter__(self) -> "LocalLauncher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, ended: Ended, message: Message, run_dir: Path) -> None:
        match message["ev"]:
            case "ready":
                self._is_ready = True
            case "refused":
                problems = message["problems"]
                assert isinstance(problems, list), "the helper lists its problems"
                raise ConfigError(
                    [Problem(str(p["what"]), str(p["hint"])) for p in problems if isinstance(p, dict)]
                )
            case "report":
                ended.reports[str(message["who"])] = message
            case "progress" if isinstance(message["steps"], list):
                self._steps = [int(str(s)) for s in message["steps"]]
            case "error":
                ended.ledger.error(
                    Failure(
                        str(message["who"]),
                        str(message["what"]),
                        str(message["hint"]),
                        is_consequence=bool(message["secondary"]),
                        exit_code=ExitCode(int(str(message["exit_code"]))),
                    )
                )
            case "exited":
                who = str(message["who"])
                log = os.path.join(run_dir, "logs", f"{who}.log")
                if message["by_us"]:
                    ended.ledger.end(who, log=log)
                ended.ledger.exit(who, int(str(message["code"])), last_step=self._last_step(who), log=log)

    def _last_step(self, who: str) -> int | None:
        kind, _, number = who.partition("-")
        return self._steps[int(number)] if kind == "worker" and self._steps else None

    def _send(self, message: Message) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._helper_lost() from error

    def _receive(self) -> Message:
        while b"\n" not in self._buffer:
            self._selector.select()  # returns after a signal, so that a handler can raise
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

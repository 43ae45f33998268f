"""Where does a parameter server live when somebody else started the workers? In a process of rank 0's.

A process of its own, so that it shares neither the interpreter nor torch's dice with rank 0's worker.
It listens on loopback only: modes with a server run on one host under torchrun. It gets its orders as one
JSON line, answers with JSON lines, and ends with rank 0.
"""

import json
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline import environ
from paceline.plan.codec import dumps
from paceline.plan.plan import Plan
from paceline.transport.tcp_store import Address
from paceline.worker.torchrun_words import Message


class ServerProcess:
    def __init__(self, plan: Plan, run_dir: Path, resume_from: Path | None) -> None:
        self.token = secrets.token_bytes(32)
        self._run_dir = run_dir
        logs = run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (
            socket.create_server(("127.0.0.1", 0), backlog=plan.num_workers) as listener,
            (logs / "server-0.log").open("a") as log,
        ):
            self.address = Address("127.0.0.1", int(listener.getsockname()[1]))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paceline.worker.torchrun_server_main", str(listener.fileno())],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the workers, which stop it in order
                env=environ.for_child(),
            )
        folder = None if resume_from is None else str(resume_from.resolve())
        order = {"plan": dumps(plan), "run_dir": str(run_dir.resolve()), "resume_from": folder}
        assert self._process.stdin is not None, "it was asked for"
        with self._process.stdin as orders:
            orders.write(json.dumps({**order, "token": self.token.hex()}) + "\n")

    def told(self) -> Message:
        """What the other ranks need; they are on this host, and the token goes to them alone."""
        return {"host": self.address.host, "port": self.address.port, "token": self.token.hex()}

    def end(self, *, wait_s: float) -> list[Message]:
        """What it said, once it has ended by itself; after `wait_s` it is ended."""
        killer = threading.Timer(wait_s, self._process.kill)
        killer.daemon = True
        killer.start()
        try:
            assert self._process.stdout is not None, "it was asked for"
            said: list[Message] = [json.loads(line) for line in self._process.stdout]
            code = self._process.wait()
        finally:
            killer.cancel()
        if code != 0 and not any(message["ev"] == "error" for message in said):
            said.append(_ended(code, f"{self._run_dir}/logs/server-0.log"))
        return said

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _ended(code: int, log: str) -> Message:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    what, hint = f"server-0 {how}", f"its log is {log}"
    return {"ev": "error", "who": "server-0", "what": what, "hint": hint, "exit_code": 5, "secondary": False}


@contextmanager
def serving(
    plan: Plan, run_dir: Path, resume_from: Path | None, *, is_needed: bool
) -> Iterator[ServerProcess | None]:
    if not is_needed:
        yield None
        return
    server = ServerProcess(plan, run_dir, resume_from)
    try:
        yield server
    finally:
        server.close()

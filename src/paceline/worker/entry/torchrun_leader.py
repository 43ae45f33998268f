"""Rank 0 under torchrun: sends the plan, trains as rank 0, and collects the reports of all ranks.

launchers/torchrun.py calls `Leader` and gets the messages that a launcher gets from workers it has started
itself. The messages between ranks are listed in torchrun.py. `ServerProcess` is the parameter server of
modes that have one.
"""

import json
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.checkpoints.snapshot import read_snapshot
from paceline.core import environ
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import PeerLostError, Problem, TorchrunError
from paceline.plan.catalog import Channel
from paceline.plan.codec import dumps
from paceline.plan.plan import Plan
from paceline.transport.rendezvous_store import RendezvousStore
from paceline.transport.tcp_store import Address
from paceline.worker.context import GatheringRunDir, LocalRunDir, RunDir, append_lines, send_snapshot
from paceline.worker.control import ControlBlock
from paceline.worker.entry.sample_count import count_in_process
from paceline.worker.entry.torchrun import (
    Message,
    check_hello,
    check_plan_here,
    describe_rank_fault,
    hello_message,
    run_rank,
)
from paceline.worker.rank_output import RankOutput
from paceline.worker.reporting import TERMINATING_ERRORS, Report
from paceline.worker.wiring import channel_of

# The server is a separate process, so that it shares neither the interpreter nor torch's generator with
# rank 0's worker. It listens on loopback only: modes with a server run on one host under torchrun. It
# receives its orders as one JSON line, answers with JSON lines, and ends with rank 0.


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
                [sys.executable, "-m", "paceline.worker.entry.torchrun_server_main", str(listener.fileno())],
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

    def to_dict(self) -> Message:
        """What the other ranks need; they are on this host, and the token goes to them alone."""
        return {"host": self.address.host, "port": self.address.port, "token": self.token.hex()}

    def end(self, *, wait_s: float) -> list[Message]:
        """Wait for the server to end, kill it after `wait_s`, and return its messages."""
        killer = threading.Timer(wait_s, self._process.kill)
        killer.daemon = True
        killer.start()
        try:
            assert self._process.stdout is not None, "it was asked for"
            messages: list[Message] = [json.loads(line) for line in self._process.stdout]
            code = self._process.wait()
        finally:
            killer.cancel()
        if code != 0 and not any(message["ev"] == "error" for message in messages):
            messages.append(_ended(code, f"{self._run_dir}/logs/server-0.log"))
        return messages

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _ended(code: int, log: str) -> Message:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    message = f"server-0 {how}"
    hint = f"its log is {log}"
    return {
        "ev": "error",
        "who": "server-0",
        "what": message,
        "hint": hint,
        "exit_code": 5,
        "secondary": False,
    }


@contextmanager
def running_server(
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


PROGRESS_S = 0.25
GRACE_S = 5.0  # timeout for other ranks to report their errors
PATIENCE_S = 24 * 3600.0  # torchrun detects dead ranks, so no shorter timeout is needed


class Leader:
    def __init__(self, rendezvous: RendezvousStore, output: RankOutput) -> None:
        self._rendezvous = rendezvous
        self._others = range(1, rendezvous.world.size)
        self._output = output
        self._control: ControlBlock | None = None
        self._is_stop_asked = False
        self._unpublished = ["word", "go"]  # keys that other ranks may still wait for
        self._unready: list[int] = []  # ranks that reported that they cannot join

    def train(
        self, plan: Plan, run_dir: Path, resume_from: Path | None, on_message: Callable[[Message], None]
    ) -> None:
        """Train on all ranks, and report the result or the error of each."""
        self._output.log_to(run_dir / "logs" / "worker-0.log")
        check_plan_here(plan, self._rendezvous.world)
        self._control = ControlBlock(plan.num_workers)
        if self._is_stop_asked:
            self._control.ask_to_stop()
        has_server = channel_of(plan.mode) is Channel.STORE
        with running_server(plan, run_dir, resume_from, is_needed=has_server) as server:
            self._send_order(plan, run_dir, resume_from, server)
            self._check_hellos()
            if resume_from is not None and not has_server:
                for rank in self._others:
                    send_snapshot(self._rendezvous, rank, read_snapshot(resume_from, f"worker-{rank}"))
            is_well = self._work(plan, run_dir, resume_from, server, on_message)
            self._collect_ends(run_dir, on_message, is_well=is_well)
            if server is not None:
                for message in server.end(wait_s=PATIENCE_S if is_well else GRACE_S):
                    on_message(message)

    def count(self, order: Message) -> Message:
        return count_in_process(order)

    def ask_to_stop(self) -> None:
        self._is_stop_asked = True
        if self._control is not None:
            self._control.ask_to_stop()

    def conclude(self, code: int) -> None:
        """Everything is written: all may go, with this exit code."""
        with suppress(PeerLostError):  # they are gone already, and so is what they met in
            for name in self._unpublished:
                self._rendezvous.show(name, {"over": code})
            self._rendezvous.show("verdict", {"code": code})
            if not self._rendezvous.world.agent_listens:  # this process hosts the store, which ends with it
                for rank in self._others:
                    self._rendezvous.see(f"bye/{rank}", source=f"rank {rank}", timeout_s=GRACE_S)

    def _publish(self, name: str, value: Message) -> None:
        self._unpublished.remove(name)
        self._rendezvous.show(name, value)

    def _send_order(
        self, plan: Plan, run_dir: Path, resume_from: Path | None, server: ServerProcess | None
    ) -> None:
        order: Message = {
            "plan": dumps(plan),
            "run_dir": str(run_dir.resolve()),
            "resume_from": None if resume_from is None else str(resume_from.resolve()),
            "server": None if server is None else server.to_dict(),
            "boot": hello_message(self._rendezvous.world)["boot"],
        }
        self._publish("word", order)

    def _check_hellos(self) -> None:
        """Wait for the hello of every rank, check it, and send our time to ranks on other hosts."""
        own = hello_message(self._rendezvous.world)
        for rank in self._others:
            hello = self._rendezvous.see(
                f"hello/{rank}", source=f"rank {rank} of {self._rendezvous.world.size} to join"
            )
            check_hello(hello, rank, own)
            if hello["boot"] != own["boot"]:
                self._rendezvous.show(f"turn/{rank}", True)
                self._rendezvous.see(f"asks/{rank}", source=f"rank {rank} to request the clock")
                self._rendezvous.show(f"time/{rank}", SystemClock().now_ns())

    def _ready(self, num_samples: int) -> None:
        for rank in self._others:
            reply = self._rendezvous.see(f"ready/{rank}", source=f"rank {rank} to build its task and model")
            if reply.get("failed"):
                self._unready.append(rank)
                raise PeerLostError(f"rank {rank} cannot join", "see its log")
            if reply["num_samples"] != num_samples:
                message = (
                    f"rank 0 has {num_samples:,} training samples, but rank {rank} {reply['num_samples']:,}"
                )
                raise TorchrunError([Problem(message, "put the same data on every host")])
        self._publish("go", {})

    def _work(
        self,
        plan: Plan,
        run_dir: Path,
        resume_from: Path | None,
        server: ServerProcess | None,
        on_message: Callable[[Message], None],
    ) -> bool:
        """Our own part; whether it went well."""
        assert self._control is not None, "train() made it"

        def report(facts: Report) -> None:
            on_message({"ev": "report", "who": "worker-0", **facts})  # type: ignore[dict-item]  # facts are JSON

        try:
            with _reporting_progress(self._control, plan.num_workers, on_message):
                run_rank(
                    self._rendezvous,
                    plan,
                    run_dir=run_dir,
                    resume_from=resume_from,
                    control=self._control,
                    clock=SystemClock(),
                    folder=self._folder(run_dir, resume_from, is_near=server is None),
                    ready=self._ready,
                    server=None if server is None else (server.address, server.token),
                    report=report,
                )
        except TERMINATING_ERRORS as error:
            # Also a failure of the user's task: reported like that of any other rank.
            self._report_end(describe_rank_fault(error, 0, str(run_dir)), run_dir, on_message)
            return False
        return True

    def _folder(self, run_dir: Path, resume_from: Path | None, *, is_near: bool) -> RunDir:
        if is_near and self._others:
            return GatheringRunDir(self._rendezvous, run_dir, resume_from)
        return LocalRunDir(run_dir, resume_from)

    def _collect_ends(self, run_dir: Path, on_message: Callable[[Message], None], *, is_well: bool) -> None:
        give_up_s = monotonic_s() + GRACE_S
        # Before all were ready no rank has begun, and only ranks that cannot begin have reports.
        for rank in self._unready if "go" in self._unpublished else self._others:
            wait_s = PATIENCE_S if is_well else max(0.0, give_up_s - monotonic_s())
            try:
                end = self._rendezvous.see(f"end/{rank}", source=f"rank {rank} to end", timeout_s=wait_s)
                lines = self._rendezvous.receive(f"end/{rank}/events", source=f"rank {rank}'s events")
            except PeerLostError:
                if is_well:
                    raise
                continue  # it is dead, or still waits for a dead rank; the reports of the others must do
            append_lines(run_dir / "events.jsonl", lines)
            if is_well and end["ev"] == "error":
                is_well = False
                give_up_s = monotonic_s() + GRACE_S
            self._report_end(end, run_dir, on_message)

    def _report_end(self, end: Message, run_dir: Path, on_message: Callable[[Message], None]) -> None:
        trace = end.pop("trace", None)
        if trace is not None:
            log = run_dir / "logs" / f"{end['who']}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(str(trace))
        on_message(end)


@contextmanager
def _reporting_progress(
    control: ControlBlock, num_workers: int, on_message: Callable[[Message], None]
) -> Iterator[None]:
    """Report rank 0's progress every PROGRESS_S, for all ranks: in most modes it is the same."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(PROGRESS_S):
            steps = control.steps()[0]
            loss = control.mean_loss()
            on_message({"ev": "progress", "steps": [steps] * num_workers, "loss": loss, "alive": num_workers})

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

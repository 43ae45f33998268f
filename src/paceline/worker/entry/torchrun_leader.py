"""What does rank 0 do besides its own work? It speaks first, and last, and hears everybody out.

launchers/torchrun.py calls it, and gets the messages that a launcher gets from workers it has started
itself. What the ranks say to each other is listed in torchrun_words.py.
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

# A process of its own, so that it shares neither the interpreter nor torch's dice with rank 0's worker.
# It listens on loopback only: modes with a server run on one host under torchrun. It gets its orders as one
# JSON line, answers with JSON lines, and ends with rank 0.


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
GRACE_S = 5.0  # for others to say what they died of
PATIENCE_S = 24 * 3600.0  # whoever started us notices the dead; here nobody is given up


class Leader:
    def __init__(self, place: RendezvousStore, output: RankOutput) -> None:
        self._place, self._others = place, range(1, place.world.size)
        self._output = output
        self._control: ControlBlock | None = None
        self._is_stop_asked = False
        self._unsaid = ["word", "go"]  # what others may still be waiting for
        self._unready: list[int] = []  # ranks that said they cannot take part

    def train(
        self, plan: Plan, run_dir: Path, resume_from: Path | None, tell: Callable[[Message], None]
    ) -> None:
        """Everybody trains; each rank's report, or its error, is told."""
        self._output.log_to(run_dir / "logs" / "worker-0.log")
        check_plan_here(plan, self._place.world)
        self._control = ControlBlock(plan.num_workers)
        if self._is_stop_asked:
            self._control.ask_to_stop()
        has_server = channel_of(plan.mode) is Channel.STORE
        with running_server(plan, run_dir, resume_from, is_needed=has_server) as server:
            self._say_word(plan, run_dir, resume_from, server)
            self._greet()
            if resume_from is not None and not has_server:
                for rank in self._others:
                    send_snapshot(self._place, rank, read_snapshot(resume_from, f"worker-{rank}"))
            is_well = self._work(plan, run_dir, resume_from, server, tell)
            self._hear_ends(run_dir, tell, is_well=is_well)
            if server is not None:
                for message in server.end(wait_s=PATIENCE_S if is_well else GRACE_S):
                    tell(message)

    def count(self, order: Message) -> Message:
        return count_in_process(order)

    def ask_to_stop(self) -> None:
        self._is_stop_asked = True
        if self._control is not None:
            self._control.ask_to_stop()

    def conclude(self, code: int) -> None:
        """Everything is written: all may go, with this exit code."""
        with suppress(PeerLostError):  # they are gone already, and so is what they met in
            for name in self._unsaid:
                self._place.show(name, {"over": code})
            self._place.show("verdict", {"code": code})
            if not self._place.world.agent_listens:  # the store is ours, and ends with us
                for rank in self._others:
                    self._place.see(f"bye/{rank}", whose=f"rank {rank}", timeout_s=GRACE_S)

    def _say(self, name: str, value: Message) -> None:
        self._unsaid.remove(name)
        self._place.show(name, value)

    def _say_word(
        self, plan: Plan, run_dir: Path, resume_from: Path | None, server: ServerProcess | None
    ) -> None:
        word: Message = {
            "plan": dumps(plan),
            "run_dir": str(run_dir.resolve()),
            "resume_from": None if resume_from is None else str(resume_from.resolve()),
            "server": None if server is None else server.told(),
            "boot": hello_message(self._place.world)["boot"],
        }
        self._say("word", word)

    def _greet(self) -> None:
        """Everybody is there, and of one kind; who is on another host learns our time."""
        mine = hello_message(self._place.world)
        for rank in self._others:
            said = self._place.see(f"hello/{rank}", whose=f"rank {rank} of {self._place.world.size} to come")
            check_hello(said, rank, mine)
            if said["boot"] != mine["boot"]:
                self._place.show(f"turn/{rank}", True)
                self._place.see(f"asks/{rank}", whose=f"rank {rank} to ask for the time")
                self._place.show(f"time/{rank}", SystemClock().now_ns())

    def _ready(self, num_samples: int) -> None:
        for rank in self._others:
            said = self._place.see(f"ready/{rank}", whose=f"rank {rank} to build its task and model")
            if said.get("failed"):
                self._unready.append(rank)
                raise PeerLostError(f"rank {rank} cannot take part", "see what it says")
            if said["num_samples"] != num_samples:
                what = f"rank 0 has {num_samples:,} training samples, but rank {rank} {said['num_samples']:,}"
                raise TorchrunError([Problem(what, "put the same data on every host")])
        self._say("go", {})

    def _work(
        self,
        plan: Plan,
        run_dir: Path,
        resume_from: Path | None,
        server: ServerProcess | None,
        tell: Callable[[Message], None],
    ) -> bool:
        """Our own part; whether it went well."""
        assert self._control is not None, "train() made it"

        def report(facts: Report) -> None:
            tell({"ev": "report", "who": "worker-0", **facts})  # type: ignore[dict-item]  # facts are JSON

        try:
            with _reporting_progress(self._control, plan.num_workers, tell):
                run_rank(
                    self._place,
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
            # Also a failure of the user's task: told like that of any other rank.
            self._tell_fault(describe_rank_fault(error, 0, str(run_dir)), run_dir, tell)
            return False
        return True

    def _folder(self, run_dir: Path, resume_from: Path | None, *, is_near: bool) -> RunDir:
        if is_near and self._others:
            return GatheringRunDir(self._place, run_dir, resume_from)
        return LocalRunDir(run_dir, resume_from)

    def _hear_ends(self, run_dir: Path, tell: Callable[[Message], None], *, is_well: bool) -> None:
        give_up_s = monotonic_s() + GRACE_S
        # Before all were ready nobody has begun, and only who cannot has something to say.
        for rank in self._unready if "go" in self._unsaid else self._others:
            wait_s = PATIENCE_S if is_well else max(0.0, give_up_s - monotonic_s())
            try:
                end = self._place.see(f"end/{rank}", whose=f"rank {rank} to end", timeout_s=wait_s)
                lines = self._place.receive(f"end/{rank}/events", whose=f"rank {rank}'s events")
            except PeerLostError:
                if is_well:
                    raise
                continue  # it is dead, or still waits for the dead; what the others say must do
            append_lines(run_dir / "events.jsonl", lines)
            if is_well and end["ev"] == "error":
                is_well, give_up_s = False, monotonic_s() + GRACE_S
            self._tell_fault(end, run_dir, tell)

    def _tell_fault(self, end: Message, run_dir: Path, tell: Callable[[Message], None]) -> None:
        trace = end.pop("trace", None)
        if trace is not None:
            log = run_dir / "logs" / f"{end['who']}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(str(trace))
        tell(end)


@contextmanager
def _reporting_progress(
    control: ControlBlock, num_workers: int, tell: Callable[[Message], None]
) -> Iterator[None]:
    """Say now and then how far we are. How far the others are only they know; in most modes the same."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(PROGRESS_S):
            steps = control.steps()[0]
            loss = control.mean_loss()
            tell({"ev": "progress", "steps": [steps] * num_workers, "loss": loss, "alive": num_workers})

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

"""Ray actor's side of a run: a participant whose run folder, log and reports go through the launcher.

launchers/ray/actor.py loads `Side` by name, so that the launcher's own process never imports torch. The
participant trains in a thread of its own, while the actor answers the launcher's polls. See
docs/decisions/0035-ray-launcher.md.
"""

import io
import itertools
import json
import os
import socket
import ssl
import sys
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import torch

from paceline.checkpoints.catalog import unpack_checkpoint
from paceline.checkpoints.snapshot import Snapshot, WriteResult, from_bytes
from paceline.checkpoints.writer import CheckpointWriter, Disk, SnapshotTarget
from paceline.config.environment import World
from paceline.core import environ
from paceline.core.clock import Clock, SystemClock
from paceline.core.errors import NotReadyError
from paceline.core.ids import Rank
from paceline.events.log import EventLog
from paceline.plan.catalog import SCRIPT_TASK, is_split
from paceline.plan.codec import Json, loads
from paceline.plan.plan import EventDetail, Plan
from paceline.transport.rendezvous_store import RendezvousStore
from paceline.transport.tcp_store import LOOPBACK, Address
from paceline.transport.torch_dist import abandon_group
from paceline.worker.checkpointing import writer_for
from paceline.worker.context import ForwardedLog, RemoteClock, RemoteContext, WorkerContext
from paceline.worker.control import ControlBlock
from paceline.worker.entry.script import script_body
from paceline.worker.entry.torchrun import check_plan_here, describe_rank_fault
from paceline.worker.participant import serve, work
from paceline.worker.reporting import TERMINATING_ERRORS, Report, log_error
from paceline.worker.tls import client_tls_context, server_tls_context

# An urgent message (a report, an error, a snapshot) ends the launcher's poll at once; lines of the log and of
# the event log are sent with the next message.

Message = dict[str, Json]
LINGER_S = 0.25
T = TypeVar("T")


class Outbox:
    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()  # lines of the event log
        self.text: deque[str] = deque()  # lines of the text log
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._blobs: list[bytes] = []
        self._answers: dict[int, Message] = {}
        self._numbers = itertools.count()
        self._is_over = False

    def say(self, message: Message) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def ask(self, message: Message, blob: bytes, *, timeout_s: float) -> Message:
        """Response of the launcher; ConnectionError without one."""
        number = next(self._numbers)
        with self._changed:
            self._messages.append({**message, "number": number, "blob": len(self._blobs)})
            self._blobs.append(blob)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: number in self._answers, timeout_s):
                raise ConnectionError(f"the launcher did not accept it within {timeout_s:g} s")
            return self._answers.pop(number)

    def end(self) -> None:
        """There are no more messages."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def take(self, answers: str) -> tuple[Message, list[bytes]]:
        """Everything so far, once something is urgent or has waited long enough; first, what was answered."""
        with self._changed:
            for answer in json.loads(answers):
                self._answers[int(answer["number"])] = answer
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._messages) or self._is_over, LINGER_S)
            messages: list[Json] = list(self._messages)
            blobs = self._blobs
            self._messages = []
            self._blobs = []
            is_over = self._is_over
        # After the messages: a snapshot must never be ahead of the event log.
        lines = _drained(self.lines)
        events = b"".join(lines).decode()
        return {
            "said": messages,
            "events": events,
            "log": "".join(_drained(self.text)),
            "over": is_over,
        }, blobs


def _drained(queue: deque[T]) -> list[T]:
    taken = []
    while queue:
        taken.append(queue.popleft())
    return taken


class ForwardedStdout(io.TextIOBase):
    """A stdout whose text also goes to the launcher."""

    def __init__(self, before: TextIO, text: deque[str]) -> None:
        self._before = before
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._text.append(text)
        return self._before.write(text)

    def flush(self) -> None:
        self._before.flush()


# Run folder of an actor: it sends its files, and the launcher writes them as the worker would have
# (launchers/ray/group.py), so readers of the folder see no difference. A snapshot counts as written once the
# launcher has confirmed it.


class RayRunDir:
    def __init__(self, outbox: Outbox, saved: Snapshot | None, *, timeout_s: float) -> None:
        self._outbox = outbox
        self._saved = saved
        self._timeout_s = timeout_s

    def open_log(self, plan: Plan, participant: str, clock: Clock) -> EventLog:
        if plan.events is EventDetail.OFF:
            return EventLog(None, who=participant, clock=clock)
        return ForwardedLog(who=participant, clock=clock, outbox=self._outbox.lines)

    def writer(self, plan: Plan, participant: str) -> CheckpointWriter:
        participants = plan.num_workers if participant.startswith("worker-") else 1
        disk = _RayDisk(self._outbox, self._timeout_s)
        return writer_for(plan, Path(), participant, participants=participants, disk=disk)

    def snapshot(self, participant: str) -> Snapshot | None:
        return self._saved


class _RayDisk(Disk):
    def __init__(self, outbox: Outbox, timeout_s: float) -> None:
        self._outbox = outbox
        self._timeout_s = timeout_s
        self._removed: tuple[int, ...] = ()

    def is_there(self, folder: Path, participant: str, generation: int | None) -> bool:
        return False  # the launcher checks

    def put(
        self,
        folder: Path,
        participant: str,
        tensors: memoryview,
        facts: dict[str, Any],  # Any: JSON
    ) -> WriteResult:
        number = folder.name.removeprefix("at-")
        message: Message = {"ev": "image", "at": int(number), "who": participant, "facts": facts}
        answer = self._outbox.ask(message, bytes(tensors), timeout_s=self._timeout_s)
        if answer["failure"]:
            raise OSError(str(answer["failure"]))
        removed = answer["removed"]
        self._removed = tuple(int(str(n)) for n in removed) if isinstance(removed, list) else ()
        return WriteResult(int(str(answer["bytes"])), str(answer["sha256"]))

    def remove_old(self, folder: Path, target: SnapshotTarget) -> tuple[int, ...]:
        return self._removed  # removed by the launcher when it wrote this snapshot


class Side:
    def __init__(self, participant: str) -> None:
        self._participant = participant
        self._outbox = Outbox()
        kind, _, number = participant.partition("-")
        self._is_server = kind == "server"
        self._rank = int(number)
        self._control: ControlBlock | None = None
        self._rendezvous: RendezvousStore | None = None
        self._listener: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._may_go = threading.Event()
        self._is_stop_asked = False
        sys.stdout = ForwardedStdout(sys.stdout, self._outbox.text)
        sys.stderr = ForwardedStdout(sys.stderr, self._outbox.text)

    def host(self, address: str, size: int, timeout_s: float) -> str:
        """Open the rendezvous store (rank 0) or the port of the server; its endpoint, as JSON."""
        where: Message = {"host": address}
        if self._is_server:
            self._listener = socket.create_server((address, 0), backlog=size)
            where["port"] = int(self._listener.getsockname()[1])
            if address not in LOOPBACK:
                self._tls, where["certificate"] = server_tls_context(address)
        else:
            self._rendezvous = RendezvousStore.host_at(address, size, timeout_s=timeout_s)
            where["port"] = self._rendezvous.world.port
        return json.dumps(where)

    def begin(self, order: str, saved: bytes | None) -> None:
        thread = threading.Thread(
            target=self._live, args=(json.loads(order), saved), name=self._participant, daemon=True
        )
        thread.start()

    def poll(self, answers: str) -> tuple[str, list[bytes]]:
        """Messages and progress as JSON, and the snapshots that belong to them."""
        update, blobs = self._outbox.take(answers)
        if self._control is not None and not self._is_server:
            row = self._control.rows[self._rank]
            update["steps"] = int(row[0])
            update["loss"] = float(row[1])
        return json.dumps(update), blobs

    def go(self) -> None:
        self._may_go.set()

    def stop(self) -> None:
        self._is_stop_asked = True
        if self._control is not None:
            self._control.ask_to_stop()

    def _live(self, order: Message, saved: bytes | None) -> None:
        try:
            self._take_part(order, saved)
        except TERMINATING_ERRORS as error:
            # Also a failure of the user's task: the launcher reports it.
            self._outbox.say(self._fault(error, str(order["run_dir"])))
        finally:
            self._outbox.end()

    def _take_part(self, order: Message, saved: bytes | None) -> None:
        plan = loads(str(order["plan"]), where="the launcher's plan")
        folder = Path(str(order["cwd"]))
        if folder.is_dir():
            os.chdir(folder)  # user tasks are imported from there, as without Ray
        if order["is_one_host"]:
            environ.let_gloo_use_loopback()
        self._control = ControlBlock(plan.num_workers)
        if self._is_stop_asked:
            self._control.ask_to_stop()
        context = self._context(plan, self._control, order, saved)
        try:
            if plan.task == SCRIPT_TASK:
                script_body(plan, self._participant)(context, self._report)
            elif self._is_server:
                serve(context, self._report)
            else:
                work(Rank(self._rank), context, self._report)
        except BaseException:
            abandon_group()
            raise

    def _context(
        self, plan: Plan, control: ControlBlock, order: Message, saved: bytes | None
    ) -> WorkerContext:
        world = _world(order, plan.num_workers, self._rank)
        if not self._is_server:
            check_plan_here(plan, world)
        if self._rendezvous is None:
            self._rendezvous = RendezvousStore.enter(world, timeout_s=plan.timeout_s)
        ahead_ns = int(str(order["ahead_ns"]))
        clock: Clock = RemoteClock(ahead_ns) if ahead_ns else SystemClock()
        in_parts = is_split(plan.mode)
        snapshot = None if saved is None or in_parts else from_bytes(saved)
        address, tls = _server(order)
        return WorkerContext(
            plan=plan,
            run_dir=Path(str(order["run_dir"])),
            control=control,
            rendezvous=Path(),  # not used: the ranks use a store
            listener=self._listener,
            token=bytes.fromhex(str(order["token"])),
            foreign=RemoteContext(
                local_rank=0,  # Ray shows each actor its own GPU only
                clock=clock,
                folder=RayRunDir(self._outbox, snapshot, timeout_s=plan.timeout_s),
                store=self._rendezvous.for_group(),
                ready=self._ready,
                server=address,
                tls=self._tls or tls,
                looks_at_host=bool(order["looks_at_host"]),
                parts=partial(unpack_checkpoint, saved) if in_parts and saved is not None else None,
            ),
        )

    def _ready(self, num_samples: int) -> None:
        self._outbox.say({"ev": "ready", "torch": torch.__version__, "samples": num_samples})
        if not self._may_go.wait(24 * 3600.0):
            raise NotReadyError(
                "the launcher did not report that all workers are ready", "see the launcher's output"
            )

    def _report(self, facts: Report) -> None:
        self._outbox.say({"ev": "report", "who": self._participant, **facts})  # type: ignore[dict-item]  # facts are JSON

    def _fault(self, error: BaseException, run_dir: str) -> Message:
        log_error(error)
        fault = describe_rank_fault(error, self._rank, run_dir)
        fault.pop("trace", None)
        log = f"{run_dir}/logs/worker-{self._rank}.log"
        return {
            **fault,
            "who": self._participant,
            "hint": str(fault["hint"]).replace(log, f"{run_dir}/logs/{self._participant}.log"),
        }


def _world(order: Message, size: int, rank: int) -> World:
    """Rendezvous of the ranks; without a port where there is only a server, or a single worker."""
    if order["port"] is None:
        return World(rank=rank, size=size)
    local_size = size if order["is_one_host"] else 1
    host = str(order["host"])
    port = int(str(order["port"]))
    return World(rank=rank, size=size, local_size=local_size, host=host, port=port)


def _server(order: Message) -> tuple[Address | None, ssl.SSLContext | None]:
    server = order["server"]
    if not isinstance(server, dict):
        return None, None
    certificate = server.get("certificate")
    tls = None if certificate is None else client_tls_context(str(certificate))
    return Address(str(server["host"]), int(str(server["port"]))), tls

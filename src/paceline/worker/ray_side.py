"""What does an actor of Ray do with a plan? What every participant does; only its seat is another one.

launchers/ray_actor.py calls it by name, so that the launcher's own process never imports torch. It trains
in a thread of its own, and answers the launcher meanwhile. See docs/decisions/0035-*.
"""

import json
import os
import socket
import ssl
import sys
import threading
from functools import partial
from pathlib import Path

import torch

from paceline import environ
from paceline.checkpoints.packed import unpacked
from paceline.checkpoints.store import from_bytes
from paceline.clock import Clock, SystemClock
from paceline.config.world import World
from paceline.errors import NotReadyError
from paceline.ids import Rank
from paceline.plan.catalog import is_split
from paceline.plan.codec import loads
from paceline.plan.plan import Plan
from paceline.transport.meeting_place import MeetingPlace
from paceline.transport.tcp_store import LOOPBACK, Address
from paceline.transport.torch_dist import abandon_group
from paceline.worker.control import ControlBlock
from paceline.worker.far_clock import FarClock
from paceline.worker.faults import ENDS, into_log
from paceline.worker.foreign_seat import ForeignSeat
from paceline.worker.participant import Report, serve, work
from paceline.worker.ray_folder import SaidFolder
from paceline.worker.ray_outbox import Message, Outbox, Printed
from paceline.worker.ray_tls import serving_at, trusting
from paceline.worker.seat import Seat
from paceline.worker.torchrun_words import check_here, fault_of


class Side:
    def __init__(self, who: str) -> None:
        self._who, self._outbox = who, Outbox()
        kind, _, number = who.partition("-")
        self._is_server, self._rank = kind == "server", int(number)
        self._control: ControlBlock | None = None
        self._place: MeetingPlace | None = None
        self._listener: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._may_go, self._is_stop_asked = threading.Event(), False
        sys.stdout = Printed(sys.stdout, self._outbox.text)
        sys.stderr = Printed(sys.stderr, self._outbox.text)

    def host(self, address: str, size: int, timeout_s: float) -> str:
        """Rank 0 keeps the store in which all meet; a server listens. What the others must know."""
        where: Message = {"host": address}
        if self._is_server:
            self._listener = socket.create_server((address, 0), backlog=size)
            where["port"] = int(self._listener.getsockname()[1])
            if address not in LOOPBACK:
                self._tls, where["certificate"] = serving_at(address)
        else:
            self._place = MeetingPlace.host_at(address, size, timeout_s=timeout_s)
            where["port"] = self._place.world.port
        return json.dumps(where)

    def begin(self, order: str, saved: bytes | None) -> None:
        thread = threading.Thread(
            target=self._live, args=(json.loads(order), saved), name=self._who, daemon=True
        )
        thread.start()

    def poll(self, answers: str) -> tuple[str, list[bytes]]:
        """What there is to say, how far we are, and snapshots beside it."""
        said, blobs = self._outbox.take(answers)
        if self._control is not None and not self._is_server:
            row = self._control.rows[self._rank]
            said["steps"], said["loss"] = int(row[0]), float(row[1])
        return json.dumps(said), blobs

    def go(self) -> None:
        self._may_go.set()

    def stop(self) -> None:
        self._is_stop_asked = True
        if self._control is not None:
            self._control.ask_to_stop()

    def _live(self, order: Message, saved: bytes | None) -> None:
        try:
            self._take_part(order, saved)
        except ENDS as error:
            # Also a failure of the user's task: the launcher tells it.
            self._outbox.say(self._fault(error, str(order["run_dir"])))
        finally:
            self._outbox.end()

    def _take_part(self, order: Message, saved: bytes | None) -> None:
        plan = loads(str(order["plan"]), where="the launcher's plan")
        here = Path(str(order["cwd"]))
        if here.is_dir():
            os.chdir(here)  # a task of the user's own is looked for there, as without Ray
        if order["is_one_host"]:
            environ.let_gloo_use_loopback()
        self._control = ControlBlock(plan.num_workers)
        if self._is_stop_asked:
            self._control.ask_to_stop()
        seat = self._seat(plan, self._control, order, saved)
        try:
            if self._is_server:
                serve(seat, self._report)
            else:
                work(Rank(self._rank), seat, self._report)
        except BaseException:
            abandon_group()
            raise

    def _seat(self, plan: Plan, control: ControlBlock, order: Message, saved: bytes | None) -> Seat:
        world = _world(order, plan.num_workers, self._rank)
        if not self._is_server:
            check_here(plan, world)
        if self._place is None:
            self._place = MeetingPlace.enter(world, timeout_s=plan.timeout_s)
        ahead_ns = int(str(order["ahead_ns"]))
        clock: Clock = FarClock(ahead_ns) if ahead_ns else SystemClock()
        in_parts = is_split(plan.mode)
        snapshot = None if saved is None or in_parts else from_bytes(saved)
        address, tls = _server(order)
        return Seat(
            plan=plan,
            run_dir=Path(str(order["run_dir"])),
            control=control,
            rendezvous=Path(),  # nobody meets by a file
            listener=self._listener,
            token=bytes.fromhex(str(order["token"])),
            foreign=ForeignSeat(
                local_rank=0,  # Ray shows each actor its own GPU only
                clock=clock,
                folder=SaidFolder(self._outbox, snapshot, timeout_s=plan.timeout_s),
                store=self._place.for_group(),
                ready=self._ready,
                server=address,
                tls=self._tls or tls,
                looks_at_host=bool(order["looks_at_host"]),
                parts=partial(unpacked, saved) if in_parts and saved is not None else None,
            ),
        )

    def _ready(self, num_samples: int) -> None:
        self._outbox.say({"ev": "ready", "torch": torch.__version__, "samples": num_samples})
        if not self._may_go.wait(24 * 3600.0):
            raise NotReadyError("the launcher did not say that all are ready", "see what it says")

    def _report(self, facts: Report) -> None:
        self._outbox.say({"ev": "report", "who": self._who, **facts})  # type: ignore[dict-item]  # facts are JSON

    def _fault(self, error: BaseException, run_dir: str) -> Message:
        into_log(error)
        fault = fault_of(error, self._rank, run_dir)
        fault.pop("trace", None)
        log = f"{run_dir}/logs/worker-{self._rank}.log"
        return {
            **fault,
            "who": self._who,
            "hint": str(fault["hint"]).replace(log, f"{run_dir}/logs/{self._who}.log"),
        }


def _world(order: Message, size: int, rank: int) -> World:
    """Where we meet the others; nowhere, if only a server is met or nobody."""
    if order["port"] is None:
        return World(rank=rank, size=size)
    local_size = size if order["is_one_host"] else 1
    host, port = str(order["host"]), int(str(order["port"]))
    return World(rank=rank, size=size, local_size=local_size, host=host, port=port)


def _server(order: Message) -> tuple[Address | None, ssl.SSLContext | None]:
    said = order["server"]
    if not isinstance(said, dict):
        return None, None
    certificate = said.get("certificate")
    tls = None if certificate is None else trusting(str(certificate))
    return Address(str(said["host"]), int(str(said["port"]))), tls

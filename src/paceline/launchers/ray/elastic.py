"""Ray actors of an elastic run: a lost actor is replaced on its own, while the others continue.

To the supervisor (launchers/elastic.py) this is what the zygote is without Ray: it starts the participants
that it is ordered to start, and reports those that ended. Resources are one placement group, whose bundles
Ray moves to other nodes when theirs is lost, so a replacement takes the bundle of the actor it replaces. All
actors are on this machine, and read requests from this process's memory (worker/control.py).
"""

import json
import os
import secrets
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline import __version__
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import ExitCode, MissingPackageError, TrainingError
from paceline.launchers.local import Message, RunOutcome, Supervisor
from paceline.launchers.ray.actor import ELASTIC_SIDE, MAX_CONCURRENCY, Participant
from paceline.launchers.ray.client import (
    NODE_LOST,
    POLL_S,
    START_TIMEOUT_S,
    ActorLost,
    Handle,
    Pending,
    RayClient,
    Reservation,
    StopRequest,
    reserve,
)
from paceline.launchers.ray.resources import bundles_of, capacity_table, placement_of
from paceline.plan.codec import dumps
from paceline.plan.plan import Plan
from paceline.worker.control import ControlBlock

# The control block is an unnamed memory file of this process: a process that can open it through /proc is on
# this machine and of this user. It is freed with the last process that has it open, also after `kill -9`.


class SharedControl:
    def __init__(self, num_workers: int) -> None:
        self._secret = secrets.token_hex(8)
        self._fd = os.memfd_create(f"paceline-{self._secret}")
        self._file = f"/proc/{os.getpid()}/fd/{self._fd}"
        self.block = ControlBlock(num_workers, file=self._file)

    def where(self) -> Message:
        return {"control": self._file, "secret": self._secret}

    def close(self) -> None:
        os.close(self._fd)


def build_order(plan: Plan, run_dir: Path, resume_from: Path | None, coordinator: Message) -> Message:
    return {
        "paceline": __version__,
        "plan": dumps(plan),
        "run_dir": str(run_dir.resolve()),
        "cwd": str(Path.cwd()),
        "token": secrets.token_bytes(32).hex(),
        "resume_from": None if resume_from is None else str(resume_from.resolve()),
        "coordinator": coordinator,
    }


# Ray detects a lost node by its silence, seconds later, and a process of a node that Ray has declared lost
# may still run for a moment. A pidfd refers to exactly this process, so it can be checked and ended even if
# its pid is reused.


class ActorProcess:
    def __init__(self, pid: int) -> None:
        """ProcessLookupError: it has ended by now."""
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def is_gone(self) -> bool:
        return bool(self._poll.poll(0))

    def end(self) -> None:
        """Kill it, if it has not ended; the object cannot be used afterwards."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        os.close(self._fd)


PATIENCE_S = 10.0  # wait for a process to start before a message about missing resources
_FAILED = int(ExitCode.TRAINING_FAILED)


@dataclass(slots=True)
class Member:
    who: str
    actor: Handle
    place: Reservation
    pending: Pending  # the question that it has not answered
    since_s: float
    process: ActorProcess | None = None  # once it has reported its pid
    code: int = _FAILED  # as it reports at its end
    roomless_s: float = 0.0  # when resources were last missing for it


class ElasticGroup:
    def __init__(
        self,
        plan: Plan,
        ray: RayClient,
        on_message: Callable[[Message], None],
        stop_request: StopRequest,
        supervisor: Supervisor,
    ) -> None:
        self._plan = plan
        self._ray = ray
        self._on_message = on_message
        self._stop_request = stop_request
        self._supervisor = supervisor
        self._members: dict[str, Member] = {}
        self._echoes: dict[
            Pending, str
        ] = {}  # pending polls of dead actors, until Ray has noticed their death
        self._due: list[str] = []  # participants to start
        self._places: dict[str, tuple[Reservation, int]] = {}  # the placement group of each, and its bundle
        self._shared = SharedControl(plan.num_workers)
        self._control = self._shared.block
        self._ended = RunOutcome()
        self._order = ""
        self._is_ending = self._is_over = False
        self._reported_s = 0.0
        self._lived_s = 0.0  # when an actor was last seen alive

    def run(self, run_dir: Path, resume_from: Path | None) -> RunOutcome:
        base_order = build_order(self._plan, run_dir, resume_from, self._supervisor.coordinator)
        self._order = json.dumps({**self._shared.where(), **base_order})
        try:
            self._begin()
            while not self._is_over:
                self._listen()
                self._check_members()
                for order in self._supervisor.orders():
                    self._handle_order(order)
                self._start_due()
                self._report_progress()
        finally:
            self.close()
            self._shared.close()
        return self._ended

    def close(self) -> None:
        """Every actor is ended, and the resources are released."""
        self._echoes = {}
        while self._members:  # one by one: after a Ctrl-C in between it is called again
            self._dismiss(self._members.popitem()[1])
        for place in {id(place): place for place, _ in self._places.values()}.values():
            self._ray.release(place)
        self._places = {}

    def _begin(self) -> None:
        bundles = bundles_of(self._plan)
        place = reserve(self._plan, self._ray, bundles, self._stop_request, self._on_message)
        for index, bundle in enumerate(bundles):
            self._places[bundle.who] = (place, index)
            self._queue_start(bundle.who)
        self._start_due()

    def _queue_start(self, participant: str) -> None:
        """Start it; it counts as started from now on, and its first message has its pid."""
        self._due.append(participant)
        self._supervisor.started(participant, 0)
        if participant.startswith("worker-"):
            self._control.ask_nothing(int(participant.removeprefix("worker-")))

    def _start(self, participant: str) -> None:
        if participant not in self._places:  # one more than the run began with
            more = bundles_of(self._plan)[-1]
            self._places[participant] = (self._ray.reserve([more.as_ray()], "PACK"), 0)
        place, index = self._places[participant]
        args = (participant, ELASTIC_SIDE)
        actor = self._ray.start(Participant, args, place, index, calls_at_once=MAX_CONCURRENCY)
        self._ray.call(actor, "begin", self._order, None)
        pending = self._ray.call(actor, "poll", "[]")
        self._members[participant] = Member(participant, actor, place, pending, monotonic_s())

    def _start_due(self) -> None:
        """Start those whose predecessor is dead for Ray too: only then is its bundle moved, or free."""
        dying = set(self._echoes.values())
        for participant in [participant for participant in self._due if participant not in dying]:
            self._due.remove(participant)
            self._start(participant)

    def _listen(self) -> None:
        due_s = self._supervisor.wait_s()
        wait_s = POLL_S if due_s is None else min(POLL_S, due_s)
        by_pending = {member.pending: member for member in self._members.values()}
        calls = [*by_pending, *self._echoes]
        if not calls:
            SystemClock().sleep(wait_s)
            return
        for done in self._ray.wait(calls, wait_s):
            if (member := by_pending.get(done)) is not None:
                self._receive(member)
            else:
                self._take_echo(done)

    def _receive(self, member: Member) -> None:
        try:
            text, _ = self._ray.take(member.pending)
        except ActorLost as lost:
            self._lost(member, lost)
            return
        update = json.loads(text)
        for message in update["said"]:
            self._handle_message(member, message)
        if update["over"]:
            self._reap(member, member.code)
        else:
            member.pending = self._ray.call(member.actor, "poll", "[]")

    def _handle_message(self, member: Member, message: Message) -> None:
        participant = member.who
        supervisor = self._supervisor
        match message["ev"]:
            case "started":
                self._watch(member, int(str(message["pid"])))
            case "exit":
                member.code = int(str(message["code"]))
            case "report":
                self._ended.reports[participant] = message
            case "left":
                supervisor.left(participant)
            case "slow":
                supervisor.slow(str(message["worker"]), str(message["reason"]))
            case "error":
                description = str(message["what"])
                hint = str(message["hint"])
                code = str(message.get("code", ""))
                supervisor.failed(
                    participant, description, hint, is_hopeless=bool(message["hopeless"]), code=code
                )
        self._on_message(message)

    def _watch(self, member: Member, pid: int) -> None:
        self._supervisor.started(member.who, pid)
        try:
            member.process = ActorProcess(pid)
        except ProcessLookupError:
            member.process = None  # it has already ended: Ray will report it

    def _check_members(self) -> None:
        """Actors that died without a report, that are not needed any more, or that find no resources."""
        if self._stop_request.stop:
            self._control.ask_to_stop()
        for member in list(self._members.values()):
            if member.process is not None and member.process.is_gone():
                self._drain(member)
            elif member.process is None and not self._is_ending:
                self._await_room(member)
        if any(member.process is not None for member in self._members.values()):
            self._lived_s = monotonic_s()
        if self._is_ending:
            self._send_away_latecomers()

    def _send_away_latecomers(self) -> None:
        """Drop actors that have not started when the run ends; there may be no resources for them."""
        absent = self._due
        self._due = []
        for member in [member for member in self._members.values() if member.process is None]:
            del self._members[member.who]
            self._dismiss(member)
            absent.append(member.who)
        for participant in absent:
            self._supervisor.left(participant)
            self._supervisor.exited(participant, 0, self._ended.ledger)

    def _drain(self, member: Member) -> None:
        """Handle its last messages; then it is lost, regardless of later reports of Ray."""
        if self._ray.wait([member.pending], 0.0):
            self._receive(member)
        if self._members.get(member.who) is member:
            self._echoes[member.pending] = member.who
            self._lost(member, ActorLost("its process died"))

    def _take_echo(self, done: Pending) -> None:
        participant = self._echoes.pop(done)
        try:
            self._ray.take(done)
        except ActorLost as lost:
            if "node" in lost.why:  # more than the kernel knew
                self._on_message({"ev": "note", "text": f"Ray reports {participant}: {lost.why}"})

    def _await_room(self, member: Member) -> None:
        now_s = monotonic_s()
        waited_s = now_s - member.since_s
        if waited_s < PATIENCE_S:
            return
        if member.place.is_there():
            if now_s - max(member.since_s, member.roomless_s) > START_TIMEOUT_S:
                self._lost(member, ActorLost(f"it had not joined {START_TIMEOUT_S:g} s after it was started"))
            return
        if not member.roomless_s:
            text = f"the Ray cluster has no free resources for {member.who}; it starts once there are some"
            self._on_message({"ev": "note", "text": text})
        member.roomless_s = now_s
        lives = any(other.process is not None for other in self._members.values())
        alone_s = now_s - max(member.since_s, self._lived_s)  # a replacement may be on its way
        if not lives and (self._stop_request.stop or alone_s > max(START_TIMEOUT_S, self._plan.timeout_s)):
            nodes = self._ray.nodes()
            bundles = bundles_of(self._plan)
            raise TrainingError(
                "no worker is alive, and the remaining Ray cluster is too small\n"
                + capacity_table(bundles, nodes, placement_of(self._plan, nodes)),
                "add nodes, then resume:  paceline train --resume RUN",
            )

    def _lost(self, member: Member, lost: ActorLost) -> None:
        if "No module named 'paceline'" in lost.why:
            raise MissingPackageError(
                f"{member.who} could not be started: paceline is not installed where Ray runs",
                "start Ray with the same Python as the run",
            )
        if member.process is None and lost.why == NODE_LOST:
            # It never was there: Ray put it on a node that had died and was not missed yet.
            del self._members[member.who]
            self._dismiss(member)
            self._due.append(member.who)
            return
        hint = f"see logs/{member.who}.log in the run folder"
        self._supervisor.failed(member.who, lost.why, hint, is_hopeless=lost.is_start)
        self._reap(member, _FAILED)

    def _reap(self, member: Member, code: int) -> None:
        del self._members[member.who]
        self._dismiss(member)
        if code == 0:
            self._is_ending = self._is_ending or member.who in self._ended.reports
        self._supervisor.exited(member.who, code, self._ended.ledger)

    def _dismiss(self, member: Member) -> None:
        try:
            self._ray.kill(member.actor)
        finally:
            if member.process is not None:
                member.process.end()  # on a node that Ray declared lost it may run for a moment

    def _handle_order(self, order: Message) -> None:
        match order["op"]:
            case "fork":
                self._queue_start(f"worker-{order['index']}")
            case "reap" if (member := self._members.get(str(order["who"]))) is not None:
                self._lost(member, ActorLost("its heartbeats stopped, and it was killed"))
            case "leave":
                self._control.ask_to_leave(int(str(order["index"])))
            case "save":
                self._control.ask_to_save()
            case "alone":
                self._control.give_up_coordinator()
            case "pause":
                saver = order.get("saver")
                self._control.pause(bool(order["is_paused"]), None if saver is None else int(str(saver)))
            case "kill" | "end":
                self._is_over = True

    def _report_progress(self) -> None:
        if monotonic_s() - self._reported_s < POLL_S:
            return
        self._reported_s = monotonic_s()
        steps = self._control.steps()
        alive = sum(m.process is not None for m in self._members.values() if m.who.startswith("worker-"))
        loss = self._control.mean_loss()
        self._on_message({"ev": "progress", "steps": list(steps), "loss": loss, "alive": alive})

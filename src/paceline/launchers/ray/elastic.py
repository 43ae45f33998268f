"""How do Ray's actors take part in an elastic run? Each alone: who is lost is replaced, the others go on.

To the supervisor (elastic.py) this is what the helper process is without Ray: it starts whom it is told to,
and tells who ended. Room is one placement group, whose bundles Ray moves to other nodes when theirs is lost,
so a replacement takes the place of whom it replaces. All actors are on this machine, and share this
process's memory for what they are asked (worker/control.py).
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

# By memory of this process that has no name of its own: whoever opens it through /proc is on this machine,
# and this user. It is gone with the last who has it open, also after `kill -9`.


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


# Ray learns of a lost node by its silence, seconds later; and a process of a node that Ray has given up may
# live on for a moment. By a pidfd it is this very process that is looked at, and ended, whatever its number
# is used for afterwards.


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
        """Now, if it has not ended; nothing may be asked of it afterwards."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        os.close(self._fd)


PATIENCE_S = 10.0  # for a process to start, before it is said that there is no room for it
_FAILED = int(ExitCode.TRAINING_FAILED)


@dataclass(slots=True)
class Member:
    who: str
    actor: Handle
    place: Reservation
    pending: Pending  # the question that it has not answered
    since_s: float
    process: ActorProcess | None = None  # once it has said that it is there
    code: int = _FAILED  # as it says itself, when all is over
    roomless_s: float = 0.0  # when there was no room for it, the last time


class ElasticGroup:
    def __init__(
        self,
        plan: Plan,
        ray: RayClient,
        tell: Callable[[Message], None],
        wishes: StopRequest,
        supervisor: Supervisor,
    ) -> None:
        self._plan, self._ray, self._tell, self._wishes = plan, ray, tell, wishes
        self._supervisor = supervisor
        self._members: dict[str, Member] = {}
        self._echoes: dict[Pending, str] = {}  # questions to the dead, until Ray knows of it too
        self._due: list[str] = []  # who is to be started
        self._places: dict[str, tuple[Reservation, int]] = {}  # the room of each, and which part of it
        self._shared = SharedControl(plan.num_workers)
        self._control = self._shared.block
        self._ended, self._order = RunOutcome(), ""
        self._is_ending = self._is_over = False
        self._told_s = 0.0
        self._lived_s = 0.0  # when somebody was last seen to live

    def run(self, run_dir: Path, resume_from: Path | None) -> RunOutcome:
        words = build_order(self._plan, run_dir, resume_from, self._supervisor.coordinator)
        self._order = json.dumps({**self._shared.where(), **words})
        try:
            self._begin()
            while not self._is_over:
                self._listen()
                self._look_after()
                for order in self._supervisor.orders():
                    self._obey(order)
                self._start_due()
                self._report_progress()
        finally:
            self.close()
            self._shared.close()
        return self._ended

    def close(self) -> None:
        """Nobody is left, and the room is free."""
        self._echoes = {}
        while self._members:  # one by one: Ctrl-C may come in between, and then it is called again
            self._dismiss(self._members.popitem()[1])
        for place in {id(place): place for place, _ in self._places.values()}.values():
            self._ray.release(place)
        self._places = {}

    def _begin(self) -> None:
        bundles = bundles_of(self._plan)
        place = reserve(self._plan, self._ray, bundles, self._wishes, self._tell)
        for index, bundle in enumerate(bundles):
            self._places[bundle.who] = (place, index)
            self._want(bundle.who)
        self._start_due()

    def _want(self, who: str) -> None:
        """It counts as started from now on; its process number comes with its first word."""
        self._due.append(who)
        self._supervisor.started(who, 0)
        if who.startswith("worker-"):
            self._control.ask_nothing(int(who.removeprefix("worker-")))

    def _start(self, who: str) -> None:
        if who not in self._places:  # one more than the run began with
            more = bundles_of(self._plan)[-1]
            self._places[who] = (self._ray.reserve([more.as_ray()], "PACK"), 0)
        place, index = self._places[who]
        args = (who, ELASTIC_SIDE)
        actor = self._ray.start(Participant, args, place, index, calls_at_once=MAX_CONCURRENCY)
        self._ray.call(actor, "begin", self._order, None)
        pending = self._ray.call(actor, "poll", "[]")
        self._members[who] = Member(who, actor, place, pending, monotonic_s())

    def _start_due(self) -> None:
        """Whom it replaces must be dead for Ray too: only then is its place moved, or free."""
        dying = set(self._echoes.values())
        for who in [who for who in self._due if who not in dying]:
            self._due.remove(who)
            self._start(who)

    def _listen(self) -> None:
        due_s = self._supervisor.wait_s()
        wait_s = POLL_S if due_s is None else min(POLL_S, due_s)
        by_pending = {member.pending: member for member in self._members.values()}
        asked = [*by_pending, *self._echoes]
        if not asked:
            SystemClock().sleep(wait_s)
            return
        for done in self._ray.wait(asked, wait_s):
            if (member := by_pending.get(done)) is not None:
                self._hear(member)
            else:
                self._hear_echo(done)

    def _hear(self, member: Member) -> None:
        try:
            text, _ = self._ray.take(member.pending)
        except ActorLost as lost:
            self._lost(member, lost)
            return
        said = json.loads(text)
        for message in said["said"]:
            self._hear_one(member, message)
        if said["over"]:
            self._bury(member, member.code)
        else:
            member.pending = self._ray.call(member.actor, "poll", "[]")

    def _hear_one(self, member: Member, message: Message) -> None:
        who, supervisor = member.who, self._supervisor
        match message["ev"]:
            case "started":
                self._watch(member, int(str(message["pid"])))
            case "exit":
                member.code = int(str(message["code"]))
            case "report":
                self._ended.reports[who] = message
            case "left":
                supervisor.left(who)
            case "slow":
                supervisor.slow(str(message["worker"]), str(message["reason"]))
            case "error":
                what, hint = str(message["what"]), str(message["hint"])
                code = str(message.get("code", ""))
                supervisor.failed(who, what, hint, is_hopeless=bool(message["hopeless"]), code=code)
        self._tell(message)

    def _watch(self, member: Member, pid: int) -> None:
        self._supervisor.started(member.who, pid)
        try:
            member.process = ActorProcess(pid)
        except ProcessLookupError:
            member.process = None  # it is gone already: Ray will say so

    def _look_after(self) -> None:
        """Whoever died without a word, whoever nobody needs any more, and whoever finds no room."""
        if self._wishes.stop:
            self._control.ask_to_stop()
        for member in list(self._members.values()):
            if member.process is not None and member.process.is_gone():
                self._hear_out(member)
            elif member.process is None and not self._is_ending:
                self._await_room(member)
        if any(member.process is not None for member in self._members.values()):
            self._lived_s = monotonic_s()
        if self._is_ending:
            self._send_away_latecomers()

    def _send_away_latecomers(self) -> None:
        """The others ended before they were there, and perhaps there is no room for them at all."""
        absent, self._due = self._due, []
        for member in [member for member in self._members.values() if member.process is None]:
            del self._members[member.who]
            self._dismiss(member)
            absent.append(member.who)
        for who in absent:
            self._supervisor.left(who)
            self._supervisor.exited(who, 0, self._ended.ledger)

    def _hear_out(self, member: Member) -> None:
        """What it said before it died counts; then it is lost, whatever Ray will say of it."""
        if self._ray.wait([member.pending], 0.0):
            self._hear(member)
        if self._members.get(member.who) is member:
            self._echoes[member.pending] = member.who
            self._lost(member, ActorLost("its process died"))

    def _hear_echo(self, done: Pending) -> None:
        who = self._echoes.pop(done)
        try:
            self._ray.take(done)
        except ActorLost as lost:
            if "node" in lost.why:  # more than the kernel knew
                self._tell({"ev": "note", "text": f"Ray says of {who}: {lost.why}"})

    def _await_room(self, member: Member) -> None:
        now_s = monotonic_s()
        waited_s = now_s - member.since_s
        if waited_s < PATIENCE_S:
            return
        if member.place.is_there():
            if now_s - max(member.since_s, member.roomless_s) > START_TIMEOUT_S:
                self._lost(member, ActorLost(f"it was not there {START_TIMEOUT_S:g} s after it was started"))
            return
        if not member.roomless_s:
            text = f"there is no room for {member.who} on the Ray cluster now; it comes once there is"
            self._tell({"ev": "note", "text": text})
        member.roomless_s = now_s
        lives = any(other.process is not None for other in self._members.values())
        alone_s = now_s - max(member.since_s, self._lived_s)  # a replacement may be on its way
        if not lives and (self._wishes.stop or alone_s > max(START_TIMEOUT_S, self._plan.timeout_s)):
            nodes, bundles = self._ray.nodes(), bundles_of(self._plan)
            raise TrainingError(
                "no worker lives, and what is left of the Ray cluster is too small\n"
                + capacity_table(bundles, nodes, placement_of(self._plan, nodes)),
                "add nodes, then go on with  paceline train --resume RUN",
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
        self._bury(member, _FAILED)

    def _bury(self, member: Member, code: int) -> None:
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
                member.process.end()  # of a node that Ray has given up it might live on for a moment

    def _obey(self, order: Message) -> None:
        match order["op"]:
            case "fork":
                self._want(f"worker-{order['index']}")
            case "fork_server":
                self._want(str(order["who"]))
            case "reap" if (member := self._members.get(str(order["who"]))) is not None:
                self._lost(member, ActorLost("it gave no sign of life, and was ended"))
            case "leave":
                self._control.ask_to_leave(int(str(order["index"])))
            case "alone":
                self._control.give_up_coordinator()
            case "pause":
                saver = order.get("saver")
                self._control.pause(bool(order["is_paused"]), None if saver is None else int(str(saver)))
            case "kill" | "end":
                self._is_over = True

    def _report_progress(self) -> None:
        if monotonic_s() - self._told_s < POLL_S:
            return
        self._told_s, steps = monotonic_s(), self._control.steps()
        alive = sum(m.process is not None for m in self._members.values() if m.who.startswith("worker-"))
        loss = self._control.mean_loss()
        self._tell({"ev": "progress", "steps": list(steps), "loss": loss, "alive": alive})

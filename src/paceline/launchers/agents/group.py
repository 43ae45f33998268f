"""Participants of an elastic run on several hosts: placed, followed, and placed again.

To the supervisor (launchers/elastic.py) this is what the zygote is on one machine: it starts the
participants that it is ordered to start, and reports those that ended. A participant without a free slot
waits for one. When the connection of a host ends, its participants are lost with it: the agent ends them
before the command stops waiting for it (wire.py), so a replacement never trains beside its predecessor.
Hosts come by themselves (`paceline agent`), or are started by a `HostSource` (launchers/ray/hosts.py).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.checkpoints.catalog import folder_at
from paceline.core.clock import monotonic_s
from paceline.core.errors import ExitCode, PacelineError, ProtocolError, TrainingError
from paceline.launchers.agents.folder import RunFolder
from paceline.launchers.agents.hub import MAX_WAITING, Arrived, Gone, Hub, Received
from paceline.launchers.agents.placement import (
    Host,
    HostRoom,
    HostSource,
    Placed,
    choose_host,
    describe_hosts,
    have_trained,
    host_apart,
    is_server,
    mean_loss,
    shares_a_machine,
)
from paceline.launchers.agents.wire import Message
from paceline.launchers.local import RunOutcome, Supervisor, refusal_error
from paceline.plan.catalog import is_split, server_names
from paceline.plan.codec import Json, dumps
from paceline.plan.plan import Plan

POLL_S = 0.1
END_S = 15.0  # for the agents to send what was written last
NO_HOST_S = 10.0  # without a host until a note about it
APART_S = 3.0  # for which a server waits for a slot on another machine than the other server's
_FAILED = int(ExitCode.TRAINING_FAILED)


class AgentGroup:
    def __init__(
        self,
        plan: Plan,
        hub: Hub,
        folder: RunFolder,
        on_message: Callable[[Message], None],
        is_stopping: Callable[[], bool],
        supervisor: Supervisor,
        source: HostSource,
    ) -> None:
        self._plan = plan
        self._source = source
        self._hub = hub
        self._folder = folder
        self._on_message = on_message
        self._is_stopping = is_stopping
        self._supervisor = supervisor
        self._hosts: dict[str, Host] = {}
        self._placed: dict[str, Placed] = {}
        self._due: list[str] = []  # participants that need a host
        self._steps = [0] * plan.num_workers
        self._lost: dict[str, dict[str, int]] = {}  # by name of the agent: how often it lost whom
        self._ended = RunOutcome()
        self._is_stop_sent = False
        self._is_ending = False
        self._is_over = False
        self._resume_from: Path | None = None
        self._run_dir = Path()
        self._reported_s = 0.0
        self._waiting_since_s = monotonic_s()  # without any living participant
        self._has_noted_room = False
        self._apart_until_s: dict[str, float] = {}  # servers that wait for another machine
        self._backup = ""  # the parameter server that follows the primary, as that reports it
        self._is_served = bool(server_names(plan))  # its primary asks for the newest checkpoint itself

    def run(self, run_dir: Path, resume_from: Path | None) -> RunOutcome:
        self._run_dir = run_dir
        self._resume_from = resume_from
        assert self._plan.elastic is not None, "only elastic runs have hosts"
        workers = [f"worker-{index}" for index in range(self._plan.elastic.workers)]
        for participant in [*server_names(self._plan), *workers]:
            self._queue_start(participant)
        while not self._is_over:
            self._handle_events(self._wait_s())
            self._request_stop()
            for order in self._supervisor.orders():
                self._handle_order(order)
            if self._is_ending:
                self._send_away_latecomers()
            else:
                self._update_source()
                self._place_due()
                self._part_servers()
                self._offer_new_slots()
                self._check_waiting()
            self._report_progress()
        self._finish()
        return self._ended

    def _wait_s(self) -> float:
        due_s = self._supervisor.wait_s()
        return POLL_S if due_s is None else min(POLL_S, due_s)

    def _handle_events(self, timeout_s: float) -> None:
        """The next event, and those that wait behind it; not more, or busy hosts would hold up all else."""
        for number in range(MAX_WAITING):
            event = self._hub.next_event(timeout_s if number == 0 else 0.0)
            match event:
                case Arrived(host, hello):
                    self._arrived(host, hello)
                case Received(host, message, blob):
                    self._take(host, message, blob)
                case Gone(host, why):
                    self._gone(host, why)
                case None:
                    return

    # Hosts.

    def _arrived(self, host: str, hello: Message) -> None:
        name = str(hello["name"])
        lost = self._lost.setdefault(name, {})
        room = HostRoom(host, int(str(hello["free"])), machine=name, lost=lost)
        self._hosts[host] = Host(room, name, str(hello["scratch"]), is_over=self._is_over)
        if self._is_over:  # it has ended the run, and found the offer again
            self._hub.drop(host)
            return
        self._source.arrived(host, hello)
        self._note(f"host {name} joined with {room.free} of {hello['total']} slots free")
        start: Message = {
            "op": "start",
            "plan": dumps(self._plan),
            "resume_from": None,
            "token": self._hub.secret.hex(),
        }
        if self._resume_from is not None:
            self._send_checkpoint(host, self._resume_from)
            start["resume_from"] = f"checkpoints/{self._resume_from.name}"
        self._hub.send(host, start)
        if self._is_stop_sent:
            self._hub.send(host, {"op": "stop"})

    def _gone(self, host: str, why: str) -> None:
        gone = self._hosts.pop(host)
        self._folder.forget(host)
        participants = sorted(gone.room.participants)
        if gone.is_over:
            return
        if participants or not gone.room.is_draining:
            self._note(f"host {gone.name} is gone ({why})")
        for participant in participants:
            gone_with = f"its host {gone.name} is gone: {why}"
            self._supervisor.failed(participant, gone_with, f"see the agent of {gone.name}")
            self._exited(gone, participant, _FAILED)

    def _take(self, key: str, message: Message, blob: bytes) -> None:
        try:
            self._received(self._hosts[key], key, message, blob)
        except ProtocolError as error:  # the run continues on the other hosts
            self._note(f"the connection of host {self._hosts[key].name} is ended: {error.what}; {error.hint}")
            self._hub.drop(key)

    def _received(self, host: Host, key: str, message: Message, blob: bytes) -> None:
        if "free" in message and host.is_usable:
            host.room.free = int(str(message["free"]))
        match message["ev"]:
            case "events":
                self._folder.append_events(key, blob)
            case "log":
                self._append_log(host, str(message["who"]), blob)
            case "file":
                self._receive_file(host, key, message, blob)
            case "stored":
                answer = self._folder.stored(message)
                self._hub.send(key, {"op": "answer", "number": message["number"], **answer})
            case "newest":
                self._answer_newest(key, message)
            case "return":
                at = self._folder.return_to_newest()
                self._hub.send(key, {"op": "answer", "number": message["number"], "failure": "", "at": at})
            case "fetch":
                failure = self._fetch(key, int(str(message["at"])))
                self._hub.send(key, {"op": "answer", "number": message["number"], "failure": failure})
            case "recorded":  # the lines before it are in the event log
                self._hub.send(key, {"op": "answer", "number": message["number"], "failure": ""})
            case "draining":
                self._drain(host)
            case "slots" | "ready":
                pass
            case "full":
                self._unplace(host, str(message["who"]))
            case "refused":
                self._refused(host, message)
            case "shared":
                shared = {"op": "shared", "ended_at": message["ended_at"], "is_saved": message["is_saved"]}
                for other in self._hosts:
                    if other != key:
                        self._hub.send(other, shared)
            case "over":
                host.is_over = True
            case "progress":
                self._take_progress(host, message)
            case _:
                self._handle_message(host, key, message)

    def _append_log(self, host: Host, participant: str, text: bytes) -> None:
        try:
            self._folder.append_log(participant, text)
        except OSError as error:
            if not host.has_lost_lines:
                host.has_lost_lines = True
                why = error.strerror or str(error)
                self._note(f"warning: the log of {participant} on {host.name} misses lines: {why}")

    def _receive_file(self, host: Host, key: str, message: Message, blob: bytes) -> None:
        try:
            self._folder.receive(key, message, blob)
        except OSError as error:
            # A snapshot that is not whole is refused when its participant asks whether it is stored.
            self._note(f"warning: {message['path']} of {host.name} could not be written: {error.strerror}")

    def _handle_message(self, host: Host, key: str, message: Message) -> None:
        """A message of a participant, or of the helper about one."""
        participant = str(message.get("who", ""))
        supervisor = self._supervisor
        match message["ev"]:
            case "started":
                self._started(host, participant, int(str(message["pid"])))
            case "exited":
                self._on_message({**message, "host": host.name})
                if participant in host.room.participants:
                    self._exited(host, participant, int(str(message["code"])))
                return
            case "report":
                self._ended.reports[participant] = message
            case "left":
                supervisor.left(participant)
            case "backup":
                self._backup = str(message["backup"])
                return
            case "slow":
                supervisor.slow(str(message["worker"]), str(message["reason"]))
            case "error":
                hint = str(message["hint"]).replace(host.scratch, str(self._run_dir))
                message = {**message, "hint": hint}
                supervisor.failed(
                    participant,
                    str(message["what"]),
                    hint,
                    is_hopeless=bool(message.get("hopeless")),
                    code=str(message.get("code", "")),
                )
        self._on_message({**message, "host": host.name})

    def _started(self, host: Host, participant: str, pid: int) -> None:
        placed = self._placed.get(participant)
        if placed is not None and participant in host.room.participants:
            placed.pid = pid
            self._supervisor.started(participant, pid)
            self._note(f"{participant} runs on {host.name} as process {pid}")

    def _exited(self, host: Host, participant: str, code: int) -> None:
        host.room.participants.discard(participant)
        self._placed.pop(participant, None)
        if is_server(participant):
            self._backup = ""  # until the primary names it
        if code != 0:
            lost = self._lost[host.name]
            lost[participant] = lost.get(participant, 0) + 1
        elif participant in self._ended.reports:
            self._is_ending = True
        self._supervisor.exited(participant, code, self._ended.ledger)

    def _refused(self, host: Host, message: Message) -> None:
        """This host cannot run the plan: it lacks the task's module or its data, for example."""
        self._exclude(host, refusal_error(message))

    def _exclude(self, host: Host, error: PacelineError) -> None:
        host.is_usable = False
        host.room.free = 0
        host.refusal = error
        self._note(f"host {host.name} cannot take part: {error.what}; {error.hint}")
        for participant in sorted(host.room.participants):
            self._unplace(host, participant)

    def _unplace(self, host: Host, participant: str) -> None:
        """It was not started there: it needs another host."""
        if participant in host.room.participants:
            host.room.participants.discard(participant)
            del self._placed[participant]
            self._due.append(participant)

    def _drain(self, host: Host) -> None:
        host.room.is_draining = True
        self._note(f"host {host.name} is draining: its participants move to other hosts")
        for participant in sorted(host.room.participants):
            self._supervisor.evacuate(participant, f"its host {host.name} is draining")

    def _update_source(self) -> None:
        rooms = {key: host.room for key, host in self._hosts.items()}
        self._source.update(len(self._due) + len(self._placed), rooms)

    # Participants.

    def _queue_start(self, participant: str) -> None:
        """It counts as started from now on; its pid follows."""
        self._due.append(participant)
        self._supervisor.started(participant, 0)

    def _place_due(self) -> None:
        waiting = self._due
        self._due = []
        rooms = [host.room for host in self._hosts.values() if host.is_usable]
        for participant in sorted(waiting, key=is_server, reverse=True):  # servers choose first
            host = choose_host(participant, rooms)
            if host is None or self._may_come_apart(participant, self._hosts[host].room, rooms):
                self._due.append(participant)
            else:
                self._apart_until_s.pop(participant, None)
                self._start_on(host, participant)
        self._has_noted_room = self._has_noted_room and bool(self._due)

    def _may_come_apart(self, participant: str, room: HostRoom, rooms: Sequence[HostRoom]) -> bool:
        """Whether a server waits a moment longer, because it would share the machine of the other one."""
        if not shares_a_machine(participant, room, rooms):
            return False
        until_s = self._apart_until_s.setdefault(participant, monotonic_s() + APART_S)
        return monotonic_s() < until_s

    def _part_servers(self) -> None:
        """Move the backup off the machine of its primary, once another one has a free slot."""
        placed = self._placed.get(self._backup)
        if placed is None or not placed.pid or self._due:
            return
        rooms = [host.room for host in self._hosts.values() if host.is_usable]
        better = host_apart(self._backup, self._hosts[placed.host].room, rooms)
        if better is not None:
            reason = f"it moves from the primary's host to {self._hosts[better].name}"
            self._supervisor.evacuate(self._backup, reason)
            self._backup = ""

    def _start_on(self, host: str, participant: str) -> None:
        room = self._hosts[host].room
        room.free -= 1
        room.participants.add(participant)
        index = None if is_server(participant) else int(participant.removeprefix("worker-"))
        steps = 0 if index is None else self._steps[index]
        asks_for_it = self._is_served or is_split(self._plan.mode)
        if not (asks_for_it or have_trained(self._placed, self._steps)):
            newest = self._folder.newest()
            if newest is not None:
                self._send_checkpoint(host, newest)
        self._placed[participant] = Placed(host, first_steps=steps)
        if index is None:
            self._hub.send(host, {"op": "fork_server", "who": participant})
        else:
            self._hub.send(host, {"op": "fork", "who": participant, "index": index, "steps": steps})

    def _fetch(self, host: str, at: int) -> str:
        """Send the checkpoint of that number, as it is in the run folder now; why not, or nothing."""
        folder = folder_at(self._run_dir / "checkpoints", at)
        try:
            self._hub.send_folder(host, folder)
        except OSError as error:
            return f"the checkpoint {folder.name} cannot be read: {error.strerror or error}"
        return ""

    def _send_checkpoint(self, host: str, folder: Path) -> None:
        sent = self._hosts[host].sent_checkpoints
        if folder.name not in sent:
            sent.add(folder.name)
            self._hub.send_folder(host, folder)

    def _answer_newest(self, host: str, message: Message) -> None:
        """A server begins as primary: its host gets the newest checkpoint, as it is in the run folder now."""
        answer: Message = {"op": "answer", "number": message["number"], "failure": "", "folder": ""}
        try:
            newest = self._folder.newest()
            if newest is not None:
                self._hub.send_folder(host, newest)
                answer["folder"] = newest.name
        except OSError as error:
            answer["failure"] = f"the newest checkpoint cannot be read: {error.strerror or error}"
        self._hub.send(host, answer)

    def _offer_new_slots(self) -> None:
        """A host that joined may take workers beyond those that the run began with, up to --max-workers."""
        for host in self._hosts.values():
            if host.is_new and not self._due:
                host.is_new = False
                if host.is_usable and not host.room.is_draining and host.room.free > 0:
                    self._supervisor.grow(host.room.free, f"host {host.name} has free slots")

    def _send_away_latecomers(self) -> None:
        """Drop participants that have no host when the run ends."""
        absent = self._due
        self._due = []
        for participant in absent:
            self._supervisor.left(participant)
            self._supervisor.exited(participant, 0, self._ended.ledger)

    def _check_waiting(self) -> None:
        now_s = monotonic_s()
        if self._living() or not self._due:
            self._waiting_since_s = now_s
        waited_s = now_s - self._waiting_since_s
        without_slot = [participant for participant in self._due if participant not in self._apart_until_s]
        if without_slot and not self._has_noted_room and (self._living() or waited_s > NO_HOST_S):
            self._has_noted_room = True
            self._note(
                f"{', '.join(without_slot)} wait for a free slot: {describe_hosts(self._hosts.values())}"
            )
        refusals = [host.refusal for host in self._hosts.values() if host.refusal is not None]
        if refusals and len(refusals) == len(self._hosts) and waited_s > NO_HOST_S:
            raise refusals[0]
        limit_s = max(self._plan.timeout_s, self._source.start_s)
        if waited_s > limit_s or (self._is_stopping() and self._due and not self._living()):
            hosts = describe_hosts(self._hosts.values())
            raise TrainingError(
                f"no worker is alive, and none could be started for {waited_s:.0f} s: {hosts}",
                f"{self._source.hint}, then resume:  paceline train --resume RUN",
            )

    def _living(self) -> bool:
        return any(placed.pid for placed in self._placed.values())

    # Orders of the supervisor.

    def _handle_order(self, order: Message) -> None:
        match order["op"]:
            case "fork":
                self._queue_start(f"worker-{order['index']}")
            case "fork_server":
                self._queue_start(str(order["who"]))
            case "leave":
                self._leave(f"worker-{order['index']}", order)
            case "reap":
                self._send_to(str(order["who"]), order)
            case "kill":
                self._broadcast({"op": "kill"})
                self._is_over = not self._living()
                self._is_ending = True
            case "end":
                self._is_over = True
            case _:
                self._broadcast(order)

    def _leave(self, participant: str, order: Message) -> None:
        if participant in self._due:  # it has not been started: there is nothing to wait for
            self._due.remove(participant)
            self._supervisor.left(participant)
            self._supervisor.exited(participant, 0, self._ended.ledger)
        else:
            self._send_to(participant, order)

    def _send_to(self, participant: str, order: Message) -> None:
        placed = self._placed.get(participant)
        if placed is not None:
            self._hub.send(placed.host, order)

    def _broadcast(self, order: Message) -> None:
        for host in self._hosts:
            self._hub.send(host, order)

    def _request_stop(self) -> None:
        if self._is_stopping() and not self._is_stop_sent:
            self._is_stop_sent = True
            self._broadcast({"op": "stop"})

    def _finish(self) -> None:
        """Every agent ends the run on its host, and sends what was written last."""
        self._broadcast({"op": "kill"})
        self._broadcast({"op": "end"})
        until_s = monotonic_s() + END_S
        while monotonic_s() < until_s and not all(host.is_over for host in self._hosts.values()):
            self._handle_events(POLL_S)

    # Progress.

    def _take_progress(self, host: Host, message: Message) -> None:
        for index, count in host.take_progress(message).items():
            self._steps[index] = max(self._steps[index], count)

    def _report_progress(self) -> None:
        if monotonic_s() - self._reported_s < POLL_S:
            return
        self._reported_s = monotonic_s()
        mean = mean_loss(self._hosts.values())
        steps: list[Json] = list(self._steps)
        alive = sum(placed.pid > 0 for who, placed in self._placed.items() if who.startswith("worker-"))
        self._on_message({"ev": "progress", "steps": steps, "loss": mean, "alive": alive})

    def _note(self, text: str) -> None:
        self._on_message({"ev": "note", "text": text})

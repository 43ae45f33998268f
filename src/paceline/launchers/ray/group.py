"""Ray actor group of one plan: reserve resources, start the actors, connect them, and poll them.

The launcher polls all actors and never waits for a single one: in every mode it detects a loss, Ctrl-C and
progress at once. The actors always end with `run`.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline import __version__
from paceline.checkpoints.catalog import (
    DAMAGED,
    Checkpoint,
    facts_of,
    folder_at,
    is_complete,
    newest_complete,
    number_of,
    pack_checkpoint,
    remove_old,
    set_aside,
)
from paceline.checkpoints.catalog import verified as verified_snapshot
from paceline.core.clock import SystemClock, boot_id, monotonic_s
from paceline.core.disk import make_folder, write_durably
from paceline.core.errors import MissingPackageError, NotReadyError, VersionsDifferError
from paceline.core.sealed_json import seal
from paceline.events.log import EventLog
from paceline.launchers.local import Message, RunOutcome
from paceline.launchers.ray.actor import MAX_CONCURRENCY, Participant
from paceline.launchers.ray.client import (
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
from paceline.launchers.ray.resources import bundles_of, has_server
from paceline.launchers.supervision import Failure
from paceline.launchers.torchrun import record_message
from paceline.plan.catalog import is_split
from paceline.plan.codec import Json, dumps
from paceline.plan.plan import Plan, Transport

_NO_TENSORS = (2).to_bytes(8, "little") + b"{}"  # an empty safetensors file


class RunDirWriter:
    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan = plan
        self._run_dir = run_dir
        self._root = run_dir / "checkpoints"
        self._participants = 1 if has_server(plan) else plan.num_workers
        self._events = EventLog(run_dir / "events.jsonl", who="launcher", clock=SystemClock())

    def events(self, lines: str) -> None:
        if lines:
            self._events.append_lines(lines.encode())

    def log(self, participant: str, text: str) -> None:
        if text:
            path = self._run_dir / "logs" / f"{participant}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(text)

    def image(self, message: Message, tensors: bytes) -> Message:
        """Write a snapshot; what its participant is answered."""
        folder = folder_at(self._root, int(str(message["at"])))
        participant = str(message["who"])
        facts = message["facts"]
        assert isinstance(facts, dict), "a snapshot's facts are an object"
        answer: Message = {
            "number": message["number"],
            "failure": "",
            "bytes": 0,
            "sha256": "",
            "removed": [],
        }
        try:
            make_folder(folder)
            sealed, sha256 = seal(facts, tensors)
            if not _is_there(folder, participant):
                write_durably(folder / f"{participant}.safetensors", [tensors])
                write_durably(folder / f"{participant}.json", [sealed])
            removed: list[int] = []
            if is_complete(folder, self._participants):
                removed = remove_old(
                    self._root, participants=self._participants, keep=self._plan.keep_checkpoints
                )
        except OSError as error:
            return {**answer, "failure": f"{error.strerror or error} ({error.filename or folder})"}
        return {**answer, "bytes": len(tensors) + len(sealed), "sha256": sha256, "removed": list(removed)}

    def saved(self, folder: Path, participant: str) -> bytes:
        """The snapshot that a participant resumes from, as bytes; a worker of a server needs no tensors."""
        if is_split(self._plan.mode):
            return pack_checkpoint(folder)  # there may be another number of workers now, with other parts
        if has_server(self._plan):
            snapshot = verified_snapshot(folder, "server-0")
            tensors = snapshot.tensors if participant == "server-0" else _NO_TENSORS
        else:
            snapshot = verified_snapshot(folder, participant)
            tensors = snapshot.tensors
        facts = json.dumps(snapshot.facts).encode()
        return len(facts).to_bytes(8, "little") + facts + tensors

    def go_back(self, cause: str) -> Checkpoint | None:
        """Roll back to the newest checkpoint after a loss; None: the start. Later results are set aside."""
        newest = newest_complete(self._root, self._plan.num_workers)
        set_aside(self._root, after=-1 if newest is None else number_of(newest.folder))
        clocks = (0,) * self._plan.num_workers if newest is None else newest.clocks
        log = EventLog(self._run_dir / "events.jsonl", who="launcher", clock=SystemClock())
        log.write("worker_lost", cause=cause)
        version = 0 if newest is None else newest.version
        log.write("run_resumed", version=version, clocks=",".join(map(str, clocks)))
        log.close()
        return newest


def _is_there(folder: Path, participant: str) -> bool:
    """Whether the file exists already: same step and same history, so the same content."""
    try:
        facts_of(folder, participant)
    except DAMAGED:
        return False
    return True


GRACE_S = 5.0  # timeout for other actors to report their errors


@dataclass(slots=True)
class Member:
    who: str
    actor: Handle
    address: str = ""
    ahead_ns: int = 0  # how far the launcher's clock is ahead of its
    pending: Pending | None = None  # the question that it has not answered
    answers: list[Json] = field(default_factory=list)  # responses to its requests
    torch: str = ""  # its version, once it is ready
    samples: int = 0  # that it trains with
    steps: int = 0
    loss: float | None = None


class LostError(Exception):
    def __init__(self, participant: str, lost: ActorLost) -> None:
        super().__init__(lost.why)
        self.who = participant
        self.lost = lost


def are_on_one_host(hellos: Sequence[Mapping[str, object]]) -> bool:
    """Whether all of them reach each other by 127.0.0.1."""
    return len({(hello["boot"], hello["net"]) for hello in hellos}) == 1


def host_monitors(boots: Mapping[str, str], own_boot: str) -> frozenset[str]:
    """Workers that sample their host: one on each host but the launcher's, distinguished by boot id."""
    first: dict[str, str] = {}
    for participant, boot in boots.items():
        if boot != own_boot and participant.startswith("worker-"):
            first.setdefault(boot, participant)
    return frozenset(first.values())


class Group:
    def __init__(
        self,
        plan: Plan,
        ray: RayClient,
        folder: RunDirWriter,
        on_message: Callable[[Message], None],
        stop_request: StopRequest,
    ) -> None:
        self._plan = plan
        self._ray = ray
        self._folder = folder
        self._on_message = on_message
        self._stop_request = stop_request
        self._members: list[Member] = []
        self._place: Reservation | None = None
        self._ended = RunOutcome()
        self._is_stop_sent = self._may_go = False
        self._reported_s = 0.0

    def run(self, run_dir: Path, resume_from: Path | None, clocks: Sequence[int]) -> RunOutcome:
        try:
            self._start()
            self._begin(run_dir, resume_from)
            for member, clock in zip(self._workers, clocks, strict=True):
                member.steps = clock
            self._follow()
        except LostError as error:
            self._note_loss(error.who, error.lost)
        finally:
            self.close()
        return self._ended

    def close(self) -> None:
        """Every actor is ended, and the resources are released."""
        for member in self._members:
            self._ray.kill(member.actor)
        self._members = []
        if self._place is not None:
            self._ray.release(self._place)
            self._place = None

    @property
    def _workers(self) -> list[Member]:
        return [member for member in self._members if member.who.startswith("worker-")]

    def _start(self) -> None:
        bundles = bundles_of(self._plan)
        self._place = reserve(self._plan, self._ray, bundles, self._stop_request, self._on_message)
        for index, bundle in enumerate(bundles):
            args = (bundle.who,)
            actor = self._ray.start(Participant, args, self._place, index, calls_at_once=MAX_CONCURRENCY)
            self._members.append(Member(bundle.who, actor))

    def _ask(self, members: Sequence[Member], method: str, *args: object) -> dict[str, object]:
        """Call several actors; their answers, by name. LostError if one never answers."""
        waiting = {self._ray.call(member.actor, method, *args): member for member in members}
        answers: dict[str, object] = {}
        end_s = monotonic_s() + START_TIMEOUT_S
        while waiting:
            for done in self._ray.wait(list(waiting), POLL_S):
                member = waiting.pop(done)
                answers[member.who] = self._take(member, done)
            if waiting and monotonic_s() > end_s:
                (silent, *_) = waiting.values()
                raise LostError(silent.who, ActorLost(f"it did not answer within {START_TIMEOUT_S:g} s"))
        return answers

    def _take(self, member: Member, answered: Pending) -> object:
        try:
            return self._ray.take(answered)
        except ActorLost as lost:
            raise LostError(member.who, lost) from lost

    def _begin(self, run_dir: Path, resume_from: Path | None) -> None:
        """Check the hello of each actor, send them the rendezvous, and start them."""
        hellos = {
            participant: json.loads(str(update))
            for participant, update in self._ask(self._members, "hello").items()
        }
        for member in self._members:
            self._check_hello(member, hellos[member.who])
        order = self._order(run_dir, is_one_host=are_on_one_host(list(hellos.values())))
        pids = {participant: int(hello["pid"]) for participant, hello in hellos.items()}
        monitors = host_monitors(
            {participant: str(hello["boot"]) for participant, hello in hellos.items()}, boot_id()
        )
        starts = []
        for member in self._members:
            saved = None if resume_from is None else self._folder.saved(resume_from, member.who)
            own = json.dumps({**order, "ahead_ns": member.ahead_ns, "looks_at_host": member.who in monitors})
            starts.append((member, self._ray.call(member.actor, "begin", own, saved)))
        for member, done in starts:
            self._take(member, done)
            self._on_message({"ev": "started", "who": member.who, "pid": pids[member.who]})

    def _check_hello(self, member: Member, hello: Mapping[str, object]) -> None:
        member.address = str(hello["address"])
        if hello["paceline"] != __version__:
            message = f"paceline is {__version__} here, but {hello['paceline']} on {hello['host']}"
            raise NotReadyError(message, "install the same version on every node")
        if hello["boot"] != boot_id():
            asked_ns = SystemClock().now_ns()
            theirs_ns = int(str(self._ask([member], "now_ns")[member.who]))
            member.ahead_ns = (asked_ns + SystemClock().now_ns()) // 2 - theirs_ns

    def _order(self, run_dir: Path, *, is_one_host: bool) -> dict[str, Json]:
        plan = self._plan
        order = self._unmet(run_dir, is_one_host)
        host = self._members[0]  # the server, or rank 0
        if plan.transport is Transport.NONE:
            return order
        address = "127.0.0.1" if is_one_host else host.address
        update = self._ask([host], "host", address, plan.num_workers, plan.timeout_s)[host.who]
        where: dict[str, Json] = json.loads(str(update))
        return order | ({"server": where} if has_server(plan) else where)

    def _unmet(self, run_dir: Path, is_one_host: bool) -> dict[str, Json]:
        return {
            "plan": dumps(self._plan),
            "run_dir": str(run_dir.resolve()),
            "cwd": str(Path.cwd()),
            "is_one_host": is_one_host,
            "token": secrets.token_bytes(32).hex(),
            "host": None,
            "port": None,
            "server": None,
        }

    def _follow(self) -> None:
        for member in self._members:
            member.pending = self._ray.call(member.actor, "poll", "[]")
        give_up_s: float | None = None
        while waiting := {m.pending: m for m in self._members if m.pending is not None}:
            for done in self._ray.wait(list(waiting), POLL_S):
                self._receive(waiting[done], done)
            self._act()
            if self._ended.ledger.failures:
                give_up_s = give_up_s or monotonic_s() + GRACE_S
                if monotonic_s() > give_up_s:
                    self._name_silent()
                    return

    def _receive(self, member: Member, done: Pending) -> None:
        member.pending = None
        try:
            text, blobs = self._ray.take(done)
        except ActorLost as lost:
            self._note_loss(member.who, lost)
            return
        update = json.loads(text)
        self._folder.events(update["events"])
        self._folder.log(member.who, update["log"])
        member.steps = max(member.steps, int(update.get("steps", 0)))
        member.loss = update.get("loss", member.loss) if update.get("steps") else member.loss
        member.answers = []
        for message in update["said"]:
            self._handle_message(member, message, blobs)
        if not update["over"]:
            member.pending = self._ray.call(member.actor, "poll", json.dumps(member.answers))

    def _handle_message(self, member: Member, message: Message, blobs: Sequence[bytes]) -> None:
        match message["ev"]:
            case "image":
                member.answers.append(self._folder.image(message, blobs[int(str(message["blob"]))]))
            case "ready":
                member.torch = str(message["torch"])
                member.samples = int(str(message["samples"]))
            case _:
                self._on_message(message)
                record_message(self._ended, message)

    def _act(self) -> None:
        """Do what is due: a requested stop, the start of training, a progress report."""
        if self._stop_request.stop and not self._is_stop_sent:
            self._is_stop_sent = True
            self._order_all("stop")
        if not self._may_go and all(member.torch for member in self._members):
            self._check_alike()
            self._may_go = True
            self._order_all("go")
        if monotonic_s() - self._reported_s > POLL_S:
            self._reported_s = monotonic_s()
            workers = self._workers
            losses = [w.loss for w in workers if w.loss is not None]
            mean = sum(losses) / len(losses) if losses else None
            steps: list[Json] = [w.steps for w in workers]
            alive = sum(w.pending is not None for w in workers)
            self._on_message({"ev": "progress", "steps": steps, "loss": mean, "alive": alive})

    def _order_all(self, method: str) -> None:
        for member in self._members:
            if member.pending is not None:
                self._ray.call(member.actor, method)  # a dead actor is noticed by its pending poll

    def _check_alike(self) -> None:
        """Refuse workers with different versions of torch or different data."""
        versions = {member.torch: member.address for member in self._members}
        if len(versions) > 1:
            listed = ", ".join(f"{version} on {address}" for version, address in versions.items())
            raise VersionsDifferError(
                f"nodes have different versions of torch: {listed}", "install the same one"
            )
        counts = {member.samples: member for member in self._workers}
        if len(counts) > 1:
            listed = ", ".join(f"{n} for {m.who} on {m.address}" for n, m in counts.items())
            raise VersionsDifferError(
                f"workers have different data: {listed} samples", "put the same data on every node"
            )

    def _note_loss(self, participant: str, lost: ActorLost) -> None:
        """A loss has an external cause; an actor that cannot start would fail again."""
        where = next((f" on {m.address}" for m in self._members if m.who == participant and m.address), "")
        message = f"{participant}{where} was lost: {lost.why}"
        if "No module named 'paceline'" in lost.why:
            raise MissingPackageError(
                f"{participant} could not be started: paceline is not installed on its node",
                "install the same version on every node, or name a runtime environment that has it",
            )
        if lost.is_start:
            message = f"{participant}{where}: {lost.why}"
        hint = "resume from the newest checkpoint:  paceline train --resume RUN"
        self._ended.ledger.error(
            Failure(participant, message, hint, is_consequence=False, by_signal=not lost.is_start)
        )

    def _name_silent(self) -> None:
        """An actor lost a peer, and none reports a failure: then the silent actor is the one that failed."""
        if any(not failure.is_consequence for failure in self._ended.ledger.failures):
            return
        for member in self._members:
            if member.pending is not None:
                self._note_loss(member.who, ActorLost("it does not respond"))

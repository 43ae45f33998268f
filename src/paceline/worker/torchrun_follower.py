"""What does a rank above 0 do? It is told what to train, trains, says how it went, and waits for the verdict.

It reads no configuration, and writes no file but its log of warnings. An error of this rank is reported by
rank 0, once; only when rank 0 cannot be reached any more does this rank report it itself.
"""

import math
from pathlib import Path

from paceline.clock import Clock, SystemClock, monotonic_s
from paceline.errors import PacelineError, PeerLostError, TrainingError
from paceline.plan.catalog import Channel
from paceline.plan.codec import loads
from paceline.plan.plan import Plan
from paceline.transport.meeting_place import MeetingPlace, boot_id
from paceline.transport.tcp_store import Address
from paceline.worker.control import ControlBlock
from paceline.worker.far_clock import FarClock, ahead_ns
from paceline.worker.far_folder import FarFolder, receive_snapshot
from paceline.worker.faults import ENDS
from paceline.worker.participant import Report
from paceline.worker.rank_output import RankOutput
from paceline.worker.run_folder import OwnFolder
from paceline.worker.torchrun_rank import signals_stop, take_part
from paceline.worker.torchrun_words import Message, check_here, fault_of, hello_of
from paceline.worker.wiring import channel_of

VERDICT_S = 15.0  # for rank 0 to say how it ended, once something went wrong
LOST_S = 7.0  # the same once we were also told to go: a rank has ended, perhaps rank 0
STOPPED_S = 25.0  # for rank 0 to end in good order, once we were told to go; torchrun waits for 30


class _OverError(Exception):
    """Rank 0 says that there is nothing to wait for."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def follow(place: MeetingPlace, output: RankOutput) -> int:
    """Take part in whatever rank 0 trains; the exit code."""
    rank = place.world.rank
    place.show(f"hello/{rank}", hello_of(place.world))
    try:
        word = _seen(place, "word", whose="rank 0 to say what is trained")
        output.log_to(Path(str(word["run_dir"])) / "logs" / f"worker-{rank}.log")
        return _follow(place, word)
    except _OverError as over:
        place.show(f"bye/{rank}", True)
        return over.code


def _follow(place: MeetingPlace, word: Message) -> int:
    rank, plan = place.world.rank, loads(str(word["plan"]), where="rank 0's plan")
    part = _Part(place, plan, word)
    with signals_stop(part.control) as asked_by:
        try:
            part.take()
            end: Message = {"ev": "report", "who": f"worker-{rank}", **part.report}
        except _OverError:
            raise
        except ENDS as error:
            # Also a failure of the user's task: rank 0 tells it.
            end = fault_of(error, rank, str(word["run_dir"]))
            if not part.was_ready:
                place.show(f"ready/{rank}", {"failed": True})
        try:
            place.send(f"end/{rank}/events", part.unsent())
            place.show(f"end/{rank}", end)
            code = _verdict(place, end, asked_by)
            place.show(f"bye/{rank}", True)
        except PeerLostError as error:
            raise _own_words(end) or error from None
        return code


def _verdict(place: MeetingPlace, end: Message, asked_by: list[str]) -> int:
    """Rank 0 may take long to evaluate what was trained; but who was told to go, or failed, does not wait."""
    has_failed, is_dismissed = end["ev"] == "error", False
    give_up_s = monotonic_s() + VERDICT_S if has_failed else math.inf
    while True:
        if asked_by and not is_dismissed:
            is_dismissed = True
            give_up_s = min(give_up_s, monotonic_s() + (LOST_S if has_failed else STOPPED_S))
        try:
            return int(str(_seen(place, "verdict", whose="rank 0's verdict", timeout_s=1.0)["code"]))
        except PeerLostError:
            if not place.is_open() or monotonic_s() > give_up_s:
                raise


def _own_words(end: Message) -> PacelineError | None:
    if end["ev"] != "error":
        return None
    error = TrainingError(f"{end['who']}: {end['what']}", str(end["hint"]))
    if end.get("trace"):  # rank 0 would have kept it
        print(end["trace"], flush=True)
    return error


def _seen(place: MeetingPlace, name: str, *, whose: str, timeout_s: float | None = None) -> Message:
    said: Message = place.see(name, whose=whose, timeout_s=timeout_s)
    if "over" in said:
        raise _OverError(int(str(said["over"])))
    return said


class _Part:
    """This rank's part of a run."""

    def __init__(self, place: MeetingPlace, plan: Plan, word: Message) -> None:
        self._place, self._plan, self._word = place, plan, word
        self.control = ControlBlock(plan.num_workers)
        self.report: Message = {}
        self.was_ready = False
        self._far: FarFolder | None = None

    def take(self) -> None:
        place, plan, word = self._place, self._plan, self._word
        check_here(plan, place.world)
        clock = _clock(place, str(word["boot"]))
        run_dir = Path(str(word["run_dir"]))
        resume_from = None if word["resume_from"] is None else Path(str(word["resume_from"]))
        if channel_of(plan.mode) is not Channel.STORE:
            self._far = FarFolder(place, None if resume_from is None else receive_snapshot(place))
        take_part(
            place,
            plan,
            run_dir=run_dir,
            resume_from=resume_from,
            control=self.control,
            clock=clock,
            # Behind a parameter server all are on one host, and reach the folder themselves.
            folder=self._far or OwnFolder(run_dir, resume_from),
            ready=self._ready,
            server=_server(word),
            report=self._keep,
            looks_at_host=str(word["boot"]) != boot_id() and place.world.local_rank == 0,
        )

    def unsent(self) -> bytes:
        return b"" if self._far is None else self._far.unsent()

    def _ready(self, num_samples: int) -> None:
        self.was_ready = True
        self._place.show(f"ready/{self._place.world.rank}", {"num_samples": num_samples})
        _seen(self._place, "go", whose="the other ranks to be ready")

    def _keep(self, facts: Report) -> None:
        if "ev" not in facts:  # else about a checkpoint, of which rank 0 knows more
            self.report = dict(facts)  # type: ignore[arg-type]  # facts are JSON


def _clock(place: MeetingPlace, boot: str) -> Clock:
    if boot == boot_id():
        return SystemClock()
    rank, own = place.world.rank, SystemClock()
    place.see(f"turn/{rank}", whose="rank 0 to tell the time")
    asked_ns = own.now_ns()
    place.show(f"asks/{rank}", True)
    theirs_ns = int(place.see(f"time/{rank}", whose="rank 0 to tell the time"))
    return FarClock(ahead_ns(asked_ns=asked_ns, theirs_ns=theirs_ns, answered_ns=own.now_ns()))


def _server(word: Message) -> tuple[Address, bytes] | None:
    said = word["server"]
    if not isinstance(said, dict):
        return None
    return Address(str(said["host"]), int(str(said["port"]))), bytes.fromhex(str(said["token"]))

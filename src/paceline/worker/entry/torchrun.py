"""What does a rank above 0 do? It is told what to train, trains, says how it went, and waits for the verdict.

It reads no configuration, and writes no file but its log of warnings. An error of this rank is reported by
rank 0, once; only when rank 0 cannot be reached any more does this rank report it itself.
"""

import math
import platform
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from paceline import __version__
from paceline.config.environment import World
from paceline.core import environ
from paceline.core.clock import Clock, SystemClock, monotonic_s
from paceline.core.errors import (
    NoGpuError,
    PacelineError,
    PeerLostError,
    Problem,
    TorchrunError,
    TrainingError,
    VersionsDifferError,
)
from paceline.core.ids import Rank
from paceline.plan.catalog import Channel
from paceline.plan.codec import Json, loads
from paceline.plan.plan import Device, Plan, Transport
from paceline.transport.rendezvous_store import RendezvousStore, boot_id
from paceline.transport.tcp_store import Address
from paceline.transport.torch_dist import abandon_group
from paceline.worker import reporting
from paceline.worker.context import (
    LocalRunDir,
    RemoteClock,
    RemoteContext,
    RemoteRunDir,
    RunDir,
    WorkerContext,
    ahead_ns,
    receive_snapshot,
)
from paceline.worker.control import ControlBlock
from paceline.worker.participant import work
from paceline.worker.rank_output import RankOutput
from paceline.worker.reporting import TERMINATING_ERRORS, Report
from paceline.worker.wiring import channel_of

# The seat: a clock that is rank 0's, a folder that is rank 0's, a store to meet in, and a moment before
# the meeting at which everybody waits until all are ready (torchrun_words.py).


def run_rank(
    place: RendezvousStore,
    plan: Plan,
    *,
    run_dir: Path,
    resume_from: Path | None,
    control: ControlBlock,
    clock: Clock,
    folder: RunDir,
    ready: Callable[[int], None],
    server: tuple[Address, bytes] | None,
    report: Callable[[Report], None],
    looks_at_host: bool = False,
) -> None:
    if place.world.is_one_host:
        environ.let_gloo_use_loopback()
    address, token = (None, b"") if server is None else server
    seat = WorkerContext(
        plan=plan,
        run_dir=run_dir,
        control=control,
        rendezvous=run_dir,  # nobody meets by a file
        token=token,
        resume_from=resume_from,
        foreign=RemoteContext(
            local_rank=place.world.local_rank,
            clock=clock,
            folder=folder,
            store=place.for_group(),
            ready=ready,
            server=address,
            looks_at_host=looks_at_host,
        ),
    )
    try:
        work(Rank(place.world.rank), seat, report)
    except BaseException:
        abandon_group()
        raise


@contextmanager
def stop_on_signals(control: ControlBlock) -> Iterator[list[str]]:
    """The first signal asks for an orderly stop, the second ends this process."""
    asked_by: list[str] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            environ.leave_dead_terminal()
        elif not set(asked_by) <= {"SIGHUP"}:  # a hang-up often comes with another signal
            raise KeyboardInterrupt
        asked_by.append(signal.Signals(number).name)
        control.ask_to_stop()

    assert threading.current_thread() is threading.main_thread(), "signals belong to the main thread"
    previous = {s: signal.signal(s, on_signal) for s in environ.stop_signals()}
    try:
        yield asked_by
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


#     hello/R   a rank is there: its version, host and idea of the world
#     word      rank 0: the plan, and where everything is; or that nothing will come of it
#     ready/R   a rank has built its task and its model, or could not
#     go        rank 0: all are ready, meet now
#     end/R     how a rank ended: its report, or what went wrong
#     verdict   rank 0: everything is written; the exit code for all
#
# Whatever rank 0 shows may instead be `{"over": code}`: then there is nothing to wait for any more.

Message = dict[str, Json]
_FITTING = {
    Channel.ALONE: (Transport.NONE,),
    Channel.COLLECTIVE: (Transport.GLOO, Transport.NCCL),
    Channel.TORCH: (Transport.GLOO, Transport.NCCL),
    Channel.STORE: (Transport.TCP,),
    Channel.PEERS: (),
}


def hello_message(world: World) -> Message:
    return {
        "paceline": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "world_size": world.size,
        "host": socket.gethostname(),
        "boot": boot_id(),
    }


def check_hello(said: Message, rank: int, mine: Message) -> None:
    """Ranks that are not alike would train something else than they say, or wait for ever."""
    if said["world_size"] != mine["world_size"]:
        raise TorchrunError(
            [
                Problem(
                    f"WORLD_SIZE is {mine['world_size']} for rank 0, {said['world_size']} for rank {rank}",
                    "start all processes of a run with the same WORLD_SIZE; torchrun does",
                )
            ]
        )
    for what in ("paceline", "torch"):
        if said[what] != mine[what]:
            raise VersionsDifferError(
                f"rank 0 has {what} {mine[what]}, but rank {rank} on {said['host']} has {said[what]}",
                "install the same versions everywhere",
            )


def check_plan_here(plan: Plan, world: World) -> None:
    """Can this process do its part of the plan?"""
    if world.size != plan.num_workers:
        what = f"the run has {plan.num_workers} workers, but {world.size} processes were started"
        raise TorchrunError([Problem(what, f"start {plan.num_workers}, or begin a new run")])
    channel = channel_of(plan.mode)
    if plan.transport not in _FITTING[channel]:
        usable = " or ".join(t.value for t in _FITTING[channel])
        what = f"transport {plan.transport.value} does not reach processes that somebody else started"
        hint = f"for mode {plan.mode}, use --transport {usable}" if usable else "use `paceline train`"
        raise TorchrunError([Problem(what, hint)])
    if plan.device is Device.CUDA and not torch.cuda.is_available():
        raise NoGpuError(
            f"device is cuda, but rank {world.rank} on {socket.gethostname()} has no GPU that torch can use",
            "set device to cpu, or install a torch that is built for CUDA there",
        )


def describe_rank_fault(error: BaseException, rank: int, run_dir: str) -> Message:
    """An error as rank 0 hears of it; with a traceback where it is no error of the user's."""
    if isinstance(error, RuntimeError) and not isinstance(error, PacelineError) and _is_of_a_peer(error):
        error = PeerLostError(
            f"torch lost a peer: {str(error).splitlines()[0]}",
            "another rank died, or did not answer in time; torchrun names the first that ended",
        )
    who = f"worker-{rank}"
    fault: Message = {"ev": "error", "who": who, **reporting.fault_of(error, f"{run_dir}/logs/{who}.log")}
    if not isinstance(error, PacelineError):
        fault["trace"] = "".join(traceback.format_exception(error))
    return fault


def _is_of_a_peer(error: RuntimeError) -> bool:
    """torch's DDP raises what gloo and NCCL say, as it is."""
    return any(word in str(error) for word in ("gloo/transport", "NCCL", "Connection closed by peer"))


VERDICT_S = 15.0  # for rank 0 to say how it ended, once something went wrong
LOST_S = 7.0  # the same once we were also told to go: a rank has ended, perhaps rank 0
STOPPED_S = 25.0  # for rank 0 to end in good order, once we were told to go; torchrun waits for 30


class _OverError(Exception):
    """Rank 0 says that there is nothing to wait for."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def follow(place: RendezvousStore, output: RankOutput) -> int:
    """Take part in whatever rank 0 trains; the exit code."""
    rank = place.world.rank
    place.show(f"hello/{rank}", hello_message(place.world))
    try:
        word = _seen(place, "word", whose="rank 0 to say what is trained")
        output.log_to(Path(str(word["run_dir"])) / "logs" / f"worker-{rank}.log")
        return _follow(place, word)
    except _OverError as over:
        place.show(f"bye/{rank}", True)
        return over.code


def _follow(place: RendezvousStore, word: Message) -> int:
    rank, plan = place.world.rank, loads(str(word["plan"]), where="rank 0's plan")
    part = _Part(place, plan, word)
    with stop_on_signals(part.control) as asked_by:
        try:
            part.take()
            end: Message = {"ev": "report", "who": f"worker-{rank}", **part.report}
        except _OverError:
            raise
        except TERMINATING_ERRORS as error:
            # Also a failure of the user's task: rank 0 tells it.
            end = describe_rank_fault(error, rank, str(word["run_dir"]))
            if not part.was_ready:
                place.show(f"ready/{rank}", {"failed": True})
        try:
            place.send(f"end/{rank}/events", part.unsent())
            place.show(f"end/{rank}", end)
            code = _verdict(place, end, asked_by)
            place.show(f"bye/{rank}", True)
        except PeerLostError as error:
            raise _own_error(end) or error from None
        return code


def _verdict(place: RendezvousStore, end: Message, asked_by: list[str]) -> int:
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


def _own_error(end: Message) -> PacelineError | None:
    if end["ev"] != "error":
        return None
    error = TrainingError(f"{end['who']}: {end['what']}", str(end["hint"]))
    if end.get("trace"):  # rank 0 would have kept it
        print(end["trace"], flush=True)
    return error


def _seen(place: RendezvousStore, name: str, *, whose: str, timeout_s: float | None = None) -> Message:
    said: Message = place.see(name, whose=whose, timeout_s=timeout_s)
    if "over" in said:
        raise _OverError(int(str(said["over"])))
    return said


class _Part:
    """This rank's part of a run."""

    def __init__(self, place: RendezvousStore, plan: Plan, word: Message) -> None:
        self._place, self._plan, self._word = place, plan, word
        self.control = ControlBlock(plan.num_workers)
        self.report: Message = {}
        self.was_ready = False
        self._far: RemoteRunDir | None = None

    def take(self) -> None:
        place, plan, word = self._place, self._plan, self._word
        check_plan_here(plan, place.world)
        clock = _clock(place, str(word["boot"]))
        run_dir = Path(str(word["run_dir"]))
        resume_from = None if word["resume_from"] is None else Path(str(word["resume_from"]))
        if channel_of(plan.mode) is not Channel.STORE:
            self._far = RemoteRunDir(place, None if resume_from is None else receive_snapshot(place))
        run_rank(
            place,
            plan,
            run_dir=run_dir,
            resume_from=resume_from,
            control=self.control,
            clock=clock,
            # Behind a parameter server all are on one host, and reach the folder themselves.
            folder=self._far or LocalRunDir(run_dir, resume_from),
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


def _clock(place: RendezvousStore, boot: str) -> Clock:
    if boot == boot_id():
        return SystemClock()
    rank, own = place.world.rank, SystemClock()
    place.see(f"turn/{rank}", whose="rank 0 to tell the time")
    asked_ns = own.now_ns()
    place.show(f"asks/{rank}", True)
    theirs_ns = int(place.see(f"time/{rank}", whose="rank 0 to tell the time"))
    return RemoteClock(ahead_ns(asked_ns=asked_ns, theirs_ns=theirs_ns, answered_ns=own.now_ns()))


def _server(word: Message) -> tuple[Address, bytes] | None:
    said = word["server"]
    if not isinstance(said, dict):
        return None
    return Address(str(said["host"]), int(str(said["port"]))), bytes.fromhex(str(said["token"]))

"""Ranks started by torchrun: the handshake with rank 0, and the part of a rank above 0.

A rank above 0 receives the plan from rank 0, trains, sends its report, and waits for the exit code. It reads
no configuration, and writes no file but its log of warnings. Rank 0 reports an error of this rank, once;
only when rank 0 cannot be reached any more does this rank report it itself. torchrun_leader.py is rank 0's
side.
"""

import math
import platform
import signal
import socket
import sys
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
from paceline.plan.catalog import SCRIPT_TASK, Channel
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
from paceline.worker.entry.script import script_body
from paceline.worker.participant import work
from paceline.worker.rank_output import RankOutput
from paceline.worker.reporting import TERMINATING_ERRORS, Report
from paceline.worker.wiring import channel_of


def run_rank(
    rendezvous: RendezvousStore,
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
    if rendezvous.world.is_one_host:
        environ.let_gloo_use_loopback()
    address, token = (None, b"") if server is None else server
    context = WorkerContext(
        plan=plan,
        run_dir=run_dir,
        control=control,
        rendezvous=run_dir,  # not used: the ranks use a store
        token=token,
        resume_from=resume_from,
        foreign=RemoteContext(
            local_rank=rendezvous.world.local_rank,
            clock=clock,
            folder=folder,
            store=rendezvous.for_group(),
            ready=ready,
            server=address,
            looks_at_host=looks_at_host,
        ),
    )
    try:
        rank = rendezvous.world.rank
        if plan.task == SCRIPT_TASK:
            _print_to_log(run_dir, rank)
            script_body(plan, f"worker-{rank}")(context, report)
        else:
            work(Rank(rank), context, report)
    except BaseException:
        abandon_group()
        raise


def _print_to_log(run_dir: Path, rank: int) -> None:
    """A script prints to the log of its rank, if this host reaches the run folder."""
    if run_dir.is_dir():
        path = run_dir / "logs" / f"worker-{rank}.log"
        path.parent.mkdir(exist_ok=True)
        sys.stdout = path.open("a", encoding="utf-8", buffering=1)


@contextmanager
def stop_on_signals(control: ControlBlock) -> Iterator[list[str]]:
    """The first signal requests an orderly stop; the second ends this process."""
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


# Messages between the ranks, as keys of the rendezvous store:
#     hello/R   rank R has started: its versions, host and world size
#     word      rank 0: the plan, and the endpoints
#     ready/R   rank R has built its task and its model, or could not
#     go        rank 0: all ranks are ready, form the process group now
#     end/R     how rank R ended: its report or its error
#     verdict   rank 0: everything is written; the exit code for all
#
# A message of rank 0 may instead be `{"over": code}`: then there is nothing to wait for any more.

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


def check_hello(hello: Message, rank: int, own: Message) -> None:
    """Refuse ranks with another world size or version: they would train something else, or wait for ever."""
    if hello["world_size"] != own["world_size"]:
        raise TorchrunError(
            [
                Problem(
                    f"WORLD_SIZE is {own['world_size']} for rank 0, {hello['world_size']} for rank {rank}",
                    "start all processes of a run with the same WORLD_SIZE; torchrun does",
                )
            ]
        )
    for name in ("paceline", "torch"):
        if hello[name] != own[name]:
            raise VersionsDifferError(
                f"rank 0 has {name} {own[name]}, but rank {rank} on {hello['host']} has {hello[name]}",
                "install the same versions everywhere",
            )


def check_plan_here(plan: Plan, world: World) -> None:
    """Check that this process can do its part of the plan."""
    if world.size != plan.num_workers:
        message = f"the run has {plan.num_workers} workers, but {world.size} processes were started"
        raise TorchrunError([Problem(message, f"start {plan.num_workers}, or start a new run")])
    channel = channel_of(plan.mode)
    if plan.transport not in _FITTING[channel]:
        usable = " or ".join(t.value for t in _FITTING[channel])
        message = f"transport {plan.transport.value} does not support processes started by torchrun"
        hint = f"for mode {plan.mode}, use --transport {usable}" if usable else "use `paceline train`"
        raise TorchrunError([Problem(message, hint)])
    if plan.device is Device.CUDA and not torch.cuda.is_available():
        raise NoGpuError(
            f"device is cuda, but rank {world.rank} on {socket.gethostname()} has no GPU that torch can use",
            "set device to cpu, or install a torch that is built for CUDA there",
        )


def describe_rank_fault(error: BaseException, rank: int, run_dir: str) -> Message:
    """An error as a message to rank 0; with a traceback unless it is a PacelineError."""
    if isinstance(error, RuntimeError) and not isinstance(error, PacelineError) and _is_of_a_peer(error):
        error = PeerLostError(
            f"torch lost a peer: {str(error).splitlines()[0]}",
            "another rank died, or did not respond in time; torchrun names the first that ended",
        )
    participant = f"worker-{rank}"
    fault: Message = {
        "ev": "error",
        "who": participant,
        **reporting.fault_of(error, f"{run_dir}/logs/{participant}.log"),
    }
    if not isinstance(error, PacelineError):
        fault["trace"] = "".join(traceback.format_exception(error))
    return fault


def _is_of_a_peer(error: RuntimeError) -> bool:
    """torch's DDP raises the errors of gloo and NCCL unchanged."""
    return any(text in str(error) for text in ("gloo/transport", "NCCL", "Connection closed by peer"))


PLAN_S = 3600.0  # timeout for the plan
VERDICT_S = 15.0  # timeout for the verdict of rank 0 after a failure
LOST_S = 7.0  # the same after a stop signal: a rank has ended, perhaps rank 0
STOPPED_S = 25.0  # timeout for rank 0 to end normally after a stop signal; torchrun waits 30 s


class _OverError(Exception):
    """Rank 0 has ended the run: there is nothing to wait for."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def follow(rendezvous: RendezvousStore, output: RankOutput) -> int:
    """Train as a follower of rank 0; returns the exit code."""
    rank = rendezvous.world.rank
    rendezvous.show(f"hello/{rank}", hello_message(rendezvous.world))
    try:
        # Rank 0 may start a script first, for the plan; if it dies, torchrun ends us, or the store is gone.
        order = _seen(rendezvous, "word", source="the plan from rank 0", timeout_s=PLAN_S)
        output.log_to(Path(str(order["run_dir"])) / "logs" / f"worker-{rank}.log")
        return _follow(rendezvous, order)
    except _OverError as over:
        rendezvous.show(f"bye/{rank}", True)
        return over.code


def _follow(rendezvous: RendezvousStore, order: Message) -> int:
    rank = rendezvous.world.rank
    plan = loads(str(order["plan"]), where="rank 0's plan")
    part = _Part(rendezvous, plan, order)
    with stop_on_signals(part.control) as asked_by:
        try:
            part.take()
            end: Message = {"ev": "report", "who": f"worker-{rank}", **part.report}
        except _OverError:
            raise
        except TERMINATING_ERRORS as error:
            # Also a failure of the user's task: rank 0 reports it.
            end = describe_rank_fault(error, rank, str(order["run_dir"]))
            if not part.was_ready:
                rendezvous.show(f"ready/{rank}", {"failed": True})
        try:
            rendezvous.send(f"end/{rank}/events", part.unsent())
            rendezvous.show(f"end/{rank}", end)
            code = _verdict(rendezvous, end, asked_by)
            rendezvous.show(f"bye/{rank}", True)
        except PeerLostError as error:
            raise _own_error(end) or error from None
        return code


def _verdict(rendezvous: RendezvousStore, end: Message, asked_by: list[str]) -> int:
    """Wait for the exit code while rank 0 evaluates; after a failure or a stop signal for a limited time."""
    has_failed = end["ev"] == "error"
    is_dismissed = False
    give_up_s = monotonic_s() + VERDICT_S if has_failed else math.inf
    while True:
        if asked_by and not is_dismissed:
            is_dismissed = True
            give_up_s = min(give_up_s, monotonic_s() + (LOST_S if has_failed else STOPPED_S))
        try:
            return int(str(_seen(rendezvous, "verdict", source="rank 0's verdict", timeout_s=1.0)["code"]))
        except PeerLostError:
            if not rendezvous.is_open() or monotonic_s() > give_up_s:
                raise


def _own_error(end: Message) -> PacelineError | None:
    if end["ev"] != "error":
        return None
    error = TrainingError(f"{end['who']}: {end['what']}", str(end["hint"]))
    if end.get("trace"):  # rank 0 would have kept it
        print(end["trace"], flush=True)
    return error


def _seen(rendezvous: RendezvousStore, name: str, *, source: str, timeout_s: float | None = None) -> Message:
    reply: Message = rendezvous.see(name, source=source, timeout_s=timeout_s)
    if "over" in reply:
        raise _OverError(int(str(reply["over"])))
    return reply


class _Part:
    """This rank's part of a run."""

    def __init__(self, rendezvous: RendezvousStore, plan: Plan, order: Message) -> None:
        self._rendezvous = rendezvous
        self._plan = plan
        self._order = order
        self.control = ControlBlock(plan.num_workers)
        self.report: Message = {}
        self.was_ready = False
        self._far: RemoteRunDir | None = None

    def take(self) -> None:
        rendezvous = self._rendezvous
        plan = self._plan
        order = self._order
        check_plan_here(plan, rendezvous.world)
        clock = _clock(rendezvous, str(order["boot"]))
        run_dir = Path(str(order["run_dir"]))
        resume_from = None if order["resume_from"] is None else Path(str(order["resume_from"]))
        if channel_of(plan.mode) is not Channel.STORE:
            self._far = RemoteRunDir(
                rendezvous, None if resume_from is None else receive_snapshot(rendezvous)
            )
        run_rank(
            rendezvous,
            plan,
            run_dir=run_dir,
            resume_from=resume_from,
            control=self.control,
            clock=clock,
            # Behind a parameter server all are on one host, and reach the folder themselves.
            folder=self._far or LocalRunDir(run_dir, resume_from),
            ready=self._ready,
            server=_server(order),
            report=self._keep,
            looks_at_host=str(order["boot"]) != boot_id() and rendezvous.world.local_rank == 0,
        )

    def unsent(self) -> bytes:
        return b"" if self._far is None else self._far.unsent()

    def _ready(self, num_samples: int) -> None:
        self.was_ready = True
        self._rendezvous.show(f"ready/{self._rendezvous.world.rank}", {"num_samples": num_samples})
        _seen(self._rendezvous, "go", source="the other ranks to be ready")

    def _keep(self, facts: Report) -> None:
        if "ev" not in facts:  # else about a checkpoint, which rank 0 reports itself
            self.report = dict(facts)  # type: ignore[arg-type]  # facts are JSON


def _clock(rendezvous: RendezvousStore, boot: str) -> Clock:
    if boot == boot_id():
        return SystemClock()
    rank = rendezvous.world.rank
    own = SystemClock()
    rendezvous.see(f"turn/{rank}", source="the clock of rank 0")
    asked_ns = own.now_ns()
    rendezvous.show(f"asks/{rank}", True)
    theirs_ns = int(rendezvous.see(f"time/{rank}", source="the clock of rank 0"))
    return RemoteClock(ahead_ns(asked_ns=asked_ns, theirs_ns=theirs_ns, answered_ns=own.now_ns()))


def _server(order: Message) -> tuple[Address, bytes] | None:
    server = order["server"]
    if not isinstance(server, dict):
        return None
    return Address(str(server["host"]), int(str(server["port"]))), bytes.fromhex(str(server["token"]))

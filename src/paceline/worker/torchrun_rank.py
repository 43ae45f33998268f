"""What does each rank do that somebody else started? As every worker; only its seat is another one.

The seat: a clock that is rank 0's, a folder that is rank 0's, a store to meet in, and a moment before
the meeting at which everybody waits until all are ready (torchrun_words.py).
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from paceline import environ
from paceline.clock import Clock
from paceline.ids import Rank
from paceline.plan.plan import Plan
from paceline.transport.meeting_place import MeetingPlace
from paceline.transport.tcp_store import Address
from paceline.transport.torch_dist import abandon_group
from paceline.worker.control import ControlBlock
from paceline.worker.foreign_seat import ForeignSeat
from paceline.worker.participant import Report, work
from paceline.worker.run_folder import RunFolder
from paceline.worker.seat import Seat


def take_part(
    place: MeetingPlace,
    plan: Plan,
    *,
    run_dir: Path,
    resume_from: Path | None,
    control: ControlBlock,
    clock: Clock,
    folder: RunFolder,
    ready: Callable[[int], None],
    server: tuple[Address, bytes] | None,
    report: Callable[[Report], None],
    looks_at_host: bool = False,
) -> None:
    if place.world.is_one_host:
        environ.let_gloo_use_loopback()
    address, token = (None, b"") if server is None else server
    seat = Seat(
        plan=plan,
        run_dir=run_dir,
        control=control,
        rendezvous=run_dir,  # nobody meets by a file
        token=token,
        resume_from=resume_from,
        foreign=ForeignSeat(
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
def signals_stop(control: ControlBlock) -> Iterator[list[str]]:
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

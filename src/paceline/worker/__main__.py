"""`torchrun … -m paceline.worker --config config.yaml`: train as one of the processes that torchrun started.

Also `python -m paceline.worker`: then as the only one. A command that lives in the worker's room because
that is its name; it joins the command line, which has no torch, to the sides that have.
"""

import atexit
import os
import sys
from typing import NoReturn

from paceline.cli.under_torchrun import main
from paceline.config.world import World
from paceline.transport.meeting_place import MeetingPlace
from paceline.worker.kernel import die_with_parent
from paceline.worker.torchrun_follower import follow
from paceline.worker.torchrun_leader import Leader


class _Roles:
    def lead(self, world: World, *, timeout_s: float) -> Leader:
        _end_with_torchrun(world)
        return Leader(MeetingPlace.enter(world, timeout_s=timeout_s))

    def follow(self, world: World, *, timeout_s: float) -> int:
        _end_with_torchrun(world)
        return follow(MeetingPlace.enter(world, timeout_s=timeout_s))


def _end_with_torchrun(world: World) -> None:
    """A torchrun that is killed cannot end its ranks any more; the kernel does."""
    if world.has_agent:
        die_with_parent()


def _leave(code: int) -> NoReturn:
    """As the interpreter would, but for its last part: there torch's threads may end in a wrong order.

    Then the process aborts ("terminate called without an active exception"), and torchrun takes a run that
    is finished and saved for a failed one.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main(_Roles()))

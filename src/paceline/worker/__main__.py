"""`torchrun … -m paceline.worker --config config.yaml`: train as one of the processes that torchrun started.

Also `python -m paceline.worker`: then as the only one. A command that lives in the worker's room because
that is its name; it joins the command line, which has no torch, to the sides that have.
"""

import atexit
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from paceline.cli.torchrun_worker import main
from paceline.config.environment import World
from paceline.core import environ
from paceline.core.processes import die_with_parent
from paceline.worker.rank_output import RankOutput

if TYPE_CHECKING:
    from paceline.worker.entry.torchrun_leader import Leader


class _Roles:
    """Imports torch only here: its warnings then reach an output that separates them."""

    def __init__(self, output: RankOutput) -> None:
        self._output = output

    def lead(self, world: World, *, timeout_s: float) -> "Leader":
        from paceline.transport.rendezvous_store import RendezvousStore
        from paceline.worker.entry.torchrun_leader import Leader

        _end_with_torchrun(world)
        return Leader(RendezvousStore.enter(world, timeout_s=timeout_s), self._output)

    def follow(self, world: World, *, timeout_s: float) -> int:
        from paceline.transport.rendezvous_store import RendezvousStore
        from paceline.worker.entry.torchrun import follow

        _end_with_torchrun(world)
        return follow(RendezvousStore.enter(world, timeout_s=timeout_s), self._output)


def _end_with_torchrun(world: World) -> None:
    """A torchrun that is killed cannot end its ranks any more; the kernel does."""
    if world.has_agent:
        die_with_parent()


def _leave(code: int, output: RankOutput) -> NoReturn:
    """As the interpreter would, but for its last part: there torch's threads may end in a wrong order.

    Then the process aborts ("terminate called without an active exception"), and torchrun takes a run that
    is finished and saved for a failed one.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    output.close()
    os._exit(code)


if __name__ == "__main__":
    said = environ.torchrun_variables().get("RANK", "0")
    own_output = RankOutput(int(said) if said.isdecimal() else 0)  # a wrong RANK is refused by main
    _leave(main(_Roles(own_output)), own_output)

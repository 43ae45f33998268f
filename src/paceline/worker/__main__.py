"""`torchrun … -m paceline.worker --config config.yaml`: train as one of the processes that torchrun started.

Also `python -m paceline.worker`: then as the only process. It connects the command line, which never imports
torch, with the modules that do.
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
    """Roles of a rank. Imports torch only here, once its warnings reach an output that separates them."""

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
    """Let the kernel end this rank if torchrun is killed, which then cannot end its ranks."""
    if world.has_agent:
        die_with_parent()


def _leave(code: int, output: RankOutput) -> NoReturn:
    """Exit without the interpreter's finalization, in which torch's threads may end in a wrong order.

    In that case the process aborts ("terminate called without an active exception"), and torchrun reports a
    finished and saved run as failed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    output.close()
    os._exit(code)


if __name__ == "__main__":
    said = environ.torchrun_variables().get("RANK", "0")
    own_output = RankOutput(int(said) if said.isdecimal() else 0)  # a wrong RANK is refused by main
    _leave(main(_Roles(own_output)), own_output)

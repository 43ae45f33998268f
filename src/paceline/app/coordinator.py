"""How does a coordinator node run as a process? It starts, says where it listens, and stops when asked to."""

import asyncio
import gc
import resource
from collections.abc import Callable

from paceline.app.until_stopped import told_to_stop, until_stopped
from paceline.coordinator.shell.notes import Note
from paceline.coordinator.shell.server import Coordinator, Settings

Say = Callable[[Note], None]


def serve(settings: Settings, say: Say, *, stops_with_stdin: bool = False) -> None:
    """Until it is told to stop; a failing disk ends it with a StorageError."""
    _allow_many_files()
    asyncio.run(_serve(settings, say, stops_with_stdin))


async def _serve(settings: Settings, say: Say, stops_with_stdin: bool) -> None:
    coordinator = Coordinator(settings, say)
    stop = told_to_stop(also_by_stdin=stops_with_stdin)
    await coordinator.start()
    # What was loaded until now stays: a full collection, which stops everything, need not look at it again.
    gc.freeze()
    say(Note("listening", {"address": coordinator.address, "cluster": settings.cluster}))
    try:
        await until_stopped(stop, coordinator.ended())
    finally:
        await coordinator.stop()
    say(Note("stopped"))


def _allow_many_files() -> None:
    """Every connection is a file; the usual soft limit of 1,024 is one for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

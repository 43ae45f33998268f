"""How does a coordinator node run as a process? It starts, says where it listens, and stops when asked to."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable

from paceline.coordinator.shell.notes import Note
from paceline.coordinator.shell.server import Coordinator, Settings

Say = Callable[[Note], None]


def serve(settings: Settings, say: Say, *, stops_with_stdin: bool = False) -> None:
    """Until SIGTERM or Ctrl-C; a failing disk ends it with a StorageError.

    With `stops_with_stdin` also once nobody holds the other end of stdin any more: whoever
    started this node has ended, however suddenly.
    """
    asyncio.run(_serve(settings, say, stops_with_stdin))


async def _serve(settings: Settings, say: Say, stops_with_stdin: bool) -> None:
    coordinator = Coordinator(settings, say)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if stops_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, stop)
    await coordinator.start()
    # What was loaded until now stays: a full collection, which stops everything, need not look at it again.
    gc.freeze()
    say(Note("listening", {"address": coordinator.address, "cluster": settings.cluster}))
    stopping, ended = asyncio.create_task(stop.wait()), asyncio.create_task(coordinator.ended())
    try:
        await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()  # raises what went wrong
    finally:
        stopping.cancel()
        ended.cancel()
        await coordinator.stop()
    say(Note("stopped"))


def _read_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1 << 12):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()

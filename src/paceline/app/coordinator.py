"""How does a coordinator node run as a process? It starts, says where it listens, and stops when asked to."""

import asyncio
import signal
from collections.abc import Callable

from paceline.coordinator.shell.server import Coordinator, Settings

Say = Callable[[str], None]


def serve(settings: Settings, say: Say) -> None:
    """Until SIGTERM or Ctrl-C; a failing disk ends it with a StorageError."""
    asyncio.run(_serve(settings, say))


async def _serve(settings: Settings, say: Say) -> None:
    coordinator = Coordinator(settings, say)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await coordinator.start()
    say(f"node {settings.node} of cluster {settings.cluster} listens on {coordinator.address}")
    stopping, ended = asyncio.create_task(stop.wait()), asyncio.create_task(coordinator.ended())
    try:
        await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        await coordinator.stop()
    if ended.done():
        ended.result()  # raises what went wrong
    say(f"node {settings.node} has stopped")

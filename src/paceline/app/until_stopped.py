"""Until when does a service run? Until it is told to stop, whoever started it has ended, or it fails."""

import asyncio
import os
import sys
from collections.abc import Coroutine

from paceline import environ


def told_to_stop(*, also_by_stdin: bool) -> asyncio.Event:
    """Set by SIGTERM, SIGHUP and Ctrl-C.

    With `also_by_stdin` also once nobody holds the other end of stdin any more: whoever started
    this process has ended, however suddenly.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in environ.stop_signals():
        loop.add_signal_handler(number, stop.set)
    if also_by_stdin:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, stop)
    return stop


async def until_stopped(stop: asyncio.Event, ending: Coroutine[None, None, None]) -> None:
    """Raises what `ending` raises, if the service ends by itself."""
    stopping, ended = asyncio.create_task(stop.wait()), asyncio.create_task(ending)
    try:
        await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
    finally:
        stopping.cancel()
        ended.cancel()
        await asyncio.gather(stopping, ended, return_exceptions=True)


def _read_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1 << 12):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()

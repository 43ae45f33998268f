"""Where do coroutines run for those who cannot wait in an event loop? In one loop, in one thread.

One for the whole process, started by the first who needs it and stopped after
the last: gRPC's poller is happiest with a single loop.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

Result = TypeVar("Result")

_lock = threading.Lock()
_users = 0
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


class Background:
    """A share in the loop. Whoever has one closes it."""

    def __init__(self) -> None:
        global _users, _loop, _thread
        with _lock:
            if _users == 0:
                _loop = asyncio.new_event_loop()
                _thread = threading.Thread(target=_run, args=(_loop,), name="paceline-coordinator", daemon=True)
                _thread.start()
            _users += 1
        self._is_open = True

    def call(self, coroutine: "Coroutine[Any, Any, Result]") -> Result:  # Any: what it awaits is its own affair
        """What the coroutine returns or raises. Ctrl-C while waiting cancels it."""
        assert self._is_open and _loop is not None, "it was closed"
        future = asyncio.run_coroutine_threadsafe(coroutine, _loop)
        try:
            return future.result()
        except CancelledError as error:
            raise RuntimeError("the background loop was stopped while somebody waited for it") from error
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        global _users, _loop, _thread
        if not self._is_open:
            return
        self._is_open = False
        with _lock:
            _users -= 1
            if _users == 0:
                assert _loop is not None and _thread is not None, "somebody started it"
                _loop.call_soon_threadsafe(_loop.stop)
                _thread.join()
                _loop = _thread = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()

"""Where do coroutines run for those who cannot wait in an event loop? In one loop, in one thread.

One for the whole process, started by the first who needs it and stopped after
the last: gRPC's poller is happiest with a single loop.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

Result = TypeVar("Result")


class Background:
    """A share in the loop. Whoever has one closes it."""

    def __init__(self) -> None:
        self._shared = _Shared.taken()
        self._is_open = True

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:  # Any: what it awaits is its own affair
        """What the coroutine returns or raises. Ctrl-C while waiting cancels it."""
        assert self._is_open, "it was closed"
        future = asyncio.run_coroutine_threadsafe(coroutine, self._shared.loop)
        try:
            return future.result()
        except CancelledError as error:
            raise RuntimeError("the background loop was stopped while somebody waited for it") from error
        except KeyboardInterrupt:
            future.cancel()
            raise

    def begin(self, call: Callable[[], object]) -> None:
        """Run it in the loop, without waiting; for signal handlers too. Nothing happens once it is closed."""
        if self._is_open:
            self._shared.loop.call_soon_threadsafe(call)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._shared.give_back()


class _Shared:
    _lock = threading.Lock()
    _current: "_Shared | None" = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._users = 0
        self._thread = threading.Thread(target=self._run, name="paceline-coordinator", daemon=True)
        self._thread.start()

    @classmethod
    def taken(cls) -> "_Shared":
        with cls._lock:
            if cls._current is None:
                cls._current = _Shared()
            cls._current._users += 1
            return cls._current

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                _Shared._current = None
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._thread.join()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

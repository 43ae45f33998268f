"""What is an actor of ours, as Ray sees it? Text and bytes in and out; what needs torch is imported there.

The class itself is imported by the launcher's process too, which must not have torch: the other side is
known here by its name alone, as worker/entry/zygote.py is to launchers/local.py.
"""

import importlib
import json
import os
import platform
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.core.clock import SystemClock, boot_id

_SIDE = "paceline.worker.entry.ray"
ELASTIC_SIDE = "paceline.worker.entry.ray_elastic"
MAX_CONCURRENCY = 6  # a question that waits must not hold up an order


def network_id() -> str:
    """The same for whoever reaches us by 127.0.0.1; pods of one host have the same kernel, but not this."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/net").readlink())
    return ""


class Participant:
    def __init__(self, who: str, side: str = _SIDE) -> None:
        self._side: Future[Any] = Future()  # Any: a module that is not ours to know
        # At once, and beside: torch takes seconds to import.
        threading.Thread(target=self._import, args=(who, side), daemon=True).start()

    def _import(self, who: str, side: str) -> None:
        try:
            self._side.set_result(importlib.import_module(side).Side(who))
        except BaseException as error:
            self._side.set_exception(error)  # whoever asks for it hears of it

    def hello(self) -> str:
        from paceline.launchers.ray.client import own_address

        mine = {"paceline": __version__, "python": platform.python_version(), "pid": os.getpid()}
        where = {"boot": boot_id(), "net": network_id(), "address": own_address()}
        return json.dumps({**mine, **where, "host": socket.gethostname()})

    def now_ns(self) -> int:
        return SystemClock().now_ns()

    def host(self, address: str, size: int, timeout_s: float) -> str:
        return str(self._side.result().host(address, size, timeout_s))

    def begin(self, order: str, saved: bytes | None) -> None:
        self._side.result().begin(order, saved)

    def poll(self, answers: str) -> tuple[str, list[bytes]]:
        found: tuple[str, list[bytes]] = self._side.result().poll(answers)
        return found

    def go(self) -> None:
        self._side.result().go()

    def stop(self) -> None:
        self._side.result().stop()

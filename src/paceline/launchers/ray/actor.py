"""Ray actor class: text and bytes in and out; the side that needs torch is loaded by name.

The launcher's process imports this class too, and must not have torch. So the other side
(worker/entry/ray.py, ray_elastic.py) is known here by its name alone, as worker/entry/zygote.py is to
launchers/local.py.
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
    """Equal for processes that share 127.0.0.1; pods of one host share the kernel, but not this."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/net").readlink())
    return ""


class Participant:
    def __init__(self, participant: str, side: str = _SIDE) -> None:
        self._side: Future[Any] = Future()  # Any: a module that is loaded by name
        # At once, in a separate thread: importing torch takes seconds.
        threading.Thread(target=self._import, args=(participant, side), daemon=True).start()

    def _import(self, participant: str, side: str) -> None:
        try:
            self._side.set_result(importlib.import_module(side).Side(participant))
        except BaseException as error:
            self._side.set_exception(error)  # raised by the call that needs it

    def hello(self) -> str:
        from paceline.launchers.ray.client import own_address

        process = {"paceline": __version__, "python": platform.python_version(), "pid": os.getpid()}
        where = {"boot": boot_id(), "net": network_id(), "address": own_address()}
        return json.dumps({**process, **where, "host": socket.gethostname()})

    def now_ns(self) -> int:
        return SystemClock().now_ns()

    def host(self, address: str, size: int, timeout_s: float) -> str:
        return str(self._side.result().host(address, size, timeout_s))

    def begin(self, order: str, saved: bytes | None) -> None:
        self._side.result().begin(order, saved)

    def poll(self, answers: str) -> tuple[str, list[bytes]]:
        polled: tuple[str, list[bytes]] = self._side.result().poll(answers)
        return polled

    def go(self) -> None:
        self._side.result().go()

    def stop(self) -> None:
        self._side.result().stop()

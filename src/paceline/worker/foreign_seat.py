"""What else does a worker need that was started by somebody else, perhaps on another host?"""

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from torch._C._distributed_c10d import Store

from paceline.clock import Clock
from paceline.transport.tcp_store import Address
from paceline.worker.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSeat:
    local_rank: int  # which GPU of its host is its own
    clock: Clock  # rank 0's, whatever this host's says
    folder: RunFolder
    store: Store  # in which torch's process group meets
    # Says that we are ready to meet the others, with so many samples, and waits until they are.
    ready: Callable[[int], None]
    server: Address | None = None  # of parameters, where the mode has one
    tls: ssl.SSLContext | None = None  # between that server and workers on other hosts
    looks_at_host: bool = False  # the first on a machine that is not the launcher's: it tells how that one is
    # Where all parts of a checkpoint lie for a while, if the state is in parts and its folder out of reach.
    parts: Callable[[], AbstractContextManager[Path]] | None = None

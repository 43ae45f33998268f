"""Is an actor's process on this machine still there? Asked of the kernel, which knows at once and never errs.

Ray learns of a lost node by its silence, seconds later; and a process of a node that Ray has given up may
live on for a moment. By a pidfd it is this very process that is looked at, and ended, whatever its number
is used for afterwards.
"""

import os
import select
import signal
from contextlib import suppress


class ActorProcess:
    def __init__(self, pid: int) -> None:
        """ProcessLookupError: it has ended by now."""
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def is_gone(self) -> bool:
        return bool(self._poll.poll(0))

    def end(self) -> None:
        """Now, if it has not ended; nothing may be asked of it afterwards."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        os.close(self._fd)

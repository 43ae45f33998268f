"""What did a child process say? Read from its pipe, line by line, without ever waiting."""

import os


class ChildReports:
    """What one child says, as whole lines, without ever waiting for it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.has_ended = False
        self._rest = b""

    def lines(self) -> list[bytes]:
        try:
            while data := os.read(self.fd, 1 << 16):
                self._rest += data
            self.has_ended = True
        except BlockingIOError:
            pass  # nothing more for now
        *whole, self._rest = self._rest.split(b"\n")
        return whole

    def close(self) -> None:
        os.close(self.fd)

"""What does a command inside a pod say, and how does it end? Spoken over a websocket that is open already.

The other side never sees an end of `stdin`: the command must know how much it is to read.
"""

import json
from typing import Any

import websocket

from paceline.core.clock import monotonic_s
from paceline.k8s.client.api import RETRY_HINT, ExecResult, UnreachableError

_QUIET_S = 120.0  # for the next word of a command
_POLL_S = 1.0  # a silent command is looked after so often
CONNECTION_ERRORS = (
    OSError,
    ValueError,
    websocket.WebSocketException,
)  # the connection ended before the command


def exec_over_websocket(
    socket: Any, pod: str, stdin: bytes
) -> ExecResult:  # Any: the official client has no types
    """To the command's end. Raises one of CUT_OFF, or UnreachableError."""
    stdout, stderr = bytearray(), bytearray()
    socket.sock.settimeout(_QUIET_S)
    for start in range(0, len(stdin), 1 << 16):
        socket.write_stdin(stdin[start : start + (1 << 16)])
    heard_s = monotonic_s()
    while socket.is_open():
        socket.update(timeout=_POLL_S)
        said, complained = (bytes(socket.read_channel(one) or b"") for one in (1, 2))
        stdout += said
        stderr += complained
        if said or complained:
            heard_s = monotonic_s()
        elif monotonic_s() - heard_s > _QUIET_S:
            raise TimeoutError(f"nothing was heard for {_QUIET_S:.0f} s")
    return ExecResult(_exit_code(bytes(socket.read_channel(3) or b""), pod), bytes(stdout), bytes(stderr))


def _exit_code(said: bytes, pod: str) -> int:
    """From the last word on the error channel."""
    try:
        status = json.loads(said)
    except ValueError as error:
        raise UnreachableError(
            f"the connection to pod {pod} was cut before the command ended", RETRY_HINT
        ) from error
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or []
    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    return codes[0] if codes else 1

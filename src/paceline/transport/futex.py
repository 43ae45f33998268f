"""How does a process sleep until a number in shared memory changes? The kernel's futex, on Linux.

Unlike a semaphore it needs nothing but the number itself, so processes that were
not forked from each other, or meet long after, can wait on the same memory.
"""

import ctypes
import errno
import os
import platform
from ctypes import POINTER, Structure, c_int, c_long, c_uint32, c_void_p
from functools import cache

from paceline.errors import NotReadyError

_NUMBERS = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 0, 1
_EVERYBODY = 2**31 - 1


class _Timespec(Structure):
    _fields_ = (("seconds", c_long), ("nanoseconds", c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = [c_long, c_void_p, c_int, c_uint32, POINTER(_Timespec), c_void_p, c_uint32]
_libc.syscall.restype = c_long


def wait_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32-bit number there is `value`, until somebody wakes us, or the time is over."""
    seconds = int(timeout_s)
    until = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
    if _libc.syscall(_number(), address, _WAIT, value, ctypes.byref(until), None, 0) == -1:
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(code, os.strerror(code))


def wake(address: int) -> None:
    """Everybody who sleeps on this number."""
    _libc.syscall(_number(), address, _WAKE, _EVERYBODY, None, None, 0)


@cache
def _number() -> int:
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise NotReadyError(
            f"waiting in shared memory is not known on {machine}", "use --transport gloo on this machine"
        )
    return _NUMBERS[machine]

"""Which build of torch does an index have: for the CPU, for a CUDA, or nobody knows? Told by its address."""

import re
from collections.abc import Iterable, Sequence

UNKNOWN = "unknown"
_BUILD = r"(cu\d{3}|cpu|rocm[\d.]+)"
_AT_THE_END = re.compile(rf"/{_BUILD}/?$")


def build_told(backends: Iterable[str], addresses: Sequence[str]) -> str | None:
    """cpu, cu118, …; None for PyPI's own; UNKNOWN where it is decided only when the image is built.

    `backends` is what uv was told to take (`--torch-backend`); it wins over addresses.
    """
    for backend in backends:
        return backend if re.fullmatch(_BUILD, backend) else UNKNOWN
    ends = [_AT_THE_END.search(address) for address in addresses]
    named = [end[1] for end in ends if end is not None]
    if named:
        return named[-1]
    return UNKNOWN if any(map(_tells_no_build, addresses)) else None


def _tells_no_build(address: str) -> bool:
    """PyTorch's own index, or one that a variable completes."""
    path = address.partition("://")[2].partition("/")[2] if "://" in address else address
    return "$" in path or "`" in path or "pytorch.org" in address

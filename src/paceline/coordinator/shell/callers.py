"""Which connections belong to a process of this machine? As the kernel lists them; nobody needs root."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


def ports_of(pids: Collection[int]) -> set[int]:
    """The local TCP ports of these processes."""
    inodes = {inode for pid in pids for inode in _sockets_of(pid)}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):  # a machine without IPv6
            for row in Path(table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[9] in inodes:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def _sockets_of(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]

"""Chunks in which paceline sends files, and which of them are still missing.

Small files go together in a bundle, a large one in parts of equal size; neither is larger than a chunk, so
that a cut connection costs at most one. A file is known by its SHA-256, a large one also by that of each
part.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

MIB = 1 << 20
CHUNK_BYTES = 4 * MIB
MAX_BYTES = 2048 * MIB  # more than this does not go through the API server unless somebody insists
_MOST_FILES = 1000  # of a bundle, or of one question
_MOST_ASKED_BYTES = 256 * MIB  # a pod that reads for longer says nothing for too long
_TAR_HEADER = 1536  # of one file, with padding and a long name
MAX_PATH_LENGTH = 1024  # it is part of an address


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    path: str  # from the folder on the volume, with /
    bytes: int
    sha256: str = ""  # empty where nobody has read it whole
    parts: tuple[str, ...] = ()  # SHA-256 of each part, of a file larger than a chunk

    def is_large(self, chunk_bytes: int = CHUNK_BYTES) -> bool:
        return self.bytes > chunk_bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files)


@dataclass(frozen=True, slots=True)
class Part:
    file: File
    index: int
    bytes: int
    is_last: bool


Chunk = Bundle | Part
PartName = tuple[str, int]  # path, index


def parts_of(file: File, chunk_bytes: int = CHUNK_BYTES) -> list[Part]:
    count = -(-file.bytes // chunk_bytes)
    sizes = [min(chunk_bytes, file.bytes - index * chunk_bytes) for index in range(count)]
    return [Part(file, index, size, index == count - 1) for index, size in enumerate(sizes)]


def missing(
    files: Iterable[File],
    there: AbstractSet[str] = frozenset(),
    parts: AbstractSet[PartName] = frozenset(),
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Chunk]:
    """What is to travel. `there`: paths of files that are right; `parts`: of large files, those that are."""
    wanted = [one for one in files if one.path not in there]
    small = [one for one in wanted if not one.is_large(chunk_bytes)]
    large = [part for one in wanted if one.is_large(chunk_bytes) for part in parts_of(one, chunk_bytes)]
    found: list[Chunk] = [Bundle(group) for group in _grouped(small, chunk_bytes, _TAR_HEADER)]
    return found + [part for part in large if (part.file.path, part.index) not in parts]


def query_batches(files: Iterable[File]) -> list[tuple[File, ...]]:
    """Groups of which each can be read by a pod within one answer."""
    return list(_grouped(files, _MOST_ASKED_BYTES, 0))


def matching_parts(file: File, size: int, sums: Sequence[str]) -> set[PartName]:
    """Of a large file that is `size` bytes long over there, with these sums of its parts."""
    found = {
        (file.path, n) for n, (mine, its) in enumerate(zip(file.parts, sums, strict=False)) if mine == its
    }
    # The last part also ends the file: one that is too long is not right.
    return found if size == file.bytes else found - {(file.path, len(file.parts) - 1)}


def is_whole(file: File, parts: AbstractSet[PartName]) -> bool:
    return all((file.path, index) in parts for index in range(len(file.parts)))


def parent_folders(files: Iterable[File]) -> list[str]:
    """Those that hold a file; the top is a dot."""
    return sorted({one.path.rpartition("/")[0] or "." for one in files})


def sum_list(files: Iterable[File]) -> str:
    """As sha256sum writes it, and reads it with -c."""
    return "".join(f"{one.sha256}  {one.path}\n" for one in files)


def read_checked(said: str) -> set[str]:
    """Paths that `sha256sum -c` calls OK."""
    return {line[: -len(": OK")] for line in said.split("\n") if line.endswith(": OK")}


def why_not_sent(path: str) -> str | None:
    """A name that cannot be written in a list of sums, or is too long for an address."""
    if any(sign in path for sign in "\n\r\\"):
        return "its name has a line break or a backslash"
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return f"its path is longer than {MAX_PATH_LENGTH} bytes" if length > MAX_PATH_LENGTH else None


def _grouped(files: Iterable[File], most_bytes: int, each: int) -> Iterator[tuple[File, ...]]:
    group: list[File] = []
    size = 0
    for one in files:
        its = one.bytes + each
        if group and (size + its > most_bytes or len(group) >= _MOST_FILES):
            yield tuple(group)
            group, size = [], 0
        group.append(one)
        size += its
    if group:
        yield tuple(group)

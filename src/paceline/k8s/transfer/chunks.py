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
MAX_BYTES = 2048 * MIB  # more than this goes through the API server only on request
_MOST_FILES = 1000  # per bundle or request
_MOST_ASKED_BYTES = 256 * MIB  # a longer read keeps the connection silent for too long
_TAR_HEADER = 1536  # per file, with padding and a long name
MAX_PATH_LENGTH = 1024  # it is part of an address


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    path: str  # relative to the folder on the volume, with /
    bytes: int
    sha256: str = ""  # empty if the file was not read completely
    parts: tuple[str, ...] = ()  # SHA-256 of each part, of a file larger than a chunk

    def is_large(self, chunk_bytes: int = CHUNK_BYTES) -> bool:
        return self.bytes > chunk_bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


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
    present: AbstractSet[str] = frozenset(),
    parts: AbstractSet[PartName] = frozenset(),
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Chunk]:
    """Chunks to transfer. `present`: paths of files that are right; `parts`: the same of large files."""
    absent = [file for file in files if file.path not in present]
    small = [file for file in absent if not file.is_large(chunk_bytes)]
    large = [part for file in absent if file.is_large(chunk_bytes) for part in parts_of(file, chunk_bytes)]
    chunks: list[Chunk] = [Bundle(group) for group in _grouped(small, chunk_bytes, _TAR_HEADER)]
    return chunks + [part for part in large if (part.file.path, part.index) not in parts]


def query_batches(files: Iterable[File]) -> list[tuple[File, ...]]:
    """Groups of which each can be read by a pod within one answer."""
    return list(_grouped(files, _MOST_ASKED_BYTES, 0))


def matching_parts(file: File, size: int, sums: Sequence[str]) -> set[PartName]:
    """Matching parts of a large file whose remote copy has `size` bytes and these sums."""
    matching = {
        (file.path, n) for n, (own, theirs) in enumerate(zip(file.parts, sums, strict=False)) if own == theirs
    }
    # The last part also ends the file: one that is too long is not right.
    return matching if size == file.bytes else matching - {(file.path, len(file.parts) - 1)}


def is_whole(file: File, parts: AbstractSet[PartName]) -> bool:
    return all((file.path, index) in parts for index in range(len(file.parts)))


def parent_folders(files: Iterable[File]) -> list[str]:
    """Those that hold a file; the top is a dot."""
    return sorted({file.path.rpartition("/")[0] or "." for file in files})


def sum_list(files: Iterable[File]) -> str:
    """Checksums in the format of sha256sum (-c)."""
    return "".join(f"{file.sha256}  {file.path}\n" for file in files)


def read_checked(output: str) -> set[str]:
    """Paths that `sha256sum -c` calls OK."""
    return {line[: -len(": OK")] for line in output.split("\n") if line.endswith(": OK")}


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
    for file in files:
        its = file.bytes + each
        if group and (size + its > most_bytes or len(group) >= _MOST_FILES):
            yield tuple(group)
            group = []
            size = 0
        group.append(file)
        size += its
    if group:
        yield tuple(group)

"""How do files get onto a volume? Look what is there, send what is missing, rename, look again.

Chunks go to a folder of their own beside the target. A file is renamed when it is complete, so that a job
sees it whole or not at all; whoever comes again after a cut sends only what is not there with the right sum.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.helper_pod import Helper
from paceline.errors import PacelineError, UnreadableFileError
from paceline.kube.transfer.chunks import (
    CHUNK_BYTES,
    Bundle,
    Chunk,
    File,
    Part,
    PartName,
    folders,
    is_whole,
    missing,
    questions,
    read_checked,
    right_parts,
    sum_list,
)
from paceline.kube.transfer.scripts import (
    CHECK,
    PARTS,
    PUBLISH,
    PUT_BUNDLE,
    PUT_FILE,
    PUT_PART,
    REMOVE,
    SPACE,
)

OnBytes = Callable[[int, int | None], None]
_ROUNDS = 3  # a second one mends what went wrong behind our back


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    files: int
    bytes: int
    sent_files: int
    sent_bytes: int
    chunks: int
    manifest: str  # its path on the volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """In the helper pod."""

    folder: str
    staging: str
    manifests: str
    manifest: str  # name


def places(folder: str, files: Sequence[File]) -> Places:
    """Named by what is sent, not by its contents: a file that was changed does not begin all anew."""
    name = hashlib.sha256("\n".join(one.path for one in files).encode()).hexdigest()[:12]
    own = f"{folder}/.paceline"
    return Places(
        folder=folder, staging=f"{own}/{name}.staging", manifests=own, manifest=f"upload-{name}.sha256"
    )


def upload(
    helper: Helper, folder: str, files: Sequence[File], sources: Mapping[str, Path], on_bytes: OnBytes
) -> Uploaded:
    """`folder` is in the pod; `sources` says where each file is here. Raises PacelineError."""
    where, total = places(folder, files), sum(one.bytes for one in files)
    sent: list[Chunk] = []
    for number in range(_ROUNDS + 1):
        there = _right(helper, where.folder, files)
        wanted = [one for one in files if one.path not in there]
        if not wanted:
            break
        if number == _ROUNDS:
            what = f"{len(wanted)} of {len(files)} are not right on the volume, such as {wanted[0].path}"
            hint = "does somebody else write there? Run it again, or choose another --to"
            raise PacelineError(what, hint)
        chunks = _unsent(helper, where, wanted)
        _see_room(helper, where, sum(one.bytes for one in chunks))
        done = total - sum(one.bytes for one in chunks)
        for chunk in chunks:
            on_bytes(done, total or None)
            _send(helper, where, chunk, sources)
            done += chunk.bytes
        sent += chunks
        on_bytes(done, total or None)
        _publish(helper, where, wanted)
    _put_manifest(helper, where, files)
    helper.must("removing what was staged", REMOVE, where.staging)
    return _told(files, sent, where)


def _unsent(helper: Helper, where: Places, wanted: Sequence[File]) -> list[Chunk]:
    """An earlier attempt may have staged some of it."""
    tree = f"{where.staging}/tree"
    parts = _right_parts(helper, tree, wanted)
    whole = {one.path for one in wanted if one.parts and is_whole(one, parts)}
    return missing(wanted, _right_small(helper, tree, wanted) | whole, parts)


def _told(files: Sequence[File], sent: Sequence[Chunk], where: Places) -> Uploaded:
    names = {one.path for c in sent for one in (c.files if isinstance(c, Bundle) else (c.file,))}
    return Uploaded(
        files=len(files),
        bytes=sum(one.bytes for one in files),
        sent_files=len(names),
        sent_bytes=sum(one.bytes for one in sent),
        chunks=len(sent),
        manifest=f".paceline/{where.manifest}",
    )


def _right(helper: Helper, folder: str, files: Sequence[File]) -> set[str]:
    parts = _right_parts(helper, folder, files)
    return _right_small(helper, folder, files) | {o.path for o in files if o.parts and is_whole(o, parts)}


def _right_small(helper: Helper, folder: str, files: Sequence[File]) -> set[str]:
    found: set[str] = set()
    for group in questions(one for one in files if not one.parts):
        said = helper.must("looking at files", CHECK, folder, stdin=sum_list(group).encode())
        found |= read_checked(said.decode("utf-8", "replace"))
    return found


def _right_parts(helper: Helper, folder: str, files: Sequence[File]) -> set[PartName]:
    found: set[PartName] = set()
    for one in files:
        if one.parts:
            words = (folder, one.path, str(CHUNK_BYTES), str(len(one.parts)))
            said = helper.must(f"looking at {one.path}", PARTS, *words).decode().split("\n")
            if said[0]:
                found |= right_parts(one, int(said[0]), [line.split(" ")[0] for line in said[1:]])
    return found


def _see_room(helper: Helper, where: Places, wanted_bytes: int) -> None:
    said = helper.must("looking for room", SPACE, where.folder).decode().strip()
    if said.isdigit() and int(said) * 1024 < wanted_bytes:
        what = f"the volume has room for {int(said) * 1024:,} bytes, and {wanted_bytes:,} are to come"
        raise PacelineError(what, "remove something there, or ask for a larger claim")


def _send(helper: Helper, where: Places, chunk: Chunk, sources: Mapping[str, Path]) -> None:
    match chunk:
        case Bundle():
            packed = _packed(chunk, sources)
            its = hashlib.sha256(packed).hexdigest()
            helper.must("receiving a bundle", PUT_BUNDLE, where.staging, its, stdin=packed)
        case Part(file, index, size, is_last):
            with _opened(sources[file.path]) as source:
                source.seek(index * CHUNK_BYTES)
                data = source.read(size)
            _see_same(data, file.parts[index], file)
            how = "fsync" if is_last else "notrunc"
            words = (where.staging, file.parts[index], file.path, str(CHUNK_BYTES), str(index), how)
            helper.must(f"receiving {file.path}", PUT_PART, *words, stdin=data)


def _packed(bundle: Bundle, sources: Mapping[str, Path]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for one in bundle.files:
            with _opened(sources[one.path]) as source:
                data = source.read(one.bytes + 1)
            _see_same(data, one.sha256, one)
            about = tarfile.TarInfo(f"./{one.path}")
            about.size, about.mode = len(data), 0o644
            about.mtime = int(sources[one.path].stat().st_mtime)
            tar.addfile(about, io.BytesIO(data))
    return made.getvalue()


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise UnreadableFileError(f"cannot read {path}: {error.strerror}", "see that it is there") from error


def _see_same(data: bytes, wanted: str, file: File) -> None:
    if hashlib.sha256(data).hexdigest() != wanted:
        what = f"{file.path} was changed while it was sent"
        raise PacelineError(what, "run it again when nobody writes to it: it goes on")


def _publish(helper: Helper, where: Places, files: Sequence[File]) -> None:
    listed = "".join(f"{one}\n" for one in folders(files)).encode()
    helper.must("renaming files", PUBLISH, where.folder, where.staging, stdin=listed)


def _put_manifest(helper: Helper, where: Places, files: Sequence[File]) -> None:
    """All files were just seen to be right: the list is the proof, and `sha256sum -c` repeats it."""
    data = sum_list(files).encode()
    words = (where.manifests, where.manifest, hashlib.sha256(data).hexdigest())
    helper.must("writing the manifest", PUT_FILE, *words, stdin=data)

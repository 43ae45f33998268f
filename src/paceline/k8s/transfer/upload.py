"""Upload of files to a volume: they are read once, and their size is checked, before any request."""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paceline.core.clock import SystemClock
from paceline.core.errors import ManifestError, PacelineError, Problem, UnreadableFileError
from paceline.k8s.client.connection import ClusterTarget, open_cluster
from paceline.k8s.transfer.chunks import (
    CHUNK_BYTES,
    MAX_BYTES,
    Bundle,
    Chunk,
    File,
    Part,
    PartName,
    is_whole,
    matching_parts,
    missing,
    parent_folders,
    query_batches,
    read_checked,
    sum_list,
    why_not_sent,
)
from paceline.k8s.transfer.helper_pod import Helper, open_helper
from paceline.k8s.transfer.pod_manifest import VOLUME, HelperRequest
from paceline.k8s.transfer.scripts import CHECK, PARTS, PUBLISH, PUT_BUNDLE, PUT_FILE, PUT_PART, REMOVE, SPACE

# Chunks go to a folder of their own beside the target. A file is renamed when it is complete, so that a job
# sees it whole or not at all; whoever comes again after a cut sends only what is not there with the right
# sum.

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
class RemotePaths:
    """In the helper pod."""

    folder: str
    staging: str
    manifests: str
    manifest: str  # name


def remote_paths(folder: str, files: Sequence[File]) -> RemotePaths:
    """Named by what is sent, not by its contents: a file that was changed does not begin all anew."""
    name = hashlib.sha256("\n".join(one.path for one in files).encode()).hexdigest()[:12]
    own = f"{folder}/.paceline"
    return RemotePaths(
        folder=folder, staging=f"{own}/{name}.staging", manifests=own, manifest=f"upload-{name}.sha256"
    )


def send_files(
    helper: Helper, folder: str, files: Sequence[File], sources: Mapping[str, Path], on_bytes: OnBytes
) -> Uploaded:
    """`folder` is in the pod; `sources` says where each file is here. Raises PacelineError."""
    where, total = remote_paths(folder, files), sum(one.bytes for one in files)
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


def _unsent(helper: Helper, where: RemotePaths, wanted: Sequence[File]) -> list[Chunk]:
    """An earlier attempt may have staged some of it."""
    tree = f"{where.staging}/tree"
    parts = _right_parts(helper, tree, wanted)
    whole = {one.path for one in wanted if one.parts and is_whole(one, parts)}
    return missing(wanted, _right_small(helper, tree, wanted) | whole, parts)


def _told(files: Sequence[File], sent: Sequence[Chunk], where: RemotePaths) -> Uploaded:
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
    for group in query_batches(one for one in files if not one.parts):
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
                found |= matching_parts(one, int(said[0]), [line.split(" ")[0] for line in said[1:]])
    return found


def _see_room(helper: Helper, where: RemotePaths, wanted_bytes: int) -> None:
    said = helper.must("looking for room", SPACE, where.folder).decode().strip()
    if said.isdigit() and int(said) * 1024 < wanted_bytes:
        what = f"the volume has room for {int(said) * 1024:,} bytes, and {wanted_bytes:,} are to come"
        raise PacelineError(what, "remove something there, or ask for a larger claim")


def _send(helper: Helper, where: RemotePaths, chunk: Chunk, sources: Mapping[str, Path]) -> None:
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


def _publish(helper: Helper, where: RemotePaths, files: Sequence[File]) -> None:
    listed = "".join(f"{one}\n" for one in parent_folders(files)).encode()
    helper.must("renaming files", PUBLISH, where.folder, where.staging, stdin=listed)


def _put_manifest(helper: Helper, where: RemotePaths, files: Sequence[File]) -> None:
    """All files were just seen to be right: the list is the proof, and `sha256sum -c` repeats it."""
    data = sum_list(files).encode()
    words = (where.manifests, where.manifest, hashlib.sha256(data).hexdigest())
    helper.must("writing the manifest", PUT_FILE, *words, stdin=data)


Notify = Callable[[str], None]
_SHOWN = 5  # problems of one kind
_STORE = (
    "put it into an object store (`paceline data shard … --out s3://BUCKET/PREFIX`, or "
    "`aws s3 cp --recursive FOLDER s3://BUCKET/PREFIX`) and train with --data s3://…"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What was decided, and nothing sent yet."""

    claim: str
    folder: str  # on the volume; empty is its top
    files: tuple[File, ...]
    sources: dict[str, Path]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files)

    @property
    def chunks(self) -> int:
        return len(missing(self.files))


def plan_upload(source: Path, claim: str, to: str, *, force: bool, on_bytes: OnBytes) -> Upload:
    """Raises ConfigError."""
    folder = read_folder(to, "--to")
    sources = dict(_found(source))
    total = sum(path.stat().st_size for path in sources.values())
    check_size(total, _STORE, force=force)
    files: list[File] = []
    done = 0
    for name in sorted(sources):
        files.append(_read(name, sources[name]))
        done += files[-1].bytes
        on_bytes(done, total or None)
    return Upload(claim=claim, folder=folder, files=tuple(files), sources=sources)


def upload(planned: Upload, place: ClusterTarget, image: str, say: Notify, on_bytes: OnBytes) -> Uploaded:
    """Raises ApiError, NotReadyError, PacelineError."""
    with open_cluster(place) as cluster:
        wanted = HelperRequest(namespace=cluster.namespace, claim=planned.claim, image=image)
        with open_helper(cluster.api, wanted, SystemClock(), say) as helper:
            folder = f"{VOLUME}/{planned.folder}".rstrip("/")
            return send_files(helper, folder, planned.files, planned.sources, on_bytes)


def read_folder(said: str, flag: str) -> str:
    """A folder on a volume, from its top."""
    parts = [part for part in PurePosixPath(said).parts if part not in ("/", ".")]
    path = "/".join(parts)
    why = "it leads out of the volume" if ".." in parts else why_not_sent(path)
    if why is not None:
        raise ManifestError([Problem(f"{said} is no folder on a volume: {why}", "such as data/2026", flag)])
    return path


def check_size(total: int, instead: str, *, force: bool) -> None:
    """Everything passes the API server, which others need too."""
    if total > MAX_BYTES and not force:
        what = f"{total:,} bytes are more than the {MAX_BYTES:,} that should pass through the API server"
        raise ManifestError([Problem(what, f"{instead}; or say --force")])


def _found(source: Path) -> Iterator[tuple[str, Path]]:
    """As `cp -r` would name them. Every problem at once."""
    if not source.exists():
        what = f"there is no file or folder {source}"
        raise ManifestError([Problem(what, "name one that is on this machine", "FILE")])
    name = source.name if source.name not in ("", "..") else source.resolve().name
    paths = [(name, source)]
    problems: list[str] = []
    if not source.is_file():
        paths, problems = _walked(source, name)
    for name, path in paths:
        why = why_not_sent(name) or (None if path.is_file() else "it is no file, or a link to nothing")
        if why is not None:
            problems.append(f"{path} cannot be sent: {why}")
    if not paths:
        problems.append(f"{source} holds no files")
    if problems:
        hint = "rename or remove it, or upload a folder without it"
        raise ManifestError([Problem(what, hint, "FILE") for what in problems[:_SHOWN]])
    yield from paths


def _walked(source: Path, name: str) -> tuple[list[tuple[str, Path]], list[str]]:
    found: list[tuple[str, Path]] = []
    problems: list[str] = []
    for above, folders, names in os.walk(source, onerror=_refuse):
        here = Path(above)
        inside = PurePosixPath(name, *here.relative_to(source).parts)
        problems += [f"{here / one} is a link to a folder" for one in folders if (here / one).is_symlink()]
        found += [(str(inside / one), here / one) for one in names]
    return found, problems


def _refuse(error: OSError) -> None:
    what = f"cannot read {error.filename}: {error.strerror}"
    raise ManifestError([Problem(what, "see that you may read it", "FILE")])


def _read(name: str, path: Path) -> File:
    whole, size = hashlib.sha256(), 0
    parts: list[str] = []
    try:
        with path.open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                whole.update(data)
                parts.append(hashlib.sha256(data).hexdigest())
                size += len(data)
    except OSError as error:
        what = f"cannot read {path}: {error.strerror}"
        raise ManifestError([Problem(what, "see that you may read it", "FILE")]) from error
    large = tuple(parts) if size > CHUNK_BYTES else ()
    return File(path=name, bytes=size, sha256=whole.hexdigest(), parts=large)

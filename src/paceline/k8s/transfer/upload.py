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

# Chunks go to a separate folder next to the target. A file is renamed when it is complete, so that a job
# reads it complete or not at all; a resumed upload sends only files that are absent or have another checksum.

OnBytes = Callable[[int, int | None], None]
_ROUNDS = 3  # a further round resends what was damaged meanwhile


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
    """Paths in the helper pod."""

    folder: str
    staging: str
    manifests: str
    manifest: str  # name


def remote_paths(folder: str, files: Sequence[File]) -> RemotePaths:
    """Named by what is sent, not by its contents: one changed file does not restart the whole upload."""
    name = hashlib.sha256("\n".join(file.path for file in files).encode()).hexdigest()[:12]
    own = f"{folder}/.paceline"
    return RemotePaths(
        folder=folder, staging=f"{own}/{name}.staging", manifests=own, manifest=f"upload-{name}.sha256"
    )


def send_files(
    helper: Helper, folder: str, files: Sequence[File], sources: Mapping[str, Path], on_bytes: OnBytes
) -> Uploaded:
    """`folder` is in the pod; `sources` maps each file to its local path. Raises PacelineError."""
    where = remote_paths(folder, files)
    total = sum(file.bytes for file in files)
    sent: list[Chunk] = []
    for number in range(_ROUNDS + 1):
        present = _right(helper, where.folder, files)
        absent = [file for file in files if file.path not in present]
        if not absent:
            break
        if number == _ROUNDS:
            message = f"{len(absent)} of {len(files)} do not match on the volume, such as {absent[0].path}"
            hint = "another process may be writing there; run the command again, or choose another --to"
            raise PacelineError(message, hint)
        chunks = _unsent(helper, where, absent)
        _require_room(helper, where, sum(chunk.bytes for chunk in chunks))
        done = total - sum(chunk.bytes for chunk in chunks)
        for chunk in chunks:
            on_bytes(done, total or None)
            _send(helper, where, chunk, sources)
            done += chunk.bytes
        sent += chunks
        on_bytes(done, total or None)
        _publish(helper, where, absent)
    _put_manifest(helper, where, files)
    helper.must("removing staged files", REMOVE, where.staging)
    return _summary(files, sent, where)


def _unsent(helper: Helper, where: RemotePaths, files: Sequence[File]) -> list[Chunk]:
    """An earlier attempt may have staged some of it."""
    tree = f"{where.staging}/tree"
    parts = _verified_parts(helper, tree, files)
    whole = {file.path for file in files if file.parts and is_whole(file, parts)}
    return missing(files, _verified_small(helper, tree, files) | whole, parts)


def _summary(files: Sequence[File], sent: Sequence[Chunk], where: RemotePaths) -> Uploaded:
    names = {file.path for c in sent for file in (c.files if isinstance(c, Bundle) else (c.file,))}
    return Uploaded(
        files=len(files),
        bytes=sum(file.bytes for file in files),
        sent_files=len(names),
        sent_bytes=sum(file.bytes for file in sent),
        chunks=len(sent),
        manifest=f".paceline/{where.manifest}",
    )


def _right(helper: Helper, folder: str, files: Sequence[File]) -> set[str]:
    parts = _verified_parts(helper, folder, files)
    return _verified_small(helper, folder, files) | {o.path for o in files if o.parts and is_whole(o, parts)}


def _verified_small(helper: Helper, folder: str, files: Sequence[File]) -> set[str]:
    paths: set[str] = set()
    for group in query_batches(file for file in files if not file.parts):
        output = helper.must("listing files", CHECK, folder, stdin=sum_list(group).encode())
        paths |= read_checked(output.decode("utf-8", "replace"))
    return paths


def _verified_parts(helper: Helper, folder: str, files: Sequence[File]) -> set[PartName]:
    parts: set[PartName] = set()
    for file in files:
        if file.parts:
            argv = (folder, file.path, str(CHUNK_BYTES), str(len(file.parts)))
            output = helper.must(f"checking {file.path}", PARTS, *argv).decode().split("\n")
            if output[0]:
                parts |= matching_parts(file, int(output[0]), [line.split(" ")[0] for line in output[1:]])
    return parts


def _require_room(helper: Helper, where: RemotePaths, wanted_bytes: int) -> None:
    free_kib = helper.must("checking free space", SPACE, where.folder).decode().strip()
    if free_kib.isdigit() and int(free_kib) * 1024 < wanted_bytes:
        message = f"the volume has {int(free_kib) * 1024:,} bytes free, but {wanted_bytes:,} are needed"
        raise PacelineError(message, "free space on it, or use a larger claim")


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
            _require_unchanged(data, file.parts[index], file)
            how = "fsync" if is_last else "notrunc"
            argv = (where.staging, file.parts[index], file.path, str(CHUNK_BYTES), str(index), how)
            helper.must(f"receiving {file.path}", PUT_PART, *argv, stdin=data)


def _packed(bundle: Bundle, sources: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in bundle.files:
            with _opened(sources[file.path]) as source:
                data = source.read(file.bytes + 1)
            _require_unchanged(data, file.sha256, file)
            info = tarfile.TarInfo(f"./{file.path}")
            info.size = len(data)
            info.mode = 0o644
            info.mtime = int(sources[file.path].stat().st_mtime)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise UnreadableFileError(f"cannot read {path}: {error.strerror}", "check that it exists") from error


def _require_unchanged(data: bytes, expected: str, file: File) -> None:
    if hashlib.sha256(data).hexdigest() != expected:
        message = f"{file.path} changed while it was sent"
        raise PacelineError(
            message, "run the command again when the file no longer changes; the upload resumes"
        )


def _publish(helper: Helper, where: RemotePaths, files: Sequence[File]) -> None:
    listed = "".join(f"{folder}\n" for folder in parent_folders(files)).encode()
    helper.must("renaming files", PUBLISH, where.folder, where.staging, stdin=listed)


def _put_manifest(helper: Helper, where: RemotePaths, files: Sequence[File]) -> None:
    """All files were just seen to be right: the list is the proof, and `sha256sum -c` repeats it."""
    data = sum_list(files).encode()
    argv = (where.manifests, where.manifest, hashlib.sha256(data).hexdigest())
    helper.must("writing the manifest", PUT_FILE, *argv, stdin=data)


Notify = Callable[[str], None]
_SHOWN = 5  # problems of one kind
_STORE = (
    "put it into an object store (`paceline data shard … --out s3://BUCKET/PREFIX`, or "
    "`aws s3 cp --recursive FOLDER s3://BUCKET/PREFIX`) and train with --data s3://…"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A planned upload, before anything is sent."""

    claim: str
    folder: str  # on the volume; empty is its top
    files: tuple[File, ...]
    sources: dict[str, Path]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def chunks(self) -> int:
        return len(missing(self.files))


def plan_upload(source: Path, claim: str, to: str, *, force: bool, on_bytes: OnBytes) -> Upload:
    """Raises ConfigError."""
    folder = read_folder(to, "--to")
    sources = dict(_source_files(source))
    total = sum(path.stat().st_size for path in sources.values())
    check_size(total, _STORE, force=force)
    files: list[File] = []
    done = 0
    for name in sorted(sources):
        files.append(_read(name, sources[name]))
        done += files[-1].bytes
        on_bytes(done, total or None)
    return Upload(claim=claim, folder=folder, files=tuple(files), sources=sources)


def upload(planned: Upload, target: ClusterTarget, image: str, notify: Notify, on_bytes: OnBytes) -> Uploaded:
    """Raises ApiError, NotReadyError, PacelineError."""
    with open_cluster(target) as cluster:
        request = HelperRequest(namespace=cluster.namespace, claim=planned.claim, image=image)
        with open_helper(cluster.api, request, SystemClock(), notify) as helper:
            folder = f"{VOLUME}/{planned.folder}".rstrip("/")
            return send_files(helper, folder, planned.files, planned.sources, on_bytes)


def read_folder(given: str, flag: str) -> str:
    """A folder on a volume, from its top."""
    parts = [part for part in PurePosixPath(given).parts if part not in ("/", ".")]
    path = "/".join(parts)
    why = "it is outside of the volume" if ".." in parts else why_not_sent(path)
    if why is not None:
        raise ManifestError(
            [Problem(f"{given} is not a folder on a volume: {why}", "such as data/2026", flag)]
        )
    return path


def check_size(total: int, instead: str, *, force: bool) -> None:
    """Everything passes the API server, which others need too."""
    if total > MAX_BYTES and not force:
        message = f"{total:,} bytes are more than the {MAX_BYTES:,} that may be sent through the API server"
        raise ManifestError([Problem(message, f"{instead}; or use --force")])


def _source_files(source: Path) -> Iterator[tuple[str, Path]]:
    """Files named as by `cp -r`. Reports every problem at once."""
    if not source.exists():
        message = f"there is no file or folder {source}"
        raise ManifestError([Problem(message, "name a local file or folder", "FILE")])
    name = source.name if source.name not in ("", "..") else source.resolve().name
    paths = [(name, source)]
    problems: list[str] = []
    if not source.is_file():
        paths, problems = _walked(source, name)
    for name, path in paths:
        why = why_not_sent(name) or (None if path.is_file() else "it is not a file, or a broken link")
        if why is not None:
            problems.append(f"{path} cannot be sent: {why}")
    if not paths:
        problems.append(f"{source} holds no files")
    if problems:
        hint = "rename or remove it, or upload a folder without it"
        raise ManifestError([Problem(message, hint, "FILE") for message in problems[:_SHOWN]])
    yield from paths


def _walked(source: Path, name: str) -> tuple[list[tuple[str, Path]], list[str]]:
    files: list[tuple[str, Path]] = []
    problems: list[str] = []
    for above, folders, names in os.walk(source, onerror=_refuse):
        directory = Path(above)
        inside = PurePosixPath(name, *directory.relative_to(source).parts)
        problems += [
            f"{directory / folder} is a link to a folder"
            for folder in folders
            if (directory / folder).is_symlink()
        ]
        files += [(str(inside / name), directory / name) for name in names]
    return files, problems


def _refuse(error: OSError) -> None:
    message = f"cannot read {error.filename}: {error.strerror}"
    raise ManifestError([Problem(message, "check its permissions", "FILE")])


def _read(name: str, path: Path) -> File:
    whole = hashlib.sha256()
    size = 0
    parts: list[str] = []
    try:
        with path.open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                whole.update(data)
                parts.append(hashlib.sha256(data).hexdigest())
                size += len(data)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ManifestError([Problem(message, "check its permissions", "FILE")]) from error
    large = tuple(parts) if size > CHUNK_BYTES else ()
    return File(path=name, bytes=size, sha256=whole.hexdigest(), parts=large)

"""Fetching a job's results: its claim is found, and its folder copied."""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from paceline.core.clock import SystemClock
from paceline.core.errors import ConfigError, NotReadyError, PacelineError, Problem
from paceline.core.humanize import pluralize
from paceline.k8s.client.api import Api, ForbiddenError, NotThereError, UnreachableError
from paceline.k8s.client.connection import ClusterTarget, open_cluster
from paceline.k8s.kinds import (
    HYPERPOD_JOB,
    JOB,
    PYTORCH_JOB,
    RAY_CLUSTER,
    RAY_JOB,
    TRAIN_JOB,
    TRAINING_RUNTIME,
)
from paceline.k8s.transfer.chunks import (
    CHUNK_BYTES,
    Bundle,
    File,
    Part,
    missing,
    parts_of,
    query_batches,
    why_not_sent,
)
from paceline.k8s.transfer.helper_pod import Helper, open_helper, retry_request
from paceline.k8s.transfer.pod_manifest import SCRATCH, VOLUME, HelperRequest, written_claims
from paceline.k8s.transfer.scripts import GET_BUNDLE, GET_PART, LIST, NO_FOLDER, PARTS, SUMS
from paceline.k8s.transfer.upload import check_size, read_folder

# Every chunk has its SHA-256. A file is renamed into its place when it is complete; files of an earlier
# attempt are kept if their sum is right. A file that changes meanwhile (the job still runs) is fetched again,
# and reported if it keeps changing.

OnBytes = Callable[[int, int | None], None]
_ROUNDS = 3
_UNFINISHED = ".paceline-part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    files: int
    bytes: int
    got_files: int
    got_bytes: int


def list_remote_files(helper: Helper, folder: str, shown: str) -> list[File]:
    """Files with sizes only; sums are read later. `shown` is the folder as the user wrote it."""
    result = helper.run(LIST, folder)
    if result.code == NO_FOLDER:
        hint = "name the folder with --path (--path . is the whole volume)"
        raise NotReadyError(f"there is no folder {shown} on the volume", hint)
    if result.code != 0:
        stderr = result.stderr.decode("utf-8", "replace").strip()
        raise PacelineError(f"the volume cannot be listed: {stderr}", "make its files readable for user 1000")
    files = [_file(line) for line in result.stdout.decode("utf-8", "surrogateescape").split("\n") if line]
    return sorted(files, key=lambda file: file.path)


def _file(line: str) -> File:
    size, _, rest = line.partition(" ")
    _, _, name = rest.partition(" ")
    path = name.removeprefix("./")
    why = why_not_sent(path) if size.isdigit() and path else "its name has a line break or a backslash"
    if why is None and (".." in PurePosixPath(path).parts or PurePosixPath(path).is_absolute()):
        why = "its path is outside of the folder"
    if why is not None:
        raise PacelineError(f"{line!r} on the volume cannot be fetched: {why}", "rename it there")
    return File(path=path, bytes=int(size))


def fetch(helper: Helper, folder: str, shown: str, out: Path, on_bytes: OnBytes) -> Fetched:
    """Fetch a folder. Raises PacelineError, also if files keep changing."""
    got: dict[str, int] = {}
    unread: list[str] = []
    for number in range(_ROUNDS + 1):
        seen = list_remote_files(helper, folder, shown)
        files = _read(helper, folder, seen)
        # One that vanished since is not listed again; one that still is cannot be read.
        before = unread
        unread = sorted({file.path for file in seen} - {file.path for file in files})
        local = {file.path for file in files if _is_here(out, file)}
        absent = [file for file in files if file.path not in local]
        if not absent and unread and unread != before and number < _ROUNDS:
            continue
        if not absent:
            _require_all_read(unread)
            total = sum(file.bytes for file in files)
            return Fetched(files=len(files), bytes=total, got_files=len(got), got_bytes=sum(got.values()))
        if number == _ROUNDS:
            break
        for file in _get_all(helper, folder, out, absent, on_bytes):
            got[file.path] = file.bytes
    names = ", ".join(file.path for file in absent[:3])
    message = f"{pluralize(len(absent), 'file')} changed while being fetched: {names}"
    raise PacelineError(message, "the others were fetched; run it again when the job has ended")


def _require_all_read(unread: Sequence[str]) -> None:
    if unread:
        message = f"{pluralize(len(unread), 'file')} on the volume cannot be read: {', '.join(unread[:3])}"
        raise PacelineError(
            message, "the others were fetched; these belong to another user than 1000, or are damaged"
        )


def _read(helper: Helper, folder: str, seen: Sequence[File]) -> list[File]:
    """Readable files, with their sums."""
    large = [_with_sums(helper, folder, file) for file in seen if file.is_large()]
    small = _small_with_sums(helper, folder, [file for file in seen if not file.is_large()])
    return [file for file in large if file.parts] + small


def _with_sums(helper: Helper, folder: str, file: File) -> File:
    argv = (folder, file.path, str(CHUNK_BYTES), str(len(parts_of(file))))
    sums = helper.must(f"reading {file.path}", PARTS, *argv).decode().split("\n")
    return replace(file, parts=tuple(line.split(" ")[0] for line in sums[1:] if line))


def _small_with_sums(helper: Helper, folder: str, files: Sequence[File]) -> list[File]:
    summed: list[File] = []
    for group in query_batches(files):
        output = helper.run(SUMS, folder, stdin=_list(group)).stdout.decode("utf-8", "replace")
        sums = {
            path.removeprefix("./"): its for its, _, path in (o.partition("  ") for o in output.split("\n"))
        }
        summed += [replace(file, sha256=sums[file.path]) for file in group if file.path in sums]
    return summed


def _list(files: Sequence[File]) -> bytes:
    return "".join(f"./{file.path}\n" for file in files).encode()


def _get_all(helper: Helper, folder: str, out: Path, files: Sequence[File], on_bytes: OnBytes) -> list[File]:
    """Fetch files; returns those that arrived as listed."""
    local_parts = {(file.path, index) for file in files if file.parts for index in _parts_here(out, file)}
    chunks = missing(files, parts=local_parts)
    total = sum(file.bytes for file in files)
    done = total - sum(chunk.bytes for chunk in chunks)
    arrived: list[File] = []
    for chunk in chunks:
        on_bytes(done, total or None)
        match chunk:
            case Bundle():
                arrived += _get_bundle(helper, folder, out, chunk)
            case Part():
                _get_part(helper, folder, out, chunk)
        done += chunk.bytes
    on_bytes(done, total or None)
    return arrived + [file for file in files if file.parts and _finish(out, file)]


def _get_bundle(helper: Helper, folder: str, out: Path, bundle: Bundle) -> list[File]:
    data = _read_verified(helper, GET_BUNDLE, SCRATCH, folder, stdin=_list(bundle.files))
    if not data:
        return []
    by_path = {file.path: file for file in bundle.files}
    arrived: list[File] = []
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as tar:  # there may be several in a row
        for member in tar:
            file = by_path.get(member.name.removeprefix("./"))
            source = tar.extractfile(member)
            if file is None or source is None:
                continue
            content = source.read()
            if hashlib.sha256(content).hexdigest() == file.sha256:
                with _writing(out / file.path):
                    path = _unfinished_path(out, file.path)
                    path.write_bytes(content)
                    path.replace(out / file.path)
                arrived.append(file)
    return arrived


def _get_part(helper: Helper, folder: str, out: Path, part: Part) -> None:
    argv = (SCRATCH, folder, part.file.path, str(CHUNK_BYTES), str(part.index))
    data = _read_verified(helper, GET_PART, *argv)
    if data is None:
        return
    with _writing(out / part.file.path):
        path = _unfinished_path(out, part.file.path)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(part.index * CHUNK_BYTES)
            file.write(data)
            if part.is_last:
                file.truncate()


def _read_verified(helper: Helper, script: str, *argv: str, stdin: bytes = b"") -> bytes | None:
    """None when the pod could not read it: the next round shows whether it still exists."""
    for _ in range(_ROUNDS):
        result = helper.run(script, *argv, stdin=stdin)
        if result.code != 0:
            return None
        if (
            result.stderr.decode("utf-8", "replace").split(" ")[0]
            == hashlib.sha256(result.stdout).hexdigest()
        ):
            return result.stdout
    raise UnreachableError("the transfer from the pod was truncated", "run it again: it resumes")


def _finish(out: Path, file: File) -> bool:
    """A large file is complete, or stays unfinished."""
    if len(_parts_here(out, file)) != len(file.parts):
        return False
    with _writing(out / file.path):
        _unfinished_path(out, file.path).replace(out / file.path)
    return True


def _parts_here(out: Path, file: File) -> set[int]:
    path = out / f"{file.path}{_UNFINISHED}"
    if not path.is_file():
        return set()
    parts = {index for index, its in enumerate(_sums(path)) if its == _at(file.parts, index)}
    # The last part also cuts off what is too long.
    return parts if path.stat().st_size == file.bytes else parts - {len(file.parts) - 1}


def _is_here(out: Path, file: File) -> bool:
    path = out / file.path
    if not path.is_file() or path.stat().st_size != file.bytes:
        return False
    if file.parts:
        return tuple(_sums(path)) == file.parts
    return hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


def _sums(path: Path) -> list[str]:
    with path.open("rb") as file:
        return [hashlib.sha256(data).hexdigest() for data in iter(lambda: file.read(CHUNK_BYTES), b"")]


def _at(sums: Sequence[str], index: int) -> str:
    return sums[index] if index < len(sums) else ""


def _unfinished_path(out: Path, path: str) -> Path:
    """Path of the incomplete file; creates its parent folders."""
    unfinished = out / f"{path}{_UNFINISHED}"
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    return unfinished


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk, a folder where a file goes, a name that is too long here."""
    try:
        yield
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        hint = "free disk space, or choose another --out; run it again: it resumes"
        raise PacelineError(message, hint) from error


Notify = Callable[[str], None]
_KINDS = (PYTORCH_JOB, TRAIN_JOB, TRAINING_RUNTIME, JOB, HYPERPOD_JOB, RAY_JOB, RAY_CLUSTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    name: str  # of the job
    out: Path
    claim: str | None = None  # None: that of the job
    path: str | None = None  # on the volume. None: the folder that is called like the job
    image: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    claim: str
    path: str
    fetched: Fetched


def fetch_results(request: FetchRequest, target: ClusterTarget, notify: Notify, on_bytes: OnBytes) -> Results:
    """Raises ApiError, NotReadyError, ConfigError, PacelineError."""
    path = read_folder(request.name if request.path is None else request.path, "--path")
    if request.out.exists() and not request.out.is_dir():
        raise ConfigError(
            [Problem(f"{request.out} is not a folder", "name an existing or a new folder", "--out")]
        )
    with open_cluster(target) as cluster:
        api = cluster.api
        namespace = cluster.namespace
        claim = request.claim or claim_of(api, request.name, namespace, notify)
        helper_request = HelperRequest(namespace=namespace, claim=claim, image=request.image, reads_only=True)
        with open_helper(api, helper_request, SystemClock(), notify) as helper:
            folder = f"{VOLUME}/{path}".rstrip("/")
            shown = path or "."
            files = list_remote_files(helper, folder, shown)
            total = sum(file.bytes for file in files)
            notify(f"{pluralize(len(files), 'file')}, {total:,} bytes, from {shown} on claim {claim}")
            if not files:
                raise NotReadyError(
                    f"folder {shown} on claim {claim} is empty", "check that the job has started"
                )
            check_size(total, "name a smaller folder with --path", force=request.force)
            return Results(
                claim=claim, path=shown, fetched=fetch(helper, folder, shown, request.out, on_bytes)
            )


def claim_of(api: Api, name: str, namespace: str, notify: Notify) -> str:
    """Claim of a job. NotReadyError without such a job; PacelineError if it names no claim."""
    claims: list[str] = []
    kinds: list[str] = []
    for kind in _KINDS:
        try:
            job = retry_request(partial(api.get, kind, name, namespace), SystemClock(), notify)
        except (NotThereError, ForbiddenError):
            continue  # the job is of another kind, or the cluster lacks this kind
        kinds.append(kind.name)
        claims += [claim for claim in written_claims(job) if claim not in claims]
    if not kinds:
        message = f"there is no job {name} in namespace {namespace} (finished jobs are removed after a while)"
        raise NotReadyError(message, "name its claim: --pvc CLAIM")
    if not claims:
        message = f"{kinds[0]} {name} writes to no claim, so its results were lost with its pods"
        raise PacelineError(message, "render it with --checkpoint-volume CLAIM:/output")
    if len(claims) > 1:
        message = f"{kinds[0]} {name} may write to several claims: {', '.join(claims)}"
        raise PacelineError(message, "name one of them: --pvc")
    return claims[0]

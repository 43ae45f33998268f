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
from paceline.k8s.check.findings import pluralize
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

# Every chunk comes with its SHA-256. A file is renamed into its place when it is whole; what an earlier
# attempt brought is kept if its sum is right. A file that changes meanwhile (the job still runs) is fetched
# again, and told if it does not come to rest.

OnBytes = Callable[[int, int | None], None]
_ROUNDS = 3
_UNFINISHED = ".paceline-part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    files: int
    bytes: int
    got_files: int
    got_bytes: int


def list_remote_files(helper: Helper, folder: str, said: str) -> list[File]:
    """Sizes only: reading them all comes later. `said` is the folder as the user calls it."""
    ran = helper.run(LIST, folder)
    if ran.code == NO_FOLDER:
        hint = "name the folder by --path (--path . is the whole volume)"
        raise NotReadyError(f"there is no folder {said} on the volume", hint)
    if ran.code != 0:
        told = ran.stderr.decode("utf-8", "replace").strip()
        raise PacelineError(f"the volume cannot be listed: {told}", "are its files readable for user 1000?")
    found = [_file(line) for line in ran.stdout.decode("utf-8", "surrogateescape").split("\n") if line]
    return sorted(found, key=lambda one: one.path)


def _file(line: str) -> File:
    size, _, rest = line.partition(" ")
    _, _, name = rest.partition(" ")
    path = name.removeprefix("./")
    why = why_not_sent(path) if size.isdigit() and path else "its name has a line break or a backslash"
    if why is None and (".." in PurePosixPath(path).parts or PurePosixPath(path).is_absolute()):
        why = "its path leads out of the folder"
    if why is not None:
        raise PacelineError(f"{line!r} on the volume cannot be fetched: {why}", "rename it there")
    return File(path=path, bytes=int(size))


def fetch(helper: Helper, folder: str, said: str, out: Path, on_bytes: OnBytes) -> Fetched:
    """Raises PacelineError, also when files do not come to rest."""
    got: dict[str, int] = {}
    unread: list[str] = []
    for number in range(_ROUNDS + 1):
        seen = list_remote_files(helper, folder, said)
        files = _read(helper, folder, seen)
        # One that vanished since is not listed again; one that still is cannot be read.
        before, unread = unread, sorted({one.path for one in seen} - {one.path for one in files})
        here = {one.path for one in files if _is_here(out, one)}
        wanted = [one for one in files if one.path not in here]
        if not wanted and unread and unread != before and number < _ROUNDS:
            continue
        if not wanted:
            _see_all_read(unread)
            total = sum(one.bytes for one in files)
            return Fetched(files=len(files), bytes=total, got_files=len(got), got_bytes=sum(got.values()))
        if number == _ROUNDS:
            break
        for one in _get_all(helper, folder, out, wanted, on_bytes):
            got[one.path] = one.bytes
    names = ", ".join(one.path for one in wanted[:3])
    what = f"{pluralize(len(wanted), 'file')} changed while being fetched: {names}"
    raise PacelineError(what, "the others are here; run it again when the job has ended")


def _see_all_read(unread: Sequence[str]) -> None:
    if unread:
        what = f"{pluralize(len(unread), 'file')} on the volume cannot be read: {', '.join(unread[:3])}"
        raise PacelineError(
            what, "the others are here; those belong to another user than 1000, or are damaged"
        )


def _read(helper: Helper, folder: str, seen: Sequence[File]) -> list[File]:
    """With their sums, those that can be read."""
    large = [_summed(helper, folder, one) for one in seen if one.is_large()]
    small = _small(helper, folder, [one for one in seen if not one.is_large()])
    return [one for one in large if one.parts] + small


def _summed(helper: Helper, folder: str, file: File) -> File:
    words = (folder, file.path, str(CHUNK_BYTES), str(len(parts_of(file))))
    said = helper.must(f"reading {file.path}", PARTS, *words).decode().split("\n")
    return replace(file, parts=tuple(line.split(" ")[0] for line in said[1:] if line))


def _small(helper: Helper, folder: str, files: Sequence[File]) -> list[File]:
    found: list[File] = []
    for group in query_batches(files):
        said = helper.run(SUMS, folder, stdin=_list(group)).stdout.decode("utf-8", "replace")
        sums = {
            path.removeprefix("./"): its for its, _, path in (o.partition("  ") for o in said.split("\n"))
        }
        found += [replace(one, sha256=sums[one.path]) for one in group if one.path in sums]
    return found


def _list(files: Sequence[File]) -> bytes:
    return "".join(f"./{one.path}\n" for one in files).encode()


def _get_all(helper: Helper, folder: str, out: Path, wanted: Sequence[File], on_bytes: OnBytes) -> list[File]:
    """Those that arrived as they were listed."""
    here = {(one.path, index) for one in wanted if one.parts for index in _parts_here(out, one)}
    chunks = missing(wanted, parts=here)
    total = sum(one.bytes for one in wanted)
    done = total - sum(one.bytes for one in chunks)
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
    return arrived + [one for one in wanted if one.parts and _finish(out, one)]


def _get_bundle(helper: Helper, folder: str, out: Path, bundle: Bundle) -> list[File]:
    data = _given(helper, GET_BUNDLE, SCRATCH, folder, stdin=_list(bundle.files))
    if not data:
        return []
    by_path = {one.path: one for one in bundle.files}
    arrived: list[File] = []
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as tar:  # there may be several in a row
        for about in tar:
            one, source = by_path.get(about.name.removeprefix("./")), tar.extractfile(about)
            if one is None or source is None:
                continue
            content = source.read()
            if hashlib.sha256(content).hexdigest() == one.sha256:
                with _writing(out / one.path):
                    place = _placed(out, one.path)
                    place.write_bytes(content)
                    place.replace(out / one.path)
                arrived.append(one)
    return arrived


def _get_part(helper: Helper, folder: str, out: Path, part: Part) -> None:
    words = (SCRATCH, folder, part.file.path, str(CHUNK_BYTES), str(part.index))
    data = _given(helper, GET_PART, *words)
    if data is None:
        return
    with _writing(out / part.file.path):
        place = _placed(out, part.file.path)
        with place.open("r+b" if place.exists() else "w+b") as file:
            file.seek(part.index * CHUNK_BYTES)
            file.write(data)
            if part.is_last:
                file.truncate()


def _given(helper: Helper, script: str, *words: str, stdin: bytes = b"") -> bytes | None:
    """None when the pod could not read it: the next round tells whether it is still there."""
    for _ in range(_ROUNDS):
        ran = helper.run(script, *words, stdin=stdin)
        if ran.code != 0:
            return None
        if ran.stderr.decode("utf-8", "replace").split(" ")[0] == hashlib.sha256(ran.stdout).hexdigest():
            return ran.stdout
    raise UnreachableError("bytes were lost on the way from the pod", "run it again: it goes on")


def _finish(out: Path, file: File) -> bool:
    """A large file is complete, or stays unfinished."""
    if len(_parts_here(out, file)) != len(file.parts):
        return False
    with _writing(out / file.path):
        _placed(out, file.path).replace(out / file.path)
    return True


def _parts_here(out: Path, file: File) -> set[int]:
    place = out / f"{file.path}{_UNFINISHED}"
    if not place.is_file():
        return set()
    found = {index for index, its in enumerate(_sums(place)) if its == _at(file.parts, index)}
    # The last part also cuts off what is too long.
    return found if place.stat().st_size == file.bytes else found - {len(file.parts) - 1}


def _is_here(out: Path, file: File) -> bool:
    place = out / file.path
    if not place.is_file() or place.stat().st_size != file.bytes:
        return False
    if file.parts:
        return tuple(_sums(place)) == file.parts
    return hashlib.sha256(place.read_bytes()).hexdigest() == file.sha256


def _sums(path: Path) -> list[str]:
    with path.open("rb") as file:
        return [hashlib.sha256(data).hexdigest() for data in iter(lambda: file.read(CHUNK_BYTES), b"")]


def _at(sums: Sequence[str], index: int) -> str:
    return sums[index] if index < len(sums) else ""


def _placed(out: Path, path: str) -> Path:
    """Where it grows until it is whole, with the folders above it."""
    place = out / f"{path}{_UNFINISHED}"
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """A full disk, a folder where a file goes, a name that is too long here."""
    try:
        yield
    except OSError as error:
        what = f"cannot write {place}: {error.strerror}"
        hint = "make room there, or choose another --out; run it again: what is here is not fetched twice"
        raise PacelineError(what, hint) from error


Notify = Callable[[str], None]
_KINDS = (PYTORCH_JOB, TRAIN_JOB, TRAINING_RUNTIME, JOB, HYPERPOD_JOB, RAY_JOB, RAY_CLUSTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    name: str  # of the job
    out: Path
    claim: str | None = None  # None: the job says
    path: str | None = None  # on the volume. None: the folder that is called like the job
    image: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    claim: str
    path: str
    fetched: Fetched


def fetch_results(asked: FetchRequest, place: ClusterTarget, say: Notify, on_bytes: OnBytes) -> Results:
    """Raises ApiError, NotReadyError, ConfigError, PacelineError."""
    path = read_folder(asked.name if asked.path is None else asked.path, "--path")
    if asked.out.exists() and not asked.out.is_dir():
        raise ConfigError([Problem(f"{asked.out} is no folder", "name one, or a new one", "--out")])
    with open_cluster(place) as cluster:
        api, namespace = cluster.api, cluster.namespace
        claim = asked.claim or claim_of(api, asked.name, namespace, say)
        wanted = HelperRequest(namespace=namespace, claim=claim, image=asked.image, reads_only=True)
        with open_helper(api, wanted, SystemClock(), say) as helper:
            folder, shown = f"{VOLUME}/{path}".rstrip("/"), path or "."
            files = list_remote_files(helper, folder, shown)
            total = sum(one.bytes for one in files)
            say(f"{pluralize(len(files), 'file')}, {total:,} bytes, from {shown} on claim {claim}")
            if not files:
                raise NotReadyError(f"folder {shown} on claim {claim} is empty", "has the job begun?")
            check_size(total, "name a smaller folder by --path", force=asked.force)
            return Results(claim=claim, path=shown, fetched=fetch(helper, folder, shown, asked.out, on_bytes))


def claim_of(api: Api, name: str, namespace: str, say: Notify) -> str:
    """Raises NotReadyError when no job of this name is there, PacelineError when it does not say."""
    found: list[str] = []
    kinds: list[str] = []
    for kind in _KINDS:
        try:
            job = retry_request(partial(api.get, kind, name, namespace), SystemClock(), say)
        except (NotThereError, ForbiddenError):
            continue  # of another kind, then, or one that this cluster does not have
        kinds.append(kind.name)
        found += [claim for claim in written_claims(job) if claim not in found]
    if not kinds:
        what = f"there is no job {name} in namespace {namespace} (an ended one is removed after a while)"
        raise NotReadyError(what, "name the claim that it wrote to: --pvc")
    if not found:
        what = f"{kinds[0]} {name} writes to no claim, so its results went with its pods"
        raise PacelineError(what, "render it with --checkpoint-volume CLAIM:/output")
    if len(found) > 1:
        what = f"{kinds[0]} {name} may write to several claims: {', '.join(found)}"
        raise PacelineError(what, "name one of them: --pvc")
    return found[0]

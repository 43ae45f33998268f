"""What is to be uploaded, and is it too much? Files are read here, once, before anything is asked for."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paceline.app.cluster_reach import Place, reached
from paceline.clock import SystemClock
from paceline.cluster.helper_pod import helper_on
from paceline.cluster.upload import Uploaded
from paceline.cluster.upload import upload as send
from paceline.errors import ManifestError, Problem
from paceline.kube.transfer.chunks import CHUNK_BYTES, MOST_BYTES, File, missing, why_not_sent
from paceline.kube.transfer.helper import VOLUME, Wanted

OnBytes = Callable[[int, int | None], None]
Say = Callable[[str], None]
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
    see_amount(total, _STORE, force=force)
    files: list[File] = []
    done = 0
    for name in sorted(sources):
        files.append(_read(name, sources[name]))
        done += files[-1].bytes
        on_bytes(done, total or None)
    return Upload(claim=claim, folder=folder, files=tuple(files), sources=sources)


def upload(planned: Upload, place: Place, image: str, say: Say, on_bytes: OnBytes) -> Uploaded:
    """Raises ApiError, NotReadyError, PacelineError."""
    with reached(place) as cluster:
        wanted = Wanted(namespace=cluster.namespace, claim=planned.claim, image=image)
        with helper_on(cluster.api, wanted, SystemClock(), say) as helper:
            folder = f"{VOLUME}/{planned.folder}".rstrip("/")
            return send(helper, folder, planned.files, planned.sources, on_bytes)


def read_folder(said: str, flag: str) -> str:
    """A folder on a volume, from its top."""
    parts = [part for part in PurePosixPath(said).parts if part not in ("/", ".")]
    path = "/".join(parts)
    why = "it leads out of the volume" if ".." in parts else why_not_sent(path)
    if why is not None:
        raise ManifestError([Problem(f"{said} is no folder on a volume: {why}", "such as data/2026", flag)])
    return path


def see_amount(total: int, instead: str, *, force: bool) -> None:
    """Everything passes the API server, which others need too."""
    if total > MOST_BYTES and not force:
        what = f"{total:,} bytes are more than the {MOST_BYTES:,} that should pass through the API server"
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

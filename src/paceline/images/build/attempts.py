"""How does a Dockerfile that cannot be built become an image? Mend, build, read the log; at most three times.

Each attempt has every fix so far. An attempt that would change nothing is not made. The user's files stay as
they are unless it is said that they may change; then what the last attempt was built from is written.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.core import clock
from paceline.core.errors import NotReadyError
from paceline.core.redaction import LineRedactor, redact
from paceline.images.build.engine import (
    CommandResult,
    Engine,
    EngineKind,
    new_build_marker,
    remove_leftovers,
    run_command,
    stream,
)
from paceline.images.build.engine_cli import BuildOptions, ProgressParser, build_argv, inspect_argv
from paceline.images.lint.build_log import external_cause
from paceline.images.lint.check import (
    FixResult,
    apply_findings,
    apply_fixes,
    changed_files,
    findings_from_log,
    unified_diff,
)
from paceline.images.lint.files import load_project, write_project
from paceline.images.lint.project import Finding, Project, Target

# Where only the Dockerfile was mended, from the user's folder, with another Dockerfile. Where more was
# mended, from a second tree of the same files: hard links where they can be, so that nothing large is copied.


@dataclass(frozen=True, slots=True)
class Context:
    folder: Path
    dockerfile: Path


@contextmanager
def context_of(folder: Path, before: Project, after: Project) -> Iterator[Context]:
    """The folder as `after` says; whatever was made for it is gone afterwards."""
    news = changed_files(before, after)
    if not news:
        yield Context(folder, folder / after.dockerfile)
        return
    with tempfile.TemporaryDirectory(prefix="paceline-image-") as made:
        place = Path(made)
        if set(news) == {after.dockerfile}:
            yield _beside(folder, after, place)
        else:
            yield _second_tree(folder, after, news, place / "context")


def _beside(folder: Path, after: Project, place: Path) -> Context:
    mended = place / "Dockerfile"
    _write(mended, after.text(after.dockerfile))
    # Engines look for the list of what is not sent beside the Dockerfile, under its name.
    ignored = folder / f"{after.dockerfile}.dockerignore"
    if ignored.is_file():
        shutil.copyfile(ignored, place / "Dockerfile.dockerignore")
    return Context(folder, mended)


def _second_tree(folder: Path, after: Project, news: dict[str, str], place: Path) -> Context:
    _link_tree(folder, place)
    for path, text in news.items():
        if not _is_outside(path) and not _leads_out(place / path, place):
            _replace(place / path, text)
    if not _is_outside(after.dockerfile):
        return Context(place, place / after.dockerfile)
    _write(place.parent / "Dockerfile", after.text(after.dockerfile))
    return Context(place, place.parent / "Dockerfile")


def _is_outside(path: str) -> bool:
    """What is not in the context is not sent."""
    return path.startswith(("../", "/"))


def _leads_out(file: Path, place: Path) -> bool:
    """By a folder that is a link to elsewhere: engines do not follow it, and what is there is the user's."""
    return not file.parent.resolve().is_relative_to(place.resolve())


def _replace(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        file.unlink()  # a link is the user's own file: it is replaced, never written to
    _write(file, text)


def _link_tree(folder: Path, place: Path) -> None:
    try:
        place.mkdir(parents=True)
        with os.scandir(folder) as entries:
            for entry in entries:
                goal = place / entry.name
                if entry.is_symlink():
                    goal.symlink_to(Path(entry.path).readlink())
                elif entry.is_dir():
                    _link_tree(Path(entry.path), goal)
                elif entry.is_file():
                    _link(Path(entry.path), goal)
        shutil.copystat(folder, place)  # COPY takes the modes of folders too
    except OSError as error:
        raise NotReadyError(
            f"the build context cannot be linked or copied: {error.strerror}: {error.filename or folder}",
            "make it readable, or set TMPDIR to a folder of the same file system",
        ) from error


def _link(source: Path, goal: Path) -> None:
    try:
        os.link(source, goal)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, goal)


def _write(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8", newline="") as out:
        out.write(text)


MAX_ATTEMPTS = 3
_TAIL_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    folder: Path
    dockerfile: Path | None
    requirements: tuple[Path, ...]
    target: Target
    wish: BuildOptions  # its context and dockerfile are set for each attempt
    agreed: bool = False
    write: bool = False
    attempts: int = MAX_ATTEMPTS
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One finding that was mended, as a patch of its own."""

    finding: Finding
    attempt: int  # the first that was built with it
    found: str  # "before the build" or "in the log"
    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    number: int
    ok: bool
    seconds: float
    failed_at: str | None
    log: str  # secrets hidden
    found: tuple[Finding, ...] = ()  # what its log says is wrong

    @property
    def tail(self) -> list[str]:
        return self.log.splitlines()[-_TAIL_LINES:]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    ok: bool
    engine: Engine
    tags: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    fixes: tuple[Fix, ...]
    left: tuple[Finding, ...]
    stopped: str  # why there was no further attempt
    diff: str
    written: tuple[str, ...]
    image_id: str | None = None
    size_bytes: int | None = None


def build_image(engine: Engine, request: BuildRequest, say: Callable[[str], None]) -> BuildResult:
    before = load_project(request.folder, request.dockerfile, request.requirements)
    mended = apply_fixes(before, request.target, agreed=request.agreed)
    fixes = _fixes(before, mended.applied, 1, "before the build")
    project, left = mended.project, mended.left
    attempts: list[Attempt] = []
    tried = {project.fingerprint}
    stopped = f"{request.attempts} attempts were made"
    for number in range(1, request.attempts + 1):
        attempt = _attempt(engine, request, before, project, number, say)
        attempts.append(attempt)
        if attempt.ok:
            stopped = "it was built"
            break
        outside = external_cause(attempt.log)
        if outside is not None:
            stopped = outside
            break
        mended, more = _after_failure(attempt, project, request)
        if mended.project.fingerprint in tried:  # the same once more, or one fix that takes back another
            stopped = "nothing more is known that could be mended"
            break
        if number < request.attempts:
            fixes += [replace(fix, attempt=number + 1) for fix in more]
            project, left = mended.project, mended.left
            tried.add(project.fingerprint)
            say(f"attempt {number + 1} of {request.attempts}, with {len(more)} more fixed")
    return _result(engine, request, before, project, attempts, fixes, left, stopped)


def _attempt(
    engine: Engine,
    request: BuildRequest,
    before: Project,
    project: Project,
    number: int,
    say: Callable[[str], None],
) -> Attempt:
    reading, begun = ProgressParser(), clock.monotonic_s()
    redactor = LineRedactor()

    def on_line(line: str) -> None:
        told = reading.read(redactor.line(line))
        if told is not None:
            say(told)

    with context_of(request.folder, before, project) as context:
        wish = replace(
            request.wish, context=context.folder, dockerfile=context.dockerfile, mark=new_build_marker()
        )
        done = _run(engine, wish, request.timeout_s, on_line)
    return Attempt(
        number=number,
        ok=done.is_well,
        seconds=clock.monotonic_s() - begun,
        failed_at=None if done.is_well else _where(done, reading, request.timeout_s),
        log=redact(done.text),
        found=() if done.is_well else findings_from_log(done.text, project, request.target),
    )


def _run(
    engine: Engine, wish: BuildOptions, timeout_s: float, on_line: Callable[[str], None]
) -> CommandResult:
    more = {"BUILDKIT_PROGRESS": "plain"} if engine.kind is EngineKind.DOCKER else None
    has_ended = False
    try:
        done = stream(build_argv(engine, wish), timeout_s=timeout_s, on_line=on_line, more=more)
        has_ended = not done.was_too_slow
        return done
    finally:
        if not has_ended and wish.mark is not None:
            remove_leftovers(engine, wish.mark)


def _where(done: CommandResult, reading: ProgressParser, timeout_s: float) -> str:
    place = "before its first step" if reading.now is None else f"in {reading.now}"
    return f"{place}: stopped after {timeout_s:g} s" if done.was_too_slow else place


def _after_failure(attempt: Attempt, project: Project, request: BuildRequest) -> tuple[FixResult, list[Fix]]:
    """What the log's findings make of the project, and what the checks then find in that."""
    said = [one for one in attempt.found if one.is_automatic or (request.agreed and one.edits)]
    after = apply_findings(project, tuple(said), agreed=request.agreed)
    fixes = _fixes(project, tuple(said), attempt.number, "in the log")
    mended = apply_fixes(after, request.target, agreed=request.agreed)
    fixes += _fixes(after, mended.applied, attempt.number, "before the build")
    return mended, fixes


def _fixes(project: Project, findings: tuple[Finding, ...], attempt: int, found: str) -> list[Fix]:
    """Each as the patch it is on what the ones before it left; one that changed nothing is none."""
    fixes = []
    for finding in findings:
        after = apply_findings(project, (finding,), agreed=True)
        if after.fingerprint != project.fingerprint:
            diff = redact(unified_diff(project, after))
            fixes.append(Fix(finding=finding, attempt=attempt, found=found, diff=diff))
        project = after
    return fixes


def _result(
    engine: Engine,
    request: BuildRequest,
    before: Project,
    project: Project,
    attempts: list[Attempt],
    fixes: list[Fix],
    left: tuple[Finding, ...],
    stopped: str,
) -> BuildResult:
    ok = attempts[-1].ok
    written = write_project(request.folder, before, project) if ok and request.write else []
    image_id, size = _inspect(engine, request.wish.tags[0]) if ok else (None, None)
    return BuildResult(
        ok=ok,
        engine=engine,
        tags=request.wish.tags,
        attempts=tuple(attempts),
        fixes=tuple(fixes),
        left=left,
        stopped=stopped,
        diff=redact(unified_diff(before, project)),
        written=tuple(str(path) for path in written),
        image_id=image_id,
        size_bytes=size,
    )


def _inspect(engine: Engine, image: str) -> tuple[str | None, int | None]:
    done = run_command(inspect_argv(engine, image))
    words = done.text.split()
    if not done.is_well or not words:
        return None, None
    return words[0].removeprefix("sha256:"), int(words[1]) if len(words) > 1 and words[1].isdigit() else None

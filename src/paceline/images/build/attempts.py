"""Build with retries: fix the project, build it, read the log of a failure; at most three attempts.

Each attempt has every fix so far. An attempt that would change nothing is not made. The user's files stay as
they are unless the request allows changes; then the sources of the last attempt are written back.
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
    stream,
)
from paceline.images.build.engine_cli import BuildOptions, ProgressParser, build_argv
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
from paceline.images.lint.view import stage_views
from paceline.images.push.references import Commit
from paceline.images.revision import ImageIdentity, commit_of, identify, revision_labels

# If only the Dockerfile was fixed, the context is the user's folder with another Dockerfile. If more was
# fixed, it is a second tree of the same files, with hard links if possible, so that no large file is copied.


@dataclass(frozen=True, slots=True)
class Context:
    folder: Path
    dockerfile: Path


@contextmanager
def context_of(folder: Path, before: Project, after: Project) -> Iterator[Context]:
    """Build context with the content of `after`; temporary files are removed afterwards."""
    changes = changed_files(before, after)
    if not changes:
        yield Context(folder, folder / after.dockerfile)
        return
    with tempfile.TemporaryDirectory(prefix="paceline-image-") as temp_dir:
        place = Path(temp_dir)
        if set(changes) == {after.dockerfile}:
            yield _context_with_dockerfile(folder, after, place)
        else:
            yield _second_tree(folder, after, changes, place / "context")


def _context_with_dockerfile(folder: Path, after: Project, place: Path) -> Context:
    fixed = place / "Dockerfile"
    _write(fixed, after.text(after.dockerfile))
    # Engines read the ignore list next to the Dockerfile, under its name.
    ignored = folder / f"{after.dockerfile}.dockerignore"
    if ignored.is_file():
        shutil.copyfile(ignored, place / "Dockerfile.dockerignore")
    return Context(folder, fixed)


def _second_tree(folder: Path, after: Project, changes: dict[str, str], place: Path) -> Context:
    _link_tree(folder, place)
    for path, text in changes.items():
        if not _is_outside(path) and not _leads_out(place / path, place):
            _replace(place / path, text)
    if not _is_outside(after.dockerfile):
        return Context(place, place / after.dockerfile)
    _write(place.parent / "Dockerfile", after.text(after.dockerfile))
    return Context(place, place.parent / "Dockerfile")


def _is_outside(path: str) -> bool:
    """Whether the path is outside the context, and so is not sent."""
    return path.startswith(("../", "/"))


def _leads_out(file: Path, place: Path) -> bool:
    """Whether a folder on the path is a link out of the tree: engines do not follow it."""
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
    options: BuildOptions  # its context and dockerfile are set for each attempt
    agreed: bool = False
    write: bool = False
    attempts: int = MAX_ATTEMPTS
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One fixed finding as a separate patch."""

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
    found: tuple[Finding, ...] = ()  # findings in its log

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
    ended_at_s: float  # Unix time
    packages: tuple[str, ...] = ()  # that pip installs in the image, by the Dockerfile that was built
    identity: ImageIdentity | None = None


def build_image(engine: Engine, request: BuildRequest, notify: Callable[[str], None]) -> BuildResult:
    before = load_project(request.folder, request.dockerfile, request.requirements)
    commit = commit_of(request.folder, before.dockerfile)
    fixed = apply_fixes(before, request.target, agreed=request.agreed)
    fixes = _fixes(before, fixed.applied, 1, "before the build")
    project = fixed.project
    left = fixed.left
    attempts: list[Attempt] = []
    tried = {project.fingerprint}
    stopped = f"{request.attempts} attempts failed"
    for number in range(1, request.attempts + 1):
        attempt = _attempt(engine, request, before, project, commit, number, notify)
        attempts.append(attempt)
        if attempt.ok:
            stopped = "it was built"
            break
        outside = external_cause(attempt.log)
        if outside is not None:
            stopped = outside
            break
        fixed, more = _after_failure(attempt, project, request)
        if fixed.project.fingerprint in tried:  # a repeated state, or a fix that reverts another
            stopped = "no further fix is known"
            break
        if number < request.attempts:
            fixes += [replace(fix, attempt=number + 1) for fix in more]
            project = fixed.project
            left = fixed.left
            tried.add(project.fingerprint)
            notify(f"attempt {number + 1} of {request.attempts}, with {len(more)} more fixes")
    return _result(engine, request, before, project, attempts, fixes, left, stopped)


def _attempt(
    engine: Engine,
    request: BuildRequest,
    before: Project,
    project: Project,
    commit: Commit | None,
    number: int,
    notify: Callable[[str], None],
) -> Attempt:
    reading = ProgressParser()
    started_s = clock.monotonic_s()
    redactor = LineRedactor()

    def on_line(line: str) -> None:
        message = reading.read(redactor.line(line))
        if message is not None:
            notify(message)

    if commit is not None and project.fingerprint != before.fingerprint:
        commit = replace(commit, is_dirty=True)  # a fix is in no commit
    labels = revision_labels(commit, project.text(project.dockerfile))
    with context_of(request.folder, before, project) as context:
        options = replace(
            request.options,
            context=context.folder,
            dockerfile=context.dockerfile,
            labels=(*request.options.labels, *labels),
            mark=new_build_marker(),
        )
        done = _run(engine, options, request.timeout_s, on_line)
    return Attempt(
        number=number,
        ok=done.is_well,
        seconds=clock.monotonic_s() - started_s,
        failed_at=None if done.is_well else _where(done, reading, request.timeout_s),
        log=redact(done.text),
        found=() if done.is_well else findings_from_log(done.text, project, request.target),
    )


def _run(
    engine: Engine, options: BuildOptions, timeout_s: float, on_line: Callable[[str], None]
) -> CommandResult:
    more = {"BUILDKIT_PROGRESS": "plain"} if engine.kind is EngineKind.DOCKER else None
    has_ended = False
    try:
        done = stream(build_argv(engine, options), timeout_s=timeout_s, on_line=on_line, more=more)
        has_ended = not done.was_too_slow
        return done
    finally:
        if not has_ended and options.mark is not None:
            remove_leftovers(engine, options.mark)


def _where(done: CommandResult, reading: ProgressParser, timeout_s: float) -> str:
    place = "before its first step" if reading.now is None else f"in {reading.now}"
    return f"{place}: stopped after {timeout_s:g} s" if done.was_too_slow else place


def _after_failure(attempt: Attempt, project: Project, request: BuildRequest) -> tuple[FixResult, list[Fix]]:
    """Apply the log's findings to the project, and check the result again."""
    applied = [
        finding for finding in attempt.found if finding.is_automatic or (request.agreed and finding.edits)
    ]
    after = apply_findings(project, tuple(applied), agreed=request.agreed)
    fixes = _fixes(project, tuple(applied), attempt.number, "in the log")
    fixed = apply_fixes(after, request.target, agreed=request.agreed)
    fixes += _fixes(after, fixed.applied, attempt.number, "before the build")
    return fixed, fixes


def _fixes(project: Project, findings: tuple[Finding, ...], attempt: int, source: str) -> list[Fix]:
    """Each as the patch it is on what the ones before it left; one that changed nothing is none."""
    fixes = []
    for finding in findings:
        after = apply_findings(project, (finding,), agreed=True)
        if after.fingerprint != project.fingerprint:
            diff = redact(unified_diff(project, after))
            fixes.append(Fix(finding=finding, attempt=attempt, found=source, diff=diff))
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
    return BuildResult(
        ok=ok,
        engine=engine,
        tags=request.options.tags,
        attempts=tuple(attempts),
        fixes=tuple(fixes),
        left=left,
        stopped=stopped,
        diff=redact(unified_diff(before, project)),
        written=tuple(str(path) for path in written),
        ended_at_s=clock.unix_now_s(),
        packages=_packages(project, request) if ok else (),
        identity=identify(engine, request.options.tags[0]) if ok else None,
    )


def _packages(project: Project, request: BuildRequest) -> tuple[str, ...]:
    """Packages that pip installs in the stage that was built, and in those below it."""
    views = stage_views(project, request.target)
    wanted = [view for view in views if view.stage.name == request.options.target] or views[-1:]
    names = (
        package.spec.name
        for view in wanted[:1]
        for package in view.installed
        if package.spec.name and not package.spec.is_url
    )
    return tuple(dict.fromkeys(names))

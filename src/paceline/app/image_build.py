"""How does a Dockerfile that cannot be built become an image? Mend, build, read the log; at most three times.

Each attempt has every fix so far. An attempt that would change nothing is not made. The user's files stay as
they are unless it is said that they may change; then what the last attempt was built from is written.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from paceline import clock
from paceline.app.image_check import load_project, write_project
from paceline.engines.context import context_of
from paceline.engines.engine import Engine, Kind
from paceline.engines.leftovers import new_mark, remove_marked
from paceline.engines.process import Finished, ask, stream
from paceline.engines.progress import Reading
from paceline.engines.words import BuildWish, build_words, inspect_words
from paceline.images.api import Mended, apply, from_log, mend, unified_diff
from paceline.images.log import outside_cause
from paceline.images.project import Finding, Project, Target
from paceline.redaction import LineRedactor, redact

MOST_ATTEMPTS = 3
_TAIL_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    folder: Path
    dockerfile: Path | None
    requirements: tuple[Path, ...]
    target: Target
    wish: BuildWish  # its context and dockerfile are set for each attempt
    agreed: bool = False
    write: bool = False
    attempts: int = MOST_ATTEMPTS
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
class Built:
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


def build_image(engine: Engine, request: BuildRequest, say: Callable[[str], None]) -> Built:
    before = load_project(request.folder, request.dockerfile, request.requirements)
    mended = mend(before, request.target, agreed=request.agreed)
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
        outside = outside_cause(attempt.log)
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
    reading, begun = Reading(), clock.monotonic_s()
    redactor = LineRedactor()

    def on_line(line: str) -> None:
        told = reading.read(redactor.line(line))
        if told is not None:
            say(told)

    with context_of(request.folder, before, project) as context:
        wish = replace(request.wish, context=context.folder, dockerfile=context.dockerfile, mark=new_mark())
        done = _run(engine, wish, request.timeout_s, on_line)
    return Attempt(
        number=number,
        ok=done.is_well,
        seconds=clock.monotonic_s() - begun,
        failed_at=None if done.is_well else _where(done, reading, request.timeout_s),
        log=redact(done.text),
        found=() if done.is_well else from_log(done.text, project, request.target),
    )


def _run(engine: Engine, wish: BuildWish, timeout_s: float, on_line: Callable[[str], None]) -> Finished:
    more = {"BUILDKIT_PROGRESS": "plain"} if engine.kind is Kind.DOCKER else None
    has_ended = False
    try:
        done = stream(build_words(engine, wish), timeout_s=timeout_s, on_line=on_line, more=more)
        has_ended = not done.was_too_slow
        return done
    finally:
        if not has_ended and wish.mark is not None:
            remove_marked(engine, wish.mark)


def _where(done: Finished, reading: Reading, timeout_s: float) -> str:
    place = "before its first step" if reading.now is None else f"in {reading.now}"
    return f"{place}: stopped after {timeout_s:g} s" if done.was_too_slow else place


def _after_failure(attempt: Attempt, project: Project, request: BuildRequest) -> tuple[Mended, list[Fix]]:
    """What the log's findings make of the project, and what the checks then find in that."""
    said = [one for one in attempt.found if one.is_automatic or (request.agreed and one.edits)]
    after = apply(project, tuple(said), agreed=request.agreed)
    fixes = _fixes(project, tuple(said), attempt.number, "in the log")
    mended = mend(after, request.target, agreed=request.agreed)
    fixes += _fixes(after, mended.applied, attempt.number, "before the build")
    return mended, fixes


def _fixes(project: Project, findings: tuple[Finding, ...], attempt: int, found: str) -> list[Fix]:
    """Each as the patch it is on what the ones before it left; one that changed nothing is none."""
    fixes = []
    for finding in findings:
        after = apply(project, (finding,), agreed=True)
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
) -> Built:
    ok = attempts[-1].ok
    written = write_project(request.folder, before, project) if ok and request.write else []
    image_id, size = _looked_at(engine, request.wish.tags[0]) if ok else (None, None)
    return Built(
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


def _looked_at(engine: Engine, image: str) -> tuple[str | None, int | None]:
    done = ask(inspect_words(engine, image))
    words = done.text.split()
    if not done.is_well or not words:
        return None, None
    return words[0].removeprefix("sha256:"), int(words[1]) if len(words) > 1 and words[1].isdigit() else None

"""Does an image work? Its facts, asked from within, judged, with what to do about each failure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from paceline import clock
from paceline.engines.container import Inside, probe
from paceline.engines.engine import Engine
from paceline.engines.judge import Check, Expected, Facts, Verdict, judge
from paceline.errors import ImageWishError, Problem
from paceline.plan.plan import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRequest:
    __test__ = False  # pytest takes it for one of its own

    image: str
    level: str
    requirements: tuple[str, ...] = ()  # names; none: what nobody else in the image asked for
    task: str | None = None
    task_options: tuple[tuple[str, Option], ...] = ()
    batch_size: int = 8
    expected: Expected = field(default_factory=Expected)
    inside: Inside = field(default_factory=Inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    image: str
    level: str
    engine: Engine
    seconds: float
    checks: tuple[Check, ...]
    facts: Facts

    @property
    def ok(self) -> bool:
        return all(check.verdict is not Verdict.FAILED for check in self.checks)

    def count(self, verdict: Verdict) -> int:
        return sum(check.verdict is verdict for check in self.checks)


def run_image_test(engine: Engine, request: TestRequest) -> Tested:
    begun = clock.monotonic_s()
    wish = {
        "level": request.level,
        "requirements": list(request.requirements),
        "task": request.task,
        "task_options": dict(request.task_options),
        "batch_size": request.batch_size,
    }
    facts = probe(engine, request.image, wish, request.inside)
    return Tested(
        image=request.image,
        level=request.level,
        engine=engine,
        seconds=clock.monotonic_s() - begun,
        checks=tuple(judge(facts, request.expected)),
        facts=facts,
    )


def names_in(files: Sequence[Path]) -> tuple[str, ...]:
    """The packages that requirement files name, those of other files they include too, each once."""
    names: dict[str, None] = {}
    for file in files:
        for name in _names(file, frozenset()):
            names[name] = None
    return tuple(names)


def _names(file: Path, seen: frozenset[Path]) -> list[str]:
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ImageWishError(
            [Problem(f"cannot read {file}: {error}", "name a file of requirements")]
        ) from error
    found = []
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.partition(" #")[0].split(" --")[0].strip()
        if line.startswith("#") or not line:
            continue
        if line.startswith(("-r ", "--requirement ")):
            inner = file.parent / line.split(maxsplit=1)[1]
            if inner not in seen:
                found += _names(inner, seen | {file})
            continue
        try:
            asked = Requirement(line)
        except InvalidRequirement:
            continue  # an option, a path or an address: it has no name to look for
        if asked.marker is None or asked.marker.evaluate():
            found.append(asked.name)
    return found

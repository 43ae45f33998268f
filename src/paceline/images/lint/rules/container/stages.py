"""Rules about COPY --from: paths of the other stage, moved environments, another Python (29, 40)."""

import posixpath
import re
from collections.abc import Iterator

from paceline.images.lint.dockerfile import Instruction, substituted
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.commands import OTHER_PYTHON
from paceline.images.lint.rules.container.interpreter import KNOWN, LAUNCHED, OTHER
from paceline.images.lint.rules.container.start import last_start, words_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

NOT_MADE = Pattern(
    number=29,
    id="not-made-in-stage",
    what="COPY --from names a path that no instruction of that stage mentions.",
    fix="only reported: the path that the stage fills",
)
PATTERNS = (NOT_MADE,)
_OF_BASES = re.compile(
    r"^/(?:usr|etc|bin|sbin|lib\d*|var|opt/conda|root/\.|home|dev|proc|tmp/?$|workspace|go|opt/(?:nvidia|hpcx|amazon))"
)


def not_made_in_stage(place: Place) -> Iterator[Finding]:
    """COPY --from=STAGE PATH against every word of that stage."""
    for step in place.stage.instructions:
        said = step.flag("from") if step.word == "COPY" else None
        source = next(
            (s for s in place.docker.stages if said and said.lower() in (s.name, str(s.number))), None
        )
        if source is None or source.number >= place.stage.number or len(step.values) < 2:
            continue
        chain = place.docker.chain(source)
        values = place.docker.variables(source)
        told = " ".join(
            substituted(" ".join([*one.values, *one.flags]), values)
            for stage in chain
            for one in stage.instructions
        )
        for written in step.values[:-1]:
            path = substituted(written, values).rstrip("/")
            top = "/".join(path.split("/")[:3])
            is_plain = re.fullmatch(r"/[\w./-]+", path) is not None and not _OF_BASES.match(path)
            if (
                is_plain
                and _is_unmentioned(path, top, told)
                and not re.search(r"\.sh\b|make\b|cmake|<<", told)
            ):
                yield NOT_MADE.found(
                    place,
                    step,
                    f"no instruction of stage {said} mentions {top}: `not found`",
                    f"COPY --from={said} {' '.join(step.values)}",
                    "copy the path that the stage fills",
                )
                return
        yield from _moved(place, step, told)


def _is_unmentioned(path: str, top: str, told: str) -> bool:
    first = f"/{path.split('/')[1]}"
    return re.search(rf"(?<![\w.-]){re.escape(top)}(?![\w-])", told) is None and (
        top == first or re.search(rf"(?<![\w./-]){re.escape(first)}/?(?![\w./-])", told) is None
    )


def _moved(place: Place, step: Instruction, told: str) -> Iterator[Finding]:
    """A virtual environment at another path: the scripts in it name the Python of the first one."""
    source, goal = step.values[0].rstrip("/"), step.values[-1].rstrip("/")
    is_venv = re.search(rf"venv (?:\S+ )*{re.escape(source)}(?:\s|$)", told) is not None
    if len(step.values) != 2 or not is_venv or goal == source or "$" in goal or not goal.startswith("/"):
        return
    steps = last_start(place)
    start = steps.get("ENTRYPOINT") or steps.get("CMD")
    program = posixpath.basename(words_of(start)[0]) if start is not None and start.values else ""
    is_script = LAUNCHED.match(program) is not None and not program.startswith("python")
    yield OTHER.found(
        place,
        step,
        f"the environment was made as {source}: its scripts begin with `#!{source}/bin/python`, which is "
        "not here",
        f"COPY {' '.join([*step.flags, *step.values])}",
        f"copy it to {source}",
        level=Level.PROBLEM if is_script else Level.WARNING,
    )


def packages_of_another_python(place: Place) -> Iterator[Finding]:
    """`…/python3.10/dist-packages`, copied to where Python 3.8 runs."""
    mine = place.base.python
    if mine is None or place.has_own_python or place.base.family not in KNOWN:
        return
    for step in place.stage.instructions:
        found = re.search(r"/python(3\.\d+)/(?:site|dist)-packages", step.values[-1] if step.values else "")
        if step.word == "COPY" and step.flag("from") and found is not None and found[1] != mine:
            yield OTHER_PYTHON.found(
                place,
                step,
                f"the packages are those of Python {found[1]}, and {place.base.reference} has {mine}: `No "
                "module named …`",
                f"COPY {' '.join(step.values)}"[:140],
                "use the same system and Python in both stages",
            )


RULES = (not_made_in_stage, packages_of_another_python)

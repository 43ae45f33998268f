"""Rules about COPY --from: paths of the other stage, moved environments, another Python (29, 40)."""

import posixpath
import re
from collections.abc import Iterator

from paceline.images.lint.dockerfile import Instruction, substituted
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.commands import OTHER_PYTHON
from paceline.images.lint.rules.container.interpreter import KNOWN, LAUNCHED, OTHER
from paceline.images.lint.rules.container.start import argv_of, last_start
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

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


def not_made_in_stage(view: StageView) -> Iterator[Finding]:
    """COPY --from=STAGE PATH against every word of that stage."""
    for step in view.stage.instructions:
        stage_name = step.flag("from") if step.word == "COPY" else None
        source = next(
            (s for s in view.docker.stages if stage_name and stage_name.lower() in (s.name, str(s.number))),
            None,
        )
        if source is None or source.number >= view.stage.number or len(step.values) < 2:
            continue
        chain = view.docker.chain(source)
        values = view.docker.variables(source)
        script = " ".join(
            substituted(" ".join([*step.values, *step.flags]), values)
            for stage in chain
            for step in stage.instructions
        )
        for written in step.values[:-1]:
            path = substituted(written, values).rstrip("/")
            top = "/".join(path.split("/")[:3])
            is_plain = re.fullmatch(r"/[\w./-]+", path) is not None and not _OF_BASES.match(path)
            if (
                is_plain
                and _is_unmentioned(path, top, script)
                and not re.search(r"\.sh\b|make\b|cmake|<<", script)
            ):
                yield NOT_MADE.finding(
                    view,
                    step,
                    f"no instruction of stage {stage_name} mentions {top}: `not found`",
                    f"COPY --from={stage_name} {' '.join(step.values)}",
                    "copy the path that the stage fills",
                )
                return
        yield from _moved(view, step, script)


def _is_unmentioned(path: str, top: str, script: str) -> bool:
    first = f"/{path.split('/')[1]}"
    return re.search(rf"(?<![\w.-]){re.escape(top)}(?![\w-])", script) is None and (
        top == first or re.search(rf"(?<![\w./-]){re.escape(first)}/?(?![\w./-])", script) is None
    )


def _moved(view: StageView, step: Instruction, script: str) -> Iterator[Finding]:
    """A virtual environment at another path: the scripts in it name the Python of the first one."""
    source = step.values[0].rstrip("/")
    goal = step.values[-1].rstrip("/")
    is_venv = re.search(rf"venv (?:\S+ )*{re.escape(source)}(?:\s|$)", script) is not None
    if len(step.values) != 2 or not is_venv or goal == source or "$" in goal or not goal.startswith("/"):
        return
    steps = last_start(view)
    start = steps.get("ENTRYPOINT") or steps.get("CMD")
    program = posixpath.basename(argv_of(start)[0]) if start is not None and start.values else ""
    is_script = LAUNCHED.match(program) is not None and not program.startswith("python")
    yield OTHER.finding(
        view,
        step,
        f"the environment was made as {source}: its scripts begin with `#!{source}/bin/python`, which is "
        "not here",
        f"COPY {' '.join([*step.flags, *step.values])}",
        f"copy it to {source}",
        level=Level.PROBLEM if is_script else Level.WARNING,
    )


def packages_of_another_python(view: StageView) -> Iterator[Finding]:
    """`…/python3.10/dist-packages`, copied to where Python 3.8 runs."""
    python = view.base.python
    if python is None or view.has_own_python or view.base.family not in KNOWN:
        return
    for step in view.stage.instructions:
        match = re.search(r"/python(3\.\d+)/(?:site|dist)-packages", step.values[-1] if step.values else "")
        if step.word == "COPY" and step.flag("from") and match is not None and match[1] != python:
            yield OTHER_PYTHON.finding(
                view,
                step,
                f"the packages are those of Python {match[1]}, and {view.base.reference} has {python}: `No "
                "module named …`",
                f"COPY {' '.join(step.values)}"[:140],
                "use the same system and Python in both stages",
            )


RULES = (not_made_in_stage, packages_of_another_python)

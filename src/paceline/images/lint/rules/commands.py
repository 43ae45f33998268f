"""Rules about commands that fail whatever they install: shells, variables, files and stages (26, 27, 29, 31).

Each rule needs the whole chain of a stage to be known: a script of the user's own, or a base that the list
does not know, may have done what seems to be missing.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches

from paceline.images.lint.bases import read_base
from paceline.images.lint.dockerfile import Command, Instruction, Word, argument_values, env_values
from paceline.images.lint.edits import respelled
from paceline.images.lint.installs import PipInstall, conditional_commands
from paceline.images.lint.project import Change, Finding, Level, edits_of, insertion
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

REDIRECT = Pattern(
    number=26,
    id="unquoted-range",
    what="A version range without quotes: the shell takes `>` and `<` as redirections.",
    fix="the requirement in quotes",
)
REFUSED = Pattern(
    number=26,
    id="no-such-option",
    what="pip is given an option or a protocol that does not exist (any more): `-y`, `git://`.",
    fix="`https://` in the place of `git://`; `-y` goes",
)
SCOPE = Pattern(
    number=27,
    id="argument-out-of-scope",
    what="An ARG above the first FROM is used in a stage that does not declare it: it is empty there.",
    fix="`ARG NAME` in the stage",
)
NO_STAGE = Pattern(
    number=29,
    id="no-such-stage",
    what="`COPY --from` names a stage that does not exist, or comes later.",
    fix="only reported: the name that is near",
)
OTHER_PYTHON = Pattern(
    number=29,
    id="stages-differ",
    what="Installed packages are copied from a stage with another Python: the Python here does not see them.",
    fix="only reported: the same Python in both stages",
)
SIGNALS = Pattern(
    number=31,
    id="signals-lost",
    what="CMD or ENTRYPOINT in shell form: /bin/sh is process 1, and SIGTERM does not reach the training.",
    fix="only reported: the exec form",
    level=Level.WARNING,
)
PATTERNS = (
    REDIRECT,
    REFUSED,
    SCOPE,
    NO_STAGE,
    OTHER_PYTHON,
    SIGNALS,
)
_SYSTEMS = ("python", "debian", "ubuntu", "cuda")  # families whose official images are known well enough
_BY_BASE = re.compile(r"^(?:PYTHON|CUDA|NV|NCCL|TARGET|BUILD)")  # set by base images and by BuildKit
# Options that a command of uv or pip refuses; where releases differ, an option is not listed.
_UNKNOWN_OPTIONS = {
    "pip": frozenset(
        [
            "-y",
            "--yes",
            "--frozen",
            "--locked",
            "--no-dev",
            "--all-extras",
            "--torch-backend",
            "--use-mirrors",
            "--process-dependency-links",
        ]
    ),
    "uv": frozenset(
        ["-y", "--yes", "--user", "--frozen", "--locked", "--root-user-action", "--progress-bar"]
    ),
    "uv sync": frozenset(["-y", "--yes", "--system", "--user", "--requirement", "--break-system-packages"]),
}


def _own_steps(place: Place) -> list[Instruction]:
    return place.stage.instructions


def unquoted_range(place: Place) -> Iterator[Finding]:
    for step in _own_steps(place):
        words = [(by, word) for by in place.pip if by.instruction is step for word in by.command.words]
        bad = [(by, word) for by, word in words if _is_range(word) and word.start > by.behind]
        if not bad or step.is_json:
            continue
        changes = [Change(word.start, word.end, f'"{word.text}"') for _, word in bad]
        can = all('"' not in word.text and "$" not in word.text for _, word in bad)
        first = bad[0][1]
        reads = "<" in first.text
        yield REDIRECT.found(
            place,
            step,
            f"the shell reads from a file for `{first.text}`: `cannot open`"
            if reads
            else f"the shell writes to a file for `{first.text}`: the range is ignored",
            f"{first.text} without quotes",
            f'write "{first.text}"',
            edits_of(place.dockerfile, changes) if can else (),
        )


def _is_range(word: Word) -> bool:
    """`torch>=2` and `numpy<2`, not `x>/dev/null` or `x>file`."""
    if word.redirect is None:
        return False
    name, rest = word.text[: word.redirect], word.text[word.redirect :]
    return re.fullmatch(r"[A-Za-z][\w.\-\[\],]*", name) is not None and (
        re.match(r"[<>]=?\d", rest) is not None or rest.startswith((">=", "<="))
    )


def no_such_option(place: Place) -> Iterator[Finding]:
    """`pip install -y` and `git+git://`: pip has no such option, and GitHub does not serve that protocol."""
    for by in place.commands_of_pip:
        flag = _unknown_option(place, by)
        old = next((one for one in place.asked_by(by) if "git+git://github.com" in one.text), None)
        if flag:
            verb = "uv sync" if by.tool == "uv sync" else "uv pip" if by.is_uv else "pip install"
            yield REFUSED.found(
                place,
                by.instruction,
                f"{verb} has no option {flag}: it ends with an error",
                " ".join(by.command.texts[:6]),
                "leave it out" if flag != "-y" else "leave it out: pip install asks for nothing",
            )
        elif old is not None:
            new = old.text.replace("git+git://", "git+https://")
            yield REFUSED.found(
                place,
                old,
                "GitHub no longer serves git://: `The unauthenticated git protocol is no longer supported`",
                old.text,
                f"write {new}",
                respelled(place, old, new),
            )


def invalid_requirement(place: Place) -> Iterator[Finding]:
    """`torch=2.1.0` and `torch == 2.1.0`: pip takes neither."""
    single = re.compile(r"^[A-Za-z][\w.-]*(?:\[[\w,-]*\])?=[\dv][\w.*]*$")
    for by in [one for one in place.commands_of_pip if one.is_pip and not one.instruction.is_json]:
        words = [word.text for word in by.command.words if word.start > by.behind]
        bad = next((word for word in words if single.match(word) or word in ("==", "~=", "!=")), None)
        listed = [(one, line) for one in place.files_of(by) for line in enumerate(one.text.splitlines(), 1)]
        in_file = next(
            (
                (f, n, t.strip())
                for f, (n, t) in listed
                if f.path.endswith(".txt") and single.match(t.strip())
            ),
            None,
        )
        if bad is None and in_file is None:
            continue
        shown = (
            bad if bad is not None or in_file is None else f"{in_file[2]} ({in_file[0].path}:{in_file[1]})"
        )
        yield REFUSED.found(
            place,
            by.instruction,
            f"`{shown}` is no requirement: `Invalid requirement`",
            " ".join(by.command.texts[:8]),
            "write `==`, without blanks",
        )


def removal_asks(place: Place) -> Iterator[Finding]:
    """`pip uninstall` asks for confirmation, and a build cannot answer: `EOFError`."""
    for step in _own_steps(place):
        maybe = conditional_commands(step)
        for command in step.commands:
            words = command.texts
            is_pip = (
                any(re.search(r"(?:^|/)pip3?(?:\.\d+)?$", word) for word in words[:3]) and "uv" not in words
            )
            if "uninstall" not in words or not is_pip or id(command) in maybe:
                continue
            if any(re.fullmatch(r"-y|--y(?:es?)?", word) for word in words) or re.search(
                r"yes\b|\|\||echo", step.values[0]
            ):
                continue
            names = set(words[words.index("uninstall") + 1 :])
            by_base = (
                {"torch", "torchvision", "torchaudio"} if place.base.family in ("pytorch", "ngc") else set()
            )
            there = {one.asked.name for one in place.installed} | by_base | {"pip", "setuptools"}
            yield REFUSED.found(
                place,
                step,
                "pip uninstall asks for confirmation, and a build has no terminal to answer from: `EOFError`",
                " ".join(words[:6]),
                "add -y",
                level=Level.PROBLEM if names & there else Level.WARNING,
            )


def _unknown_option(place: Place, by: PipInstall) -> str:
    """An option that this command is known not to have; abbreviations of pip's options are options."""
    unknown = _UNKNOWN_OPTIONS.get(by.tool, frozenset())
    flags = {word.partition("=")[0] for word in by.flags}
    flags |= {f"--{name}" for name in by.options}
    if by.tool == "pip" and place.base.family == "python":
        unknown |= {"--system"}  # Debian's own pip had it
    return min(flags & unknown, default="")


def argument_out_of_scope(place: Place) -> Iterator[Finding]:
    outside = {name for step in place.docker.arguments for name in argument_values(step)}
    known: set[str] = set()
    chain = place.docker.chain(place.stage)
    for step in [step for one in chain[:-1] for step in one.instructions]:
        known |= set(
            argument_values(step) if step.word == "ARG" else env_values(step) if step.word == "ENV" else ()
        )
    seen: set[str] = set()
    for step in _own_steps(place):
        known |= set(
            argument_values(step) if step.word == "ARG" else env_values(step) if step.word == "ENV" else ()
        )
        if step.word not in ("RUN", "ENV"):
            continue
        text = place.docker.text.splitlines()[step.first - 1 : step.last]
        line = "\n".join(one for one in text if not one.lstrip().startswith("#"))
        for name in sorted(outside - known - seen):
            used = re.search(rf"\$\{{{name}\}}|\${name}(?!\w)", line)
            is_set = re.search(rf"\b{name}=|\bread\s+{name}\b|for\s+{name}\s+in", line)
            if used is None or is_set or (step.word == "ENV" and place.base.family == ""):
                continue
            seen.add(name)
            fails = any(
                re.search(rf"\$\{{?{name}\b", " ".join(command.texts)) and _is_needed(command)
                for command in step.commands
                if id(command) not in conditional_commands(step)
            )
            yield SCOPE.found(
                place,
                step,
                f"{name} is declared above the first FROM alone: in this stage ${name} is empty",
                line.strip().splitlines()[0][:120],
                f"add `ARG {name}` to this stage, above its use",
                (insertion(place.dockerfile, place.stage.origin.last + 1, [f"ARG {name}"]),) if fails else (),
                level=Level.PROBLEM if fails else Level.WARNING,
            )


def _is_needed(command: Command) -> bool:
    """An installation or a download that an empty word breaks."""
    words = {word.rpartition("/")[2] for word in command.texts}
    return bool(
        words & {"pip", "pip3", "uv", "apt-get", "apt", "curl", "wget", "git", "conda", "mamba", "apk"}
    )


# Variables that the bases set by ENV: an ARG of the same name has no effect.
_SET_BY_BASE = {
    "cuda": frozenset({"CUDA_VERSION", "NVARCH", "NV_CUDNN_VERSION", "NVIDIA_VISIBLE_DEVICES"}),
    "python": frozenset({"PYTHON_VERSION", "PYTHON_SHA256", "GPG_KEY", "LANG"}),
    "pytorch": frozenset({"PYTORCH_VERSION"}),
}


def argument_without_effect(place: Place) -> Iterator[Finding]:
    family = "cuda" if re.search(r"nvidia/cuda(?:-dl-base)?$", place.base.name) else place.base.family
    fixed = _SET_BY_BASE.get(family, frozenset())
    for step in _own_steps(place):
        given = argument_values(step) if step.word == "ARG" else {}
        for name in sorted(fixed & given.keys()):
            outside = {n: v for one in place.docker.arguments for n, v in argument_values(one).items()}
            value = given[name] or outside.get(name, "")
            if not value or value in (place.base.tag or ""):
                continue
            later = [one for one in _own_steps(place) if one.first > step.first]
            used = next((o for o in later if re.search(rf"\$\{{?{name}\b", " ".join(o.values))), None)
            own = [env_values(one).get(name) for one in later if one.word == "ENV"]
            if used is None or any(text is not None and name not in text for text in own):
                continue
            yield SCOPE.found(
                place,
                used,
                f"{place.base.reference} sets {name} by ENV, which wins over ARG: {name} is not {value} here",
                f"ARG {name}={value}",
                "give the argument another name",
            )


def unset_variable(place: Place) -> Iterator[Finding]:
    """`torch==${TORCH}` where no ARG, ENV or step sets TORCH: pip gets `torch==`."""
    if place.base.family not in _SYSTEMS:
        return
    outside = {name for step in place.docker.arguments for name in argument_values(step)}
    for by in place.pip:
        if by.instruction not in _own_steps(place) or by.instruction.is_json:
            continue
        values = place.environment(by)
        before = [s for s in place.steps if s.word == "ARG" and s.first < by.instruction.first]
        declared = {n for s in before for n in argument_values(s)}
        line = " ".join(word for c in by.instruction.commands for word in c.texts)
        for word in by.command.words:
            found = re.search(r"[<>=]=\$\{?(\w+)\}?$", word.text)
            name = found[1] if found else ""
            if not name or name in values or name in declared or name in outside or _BY_BASE.match(name):
                continue
            if re.search(rf"\b{name}=|\bread\s+{name}\b|\bfor\s+{name}\b", line):
                continue
            yield SCOPE.found(
                place,
                by.instruction,
                f"nothing sets {name}: pip is asked for `{word.text.partition('$')[0]}`, which is no version",
                word.text,
                f"add `ARG {name}=…` to this stage, above its use",
            )
            return


# Names that people give to stages; no official image has one of them.
_NAMES_OF_STAGES = frozenset(
    ["build", "builder", "base", "deps", "dependencies", "compile", "compiler", "build-stage", "install"]
)


def no_such_stage(place: Place) -> Iterator[Finding]:
    names = [one.name for one in place.docker.stages if one.name is not None]
    before = {one.name for one in place.docker.stages[: place.stage.number]}
    for step in _own_steps(place):
        said = step.flag("from") if step.word in ("COPY", "ADD") else None
        if said is None or "$" in said or re.search(r"[/:.]", said):
            continue
        if said.isdigit():
            is_wrong = int(said) >= place.stage.number
        else:
            near = get_close_matches(said.lower(), names, n=1, cutoff=0.75)
            is_wrong = said.lower() not in before and (bool(near) or said.lower() in _NAMES_OF_STAGES)
        if is_wrong:
            yield NO_STAGE.found(
                place,
                step,
                f"no stage before this one is called {said}: it is taken for an image, which does not exist",
                f"--from={said}; stages: {', '.join(names) or 'none with a name'}",
                "name a stage that stands above this one",
            )


def stages_differ(place: Place) -> Iterator[Finding]:
    """A virtual environment and site-packages belong to one minor version of Python."""
    for step in _own_steps(place):
        said = step.flag("from") if step.word == "COPY" else None
        source = next((one for one in place.docker.stages if said in (one.name, str(one.number))), None)
        if source is None or source.number >= place.stage.number:
            continue
        theirs, mine = read_base(place.docker.chain(source)[0].base), place.base
        what = [value for value in step.values[:-1] if re.search(r"venv|site-packages|^/usr/local/?$", value)]
        are_known = theirs.python is not None and mine.python is not None and not place.has_own_python
        if theirs.family == mine.family == "python" and what and are_known and theirs.python != mine.python:
            yield OTHER_PYTHON.found(
                place,
                step,
                f"{what[0]} was made for Python {theirs.python}, and this stage has {mine.python}: "
                "`No module named …`",
                f"FROM {theirs.reference}; FROM {mine.reference}",
                "use the same Python in both stages",
            )


def signals_lost(place: Place) -> Iterator[Finding]:
    if not place.is_last:
        return
    last: dict[str, Instruction] = {}
    for one in place.steps:
        if one.word in ("CMD", "ENTRYPOINT"):
            last[one.word] = one
    step = last.get("ENTRYPOINT") or last.get("CMD")
    if step is None or step.is_json or not step.values or step not in _own_steps(place):
        return
    text = step.values[0].lstrip()
    trains = re.search(r"torchrun|deepspeed|accelerate|train|python", text)
    if trains and not text.startswith(("exec ", "[")) and not re.match(r"\S*tini|\S*dumb-init", text):
        yield SIGNALS.found(
            place,
            step,
            "/bin/sh is process 1: a cluster's SIGTERM does not reach the training, which then saves nothing",
            f"{step.word} {text[:80]}",
            f'write {step.word} ["…", "…"], or `exec` before the command',
        )


RULES = (
    no_such_stage,
    argument_out_of_scope,
    argument_without_effect,
    unset_variable,
    unquoted_range,
    no_such_option,
    invalid_requirement,
    removal_asks,
    stages_differ,
    signals_lost,
)

"""Rules about commands that fail whatever they install: shells, variables, files and stages (26, 27, 29, 31).

Each rule needs the whole chain of a stage to be known: a user's script, or a base that the list does not
contain, may have done what seems to be missing.
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
from paceline.images.lint.view import StageView

REDIRECT = Pattern(
    number=26,
    id="unquoted-range",
    what="A version range without quotes: the shell interprets `>` and `<` as redirections.",
    fix="the requirement in quotes",
)
REFUSED = Pattern(
    number=26,
    id="no-such-option",
    what="pip is given an option or a protocol that does not exist (any more): `-y`, `git://`.",
    fix="`https://` instead of `git://`; `-y` is removed",
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


def _own_steps(view: StageView) -> list[Instruction]:
    return view.stage.instructions


def unquoted_range(view: StageView) -> Iterator[Finding]:
    for step in _own_steps(view):
        arguments = [(by, word) for by in view.pip if by.instruction is step for word in by.command.words]
        bad = [(by, word) for by, word in arguments if _is_range(word) and word.start > by.behind]
        if not bad or step.is_json:
            continue
        changes = [Change(word.start, word.end, f'"{word.text}"') for _, word in bad]
        can = all('"' not in word.text and "$" not in word.text for _, word in bad)
        first = bad[0][1]
        reads = "<" in first.text
        yield REDIRECT.finding(
            view,
            step,
            f"the shell reads from a file for `{first.text}`: `cannot open`"
            if reads
            else f"the shell writes to a file for `{first.text}`: the range is ignored",
            f"{first.text} without quotes",
            f'write "{first.text}"',
            edits_of(view.dockerfile, changes) if can else (),
        )


def _is_range(word: Word) -> bool:
    """`torch>=2` and `numpy<2`, not `x>/dev/null` or `x>file`."""
    if word.redirect is None:
        return False
    name = word.text[: word.redirect]
    rest = word.text[word.redirect :]
    return re.fullmatch(r"[A-Za-z][\w.\-\[\],]*", name) is not None and (
        re.match(r"[<>]=?\d", rest) is not None or rest.startswith((">=", "<="))
    )


def no_such_option(view: StageView) -> Iterator[Finding]:
    """`pip install -y` and `git+git://`: pip has no such option, and GitHub does not serve that protocol."""
    for by in view.commands_of_pip:
        flag = _unknown_option(view, by)
        old = next((spec for spec in view.specs_by(by) if "git+git://github.com" in spec.text), None)
        if flag:
            verb = "uv pip" if by.is_uv else "pip install"
            if by.tool == "uv sync":
                verb = by.tool
            yield REFUSED.finding(
                view,
                by.instruction,
                f"{verb} has no option {flag}: it ends with an error",
                " ".join(by.command.texts[:6]),
                "leave it out" if flag != "-y" else "leave it out: pip install does not prompt",
            )
        elif old is not None:
            new = old.text.replace("git+git://", "git+https://")
            yield REFUSED.finding(
                view,
                old,
                "GitHub no longer serves git://: `The unauthenticated git protocol is no longer supported`",
                old.text,
                f"write {new}",
                respelled(view, old, new),
            )


def invalid_requirement(view: StageView) -> Iterator[Finding]:
    """`torch=2.1.0` and `torch == 2.1.0`: pip takes neither."""
    single = re.compile(r"^[A-Za-z][\w.-]*(?:\[[\w,-]*\])?=[\dv][\w.*]*$")
    for by in [
        install for install in view.commands_of_pip if install.is_pip and not install.instruction.is_json
    ]:
        arguments = [word.text for word in by.command.words if word.start > by.behind]
        bad = next((word for word in arguments if single.match(word) or word in ("==", "~=", "!=")), None)
        listed = [(file, line) for file in view.files_of(by) for line in enumerate(file.text.splitlines(), 1)]
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
        yield REFUSED.finding(
            view,
            by.instruction,
            f"`{shown}` is not a requirement: `Invalid requirement`",
            " ".join(by.command.texts[:8]),
            "write `==`, without spaces",
        )


def removal_asks(view: StageView) -> Iterator[Finding]:
    """`pip uninstall` asks for confirmation, and a build cannot answer: `EOFError`."""
    for step in _own_steps(view):
        conditional = conditional_commands(step)
        for command in step.commands:
            argv = command.texts
            is_pip = (
                any(re.search(r"(?:^|/)pip3?(?:\.\d+)?$", word) for word in argv[:3]) and "uv" not in argv
            )
            if "uninstall" not in argv or not is_pip or id(command) in conditional:
                continue
            if any(re.fullmatch(r"-y|--y(?:es?)?", word) for word in argv) or re.search(
                r"yes\b|\|\||echo", step.values[0]
            ):
                continue
            names = set(argv[argv.index("uninstall") + 1 :])
            by_base = (
                {"torch", "torchvision", "torchaudio"} if view.base.family in ("pytorch", "ngc") else set()
            )
            installed = {package.spec.name for package in view.installed} | by_base | {"pip", "setuptools"}
            yield REFUSED.finding(
                view,
                step,
                "pip uninstall asks for confirmation, and a build has no terminal: `EOFError`",
                " ".join(argv[:6]),
                "add -y",
                level=Level.PROBLEM if names & installed else Level.WARNING,
            )


def _unknown_option(view: StageView, by: PipInstall) -> str:
    """An option that this command is known not to have; abbreviations of pip's options are options."""
    unknown = _UNKNOWN_OPTIONS.get(by.tool, frozenset())
    flags = {word.partition("=")[0] for word in by.flags}
    flags |= {f"--{name}" for name in by.options}
    if by.tool == "pip" and view.base.family == "python":
        unknown |= {"--system"}  # Debian's own pip had it
    return min(flags & unknown, default="")


def _names_set_by(step: Instruction) -> set[str]:
    """The variables that an ARG or ENV sets."""
    if step.word == "ARG":
        return set(argument_values(step))
    return set(env_values(step)) if step.word == "ENV" else set()


def argument_out_of_scope(view: StageView) -> Iterator[Finding]:
    outside = {name for step in view.docker.arguments for name in argument_values(step)}
    known: set[str] = set()
    chain = view.docker.chain(view.stage)
    for step in [step for stage in chain[:-1] for step in stage.instructions]:
        known |= _names_set_by(step)
    seen: set[str] = set()
    for step in _own_steps(view):
        known |= _names_set_by(step)
        if step.word not in ("RUN", "ENV"):
            continue
        text = view.docker.text.splitlines()[step.first - 1 : step.last]
        line = "\n".join(part for part in text if not part.lstrip().startswith("#"))
        for name in sorted(outside - known - seen):
            used = re.search(rf"\$\{{{name}\}}|\${name}(?!\w)", line)
            is_set = re.search(rf"\b{name}=|\bread\s+{name}\b|for\s+{name}\s+in", line)
            if used is None or is_set or (step.word == "ENV" and view.base.family == ""):
                continue
            seen.add(name)
            fails = any(
                re.search(rf"\$\{{?{name}\b", " ".join(command.texts)) and _is_needed(command)
                for command in step.commands
                if id(command) not in conditional_commands(step)
            )
            yield SCOPE.finding(
                view,
                step,
                f"{name} is declared above the first FROM alone: in this stage ${name} is empty",
                line.strip().splitlines()[0][:120],
                f"add `ARG {name}` to this stage, above its use",
                (insertion(view.dockerfile, view.stage.origin.last + 1, [f"ARG {name}"]),) if fails else (),
                level=Level.PROBLEM if fails else Level.WARNING,
            )


def _is_needed(command: Command) -> bool:
    """An installation or a download that an empty word breaks."""
    programs = {word.rpartition("/")[2] for word in command.texts}
    return bool(
        programs & {"pip", "pip3", "uv", "apt-get", "apt", "curl", "wget", "git", "conda", "mamba", "apk"}
    )


# Variables that the bases set by ENV: an ARG of the same name has no effect.
_SET_BY_BASE = {
    "cuda": frozenset({"CUDA_VERSION", "NVARCH", "NV_CUDNN_VERSION", "NVIDIA_VISIBLE_DEVICES"}),
    "python": frozenset({"PYTHON_VERSION", "PYTHON_SHA256", "GPG_KEY", "LANG"}),
    "pytorch": frozenset({"PYTORCH_VERSION"}),
}


def argument_without_effect(view: StageView) -> Iterator[Finding]:
    family = "cuda" if re.search(r"nvidia/cuda(?:-dl-base)?$", view.base.name) else view.base.family
    fixed = _SET_BY_BASE.get(family, frozenset())
    for step in _own_steps(view):
        given = argument_values(step) if step.word == "ARG" else {}
        for name in sorted(fixed & given.keys()):
            outside = {
                n: v for argument in view.docker.arguments for n, v in argument_values(argument).items()
            }
            value = given[name] or outside.get(name, "")
            if not value or value in (view.base.tag or ""):
                continue
            later = [instruction for instruction in _own_steps(view) if instruction.first > step.first]
            used = next((o for o in later if re.search(rf"\$\{{?{name}\b", " ".join(o.values))), None)
            own = [env_values(step).get(name) for step in later if step.word == "ENV"]
            if used is None or any(text is not None and name not in text for text in own):
                continue
            yield SCOPE.finding(
                view,
                used,
                f"{view.base.reference} sets {name} by ENV, which wins over ARG: {name} is not {value} here",
                f"ARG {name}={value}",
                "give the argument another name",
            )


def unset_variable(view: StageView) -> Iterator[Finding]:
    """`torch==${TORCH}` where no ARG, ENV or step sets TORCH: pip gets `torch==`."""
    if view.base.family not in _SYSTEMS:
        return
    outside = {name for step in view.docker.arguments for name in argument_values(step)}
    for by in view.pip:
        if by.instruction not in _own_steps(view) or by.instruction.is_json:
            continue
        values = view.environment(by)
        before = [s for s in view.steps if s.word == "ARG" and s.first < by.instruction.first]
        declared = {n for s in before for n in argument_values(s)}
        line = " ".join(word for c in by.instruction.commands for word in c.texts)
        for word in by.command.words:
            match = re.search(r"[<>=]=\$\{?(\w+)\}?$", word.text)
            name = match[1] if match else ""
            if not name or name in values or name in declared or name in outside or _BY_BASE.match(name):
                continue
            if re.search(rf"\b{name}=|\bread\s+{name}\b|\bfor\s+{name}\b", line):
                continue
            yield SCOPE.finding(
                view,
                by.instruction,
                f"{name} is not set: pip gets `{word.text.partition('$')[0]}`, which is not a version",
                word.text,
                f"add `ARG {name}=…` to this stage, above its use",
            )
            return


# Names that people give to stages; no official image has one of them.
_NAMES_OF_STAGES = frozenset(
    ["build", "builder", "base", "deps", "dependencies", "compile", "compiler", "build-stage", "install"]
)


def no_such_stage(view: StageView) -> Iterator[Finding]:
    names = [stage.name for stage in view.docker.stages if stage.name is not None]
    before = {stage.name for stage in view.docker.stages[: view.stage.number]}
    for step in _own_steps(view):
        stage = step.flag("from") if step.word in ("COPY", "ADD") else None
        if stage is None or "$" in stage or re.search(r"[/:.]", stage):
            continue
        if stage.isdigit():
            is_wrong = int(stage) >= view.stage.number
        else:
            near = get_close_matches(stage.lower(), names, n=1, cutoff=0.75)
            is_wrong = stage.lower() not in before and (bool(near) or stage.lower() in _NAMES_OF_STAGES)
        if is_wrong:
            yield NO_STAGE.finding(
                view,
                step,
                f"no stage before this one is called {stage}: it is interpreted as an image, which does not "
                "exist",
                f"--from={stage}; stages: {', '.join(names) or 'none with a name'}",
                "name a stage above this one",
            )


def stages_differ(view: StageView) -> Iterator[Finding]:
    """A virtual environment and site-packages belong to one minor version of Python."""
    for step in _own_steps(view):
        stage_name = step.flag("from") if step.word == "COPY" else None
        source = next(
            (stage for stage in view.docker.stages if stage_name in (stage.name, str(stage.number))), None
        )
        if source is None or source.number >= view.stage.number:
            continue
        theirs = read_base(view.docker.chain(source)[0].base)
        base = view.base
        copied = [
            value for value in step.values[:-1] if re.search(r"venv|site-packages|^/usr/local/?$", value)
        ]
        are_known = theirs.python is not None and base.python is not None and not view.has_own_python
        if theirs.family == base.family == "python" and copied and are_known and theirs.python != base.python:
            yield OTHER_PYTHON.finding(
                view,
                step,
                f"{copied[0]} was made for Python {theirs.python}, and this stage has {base.python}: "
                "`No module named …`",
                f"FROM {theirs.reference}; FROM {base.reference}",
                "use the same Python in both stages",
            )


def signals_lost(view: StageView) -> Iterator[Finding]:
    if not view.is_last:
        return
    last: dict[str, Instruction] = {}
    for instruction in view.steps:
        if instruction.word in ("CMD", "ENTRYPOINT"):
            last[instruction.word] = instruction
    step = last.get("ENTRYPOINT") or last.get("CMD")
    if step is None or step.is_json or not step.values or step not in _own_steps(view):
        return
    text = step.values[0].lstrip()
    trains = re.search(r"torchrun|deepspeed|accelerate|train|python", text)
    if trains and not text.startswith(("exec ", "[")) and not re.match(r"\S*tini|\S*dumb-init", text):
        yield SIGNALS.finding(
            view,
            step,
            "/bin/sh is process 1: a cluster's SIGTERM does not reach the training process, which then "
            "writes no checkpoint",
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

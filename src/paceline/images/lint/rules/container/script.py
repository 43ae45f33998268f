"""Rules about the script that the container starts: it must be there, and its shell must run it (29, 41).

`Start` is what the container runs: the words of ENTRYPOINT and CMD, the commands of the shell script they
name, and the Python file that these run, with its place in the build context.
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from paceline.images.lint.dockerfile import Command, Instruction, commands_in
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.container.start import IGNORED, argv_of, last_start
from paceline.images.lint.rules.context import has_code
from paceline.images.lint.rules.paths import OF_THE_SYSTEM, Files, followed, joined
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.shells import bash_syntax, runs_dash
from paceline.images.lint.shell_parser import fault_in
from paceline.images.lint.view import StageView

NO_SCRIPT = Pattern(
    number=29,
    id="script-not-copied",
    what="ENTRYPOINT or CMD runs a script that is not among the files copied to that folder.",
    fix="only reported: COPY it, or the name of the existing one",
)
NOT_RUN = Pattern(
    number=41,
    id="script-not-run",
    what="The script of ENTRYPOINT or CMD cannot be run: Windows line ends, no `#!` line, not executable.",
    fix="only reported: what is missing",
)
PATTERNS = (NO_SCRIPT, NOT_RUN)
_RUNS_SCRIPT = re.compile(
    r"(?:^|/)(?:python[\d.]*|bash|sh|torchrun|deepspeed|accelerate|uv|conda|env|exec|tini|dumb-init)$"
)
_WRAPPERS = re.compile(r"(?:^|/)(?:tini|dumb-init|env|exec|gosu|numactl|nice)$")
_FILE_OPTION = re.compile(
    r"^--?(?:config(?:[_-]file)?|deepspeed(?:[_-]config)?|ds[_-]config|hostfile|fsdp[_-]config|cfg)$"
)
_STARTERS = re.compile(r"(?:^|/)(?:python[\d.]*|torchrun|deepspeed|accelerate|mpirun)$")


@dataclass(frozen=True, slots=True)
class Start:
    step: Instruction  # the one that names the program
    words: tuple[str, ...]
    files: Files  # files of the image
    script: str = ""  # a shell script: its path in the image
    text: str = ""  # text of that script, if known

    @property
    def commands(self) -> list[tuple[str, ...]]:
        """The words themselves, or the commands of the script."""
        if not self.text:
            return [self.words]
        return [command.texts for command in _logical_commands(self.text)]


def start_of(view: StageView) -> Start | None:
    """Start command of the container; None if the base or a shell's text decides."""
    if not view.is_last or any(step.word in ("ONBUILD", "VOLUME") for step in view.steps):
        return None
    steps = last_start(view)
    entry = steps.get("ENTRYPOINT")
    cmd = steps.get("CMD")
    step = entry or cmd
    if step is None or id(step) not in view.own_steps or not step.values:
        return None
    argv = argv_of(step)
    if entry is not None and cmd is not None and entry.is_json and cmd.is_json:
        argv += cmd.values
    if not step.is_json and re.search(r"[;&|]", step.values[0]):
        return None
    states = [state for _, state, _ in followed(view)]
    files = states[-1]
    while argv and (_WRAPPERS.search(argv[0]) or argv[0].startswith("-") or re.match(r"^\w+=", argv[0])):
        argv = argv[1:]
    if not argv:
        return None
    start = Start(step, tuple(argv), files)
    at = 1 if re.search(r"(?:^|/)(?:ba|da)?sh$", argv[0]) and len(argv) > 1 else 0
    if not argv[at].endswith(".sh") and not (
        at == 0 and "/" in argv[0] and "." not in posixpath.basename(argv[0])
    ):
        return start
    path = joined(files.folder, argv[at])
    source = None if path is None else files.origin.get(path)
    text = None if source is None else view.project.code_text(source)
    return Start(step, tuple(argv), files, script=path or "", text=text or "")


def _logical_commands(text: str) -> list[Command]:
    lines = re.sub(r"\\\r?\n", " ", text)
    return commands_in(lines, 0, len(lines)) if "<<" not in lines else []


def script_missing(view: StageView) -> Iterator[Finding]:
    start = start_of(view)
    if start is None or start.files.is_open:
        return
    missing = _missing_file(view, start)
    if missing is None:
        return
    path, is_script = missing
    ending = posixpath.splitext(path)[1]
    files = start.files
    siblings = sorted(
        name
        for name in files.exact
        if posixpath.dirname(name) == posixpath.dirname(path) and name.endswith(ending)
    )
    # Without the whole context, the code may be mounted when the container starts.
    listed = {posixpath.basename(path) for path in view.project.paths or ()}
    is_whole = (
        any(path.endswith((".py", ".sh")) for path in files.exact) or posixpath.basename(path) in listed
    )
    if not siblings and not (has_code(view) and is_whole):
        return
    same = sorted(name for name in files.exact if posixpath.basename(name) == posixpath.basename(path))
    advice = "COPY it"
    if same:
        advice = f"write {same[0]}"
    elif siblings:
        advice = f"COPY it, or start {posixpath.basename(siblings[0])}"
    yield NO_SCRIPT.finding(
        view,
        start.step,
        f"the container {'starts with' if is_script else 'reads'} {path}, which no step has created: "
        "`No such file or directory`",
        f"{start.step.word} {' '.join(start.words)}"[:140],
        advice,
    )


def _missing_file(view: StageView, start: Start) -> tuple[str, bool] | None:
    """The first script, module or configuration that is named and not there."""
    folder = start.files.folder
    if (
        start.script
        and not start.text
        and start.script.endswith(".sh")
        and not _is_there(start.files, start.script)
    ):
        return start.script, True
    for argv in start.commands:
        if argv[0] in ("cd", "pushd", "source", ".", "export") and start.text:
            if argv[0] in ("cd", "pushd"):
                return None
            continue
        if argv[0] == "exec" or _WRAPPERS.search(argv[0]):
            argv = argv[1:]
        if not argv or (start.text and not _STARTERS.search(argv[0])):
            continue
        at = next((n for n, word in enumerate(argv) if re.fullmatch(r"[\w./-]+\.(?:py|sh)", word)), None)
        is_run = at is not None and (
            at == 0 or (_RUNS_SCRIPT.search(argv[0]) is not None and not re.match(r"^--[^=]*$", argv[at - 1]))
        )
        if at is not None and is_run and not {"-m", "-c"} & set(argv[:at]):
            path = joined(folder, argv[at])
            if path is not None and not _is_there(start.files, path):
                return path, True
        for option, value in [*pairwise(argv), *(w.partition("=")[::2] for w in argv if "=" in w)]:
            is_file = re.fullmatch(r"[\w-][\w./-]*\.(?:ya?ml|json|toml)", value) is not None
            path = joined(folder, value) if is_file and _FILE_OPTION.match(option) else None
            if path is not None and has_code(view) and not _is_there(start.files, path):
                return path, False
        module = _missing_module(view, start, argv)
        if module:
            return module, True
    return None


def _missing_module(view: StageView, start: Start, argv: tuple[str, ...]) -> str:
    """`python -m package.module` if the folder of the package exists, and the module does not."""
    at = next(
        (n for n, w in enumerate(argv[:-1]) if w == "-m" and re.search(r"python[\d.]*$", argv[0])), None
    )
    if at is None or start.files.folder is None or not has_code(view):
        return ""
    name = argv[at + 1]
    if not re.fullmatch(r"\w+(?:\.\w+)+", name) or name.split(".")[0] in (
        "torch",
        "accelerate",
        "deepspeed",
        "vllm",
    ):
        return ""
    path = posixpath.join(start.files.folder, name.replace(".", "/"))
    package = posixpath.join(start.files.folder, name.split(".")[0])
    is_package = any(path.startswith(f"{package}/") for path in start.files.exact)
    exists = any(start.files.may_hold(candidate) for candidate in (f"{path}.py", f"{path}/__main__.py"))
    return f"{path}.py" if is_package and not exists else ""


def _is_there(files: Files, path: str) -> bool:
    return OF_THE_SYSTEM.match(path) is not None or files.may_hold(path)


def script_not_run(view: StageView) -> Iterator[Finding]:
    start = start_of(view)
    if start is None or not start.text:
        return
    why, advice = _why_not_run(view, start)
    if why:
        yield NOT_RUN.finding(
            view,
            start.step,
            why,
            f"{start.step.word} {' '.join(start.words)}"[:120],
            advice,
        )
    steps = last_start(view)
    cmd = steps.get("CMD")
    takes = re.search(r"\$(?:[@*1-9]|\{[@*1-9#])|\bshift\b|getopts", start.text) is not None
    if cmd is not None and cmd is not start.step and not takes and cmd.values:
        yield IGNORED.finding(
            view,
            cmd,
            f"{posixpath.basename(start.script)} does not use its arguments (`$@`): CMD is ignored",
            f"{start.step.word} {' '.join(start.step.values)}; CMD {' '.join(cmd.values)}"[:140],
            'end the script with exec "$@"',
        )


def _why_not_run(view: StageView, start: Start) -> tuple[str, str]:
    text = start.text
    match = " ".join(view.words)
    name = posixpath.basename(start.script)
    is_direct = start.words[0].endswith(name)
    head = re.match(r"^#![ \t]*(\S+)(?:[ \t]+(\S+))?", text)
    converted = re.search(r"dos2unix|\\r", match) is not None
    if "\r\n" in text and not converted:
        return (
            f"{name} has Windows line ends: `no such file or directory`, or `$'\\r': command not found`",
            "save it with LF alone",
        )
    if is_direct and head is None and start.step.is_json:
        return (
            f"{name} has no `#!` line, and the exec form runs no shell: `exec format error`",
            "start it with #!/bin/sh",
        )
    shell = start.words[0]
    if is_direct:
        shell = "" if head is None else head[2] or head[1]
    if shell.endswith("bash") and view.base.system == "alpine" and "bash" not in view.system_packages:
        return (
            f"{name} is run by bash, which {view.base.reference} does not have: `not found`",
            "install bash, or use #!/bin/sh",
        )
    source = start.files.origin.get(start.script, "")
    chmod = re.search(r"chmod\b", match) or any(step.flag("chmod") is not None for step in view.steps)
    runnable = view.project.runnable
    if is_direct and runnable is not None and source not in runnable and not chmod:
        return (
            f"{name} is not executable: `permission denied`",
            f"add `RUN chmod +x {start.script}`, or COPY --chmod=755",
        )
    plain = text.replace("\r\n", "\n")
    fault = fault_in(plain)
    if fault is not None:
        return f"the shell cannot parse {name}: {fault}", "close what is open"
    is_sh = re.search(r"(?:^|/)(?:da)?sh$", shell) is not None
    bash = bash_syntax(plain) if is_sh and runs_dash(view, replace(start.step, is_json=False)) else None
    if bash is not None and not bash[2]:
        return f"{name} is run by sh, which is dash and has no `{bash[0]}`: `{bash[1]}`", "run it by bash"
    return "", ""


RULES = (script_missing, script_not_run)

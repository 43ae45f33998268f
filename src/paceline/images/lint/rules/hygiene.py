"""Rules about hygiene: layer order, .dockerignore, the root user, shared memory (20, 21)."""

import re
from collections.abc import Iterator

from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.project import Edit, Finding, Kind, Level, lines_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

ORDER = Pattern(
    number=20,
    id="layer-order",
    what="All code is copied before the requirements: every change of the code installs them again.",
    fix="the requirements file is copied first, the code after the installation",
    level=Level.WARNING,
)
CONTEXT = Pattern(
    number=20,
    id="no-dockerignore",
    what="`COPY .` copies unwanted folders into the image, such as .git.",
    fix="a .dockerignore that names them",
    level=Level.WARNING,
)
ROOT = Pattern(
    number=20,
    id="runs-as-root",
    what="The image runs as root.",
    fix="only reported: a USER, or `runAsUser` where it runs",
    level=Level.NOTE,
)
SHM = Pattern(
    number=21,
    id="small-shared-memory",
    what="Data loaders of several processes need more shared memory than a container gets (64 MB).",
    fix="only reported: `--shm-size`, `--ipc=host`, or a memory volume on /dev/shm",
    level=Level.NOTE,
)
PATTERNS = (ORDER, CONTEXT, ROOT, SHM)
_NAME_FILES = {"PIP_CONSTRAINT", "PIP_FIND_LINKS", "PIP_REQUIREMENT", "PIP_CONFIG_FILE"}
_UNWANTED = (".git", ".venv", "venv", "node_modules", "__pycache__", ".pytest_cache", ".mypy_cache")


def layer_order(view: StageView) -> Iterator[Finding]:
    steps = view.stage.instructions
    for at, copy in enumerate(steps[:-1]):
        if (
            copy.word != "COPY"
            or copy.flags
            or copy.values[:1] not in ((".",), ("./",))
            or len(copy.values) != 2
        ):
            continue
        run = steps[at + 1]
        pips = [by for by in view.pip if by.instruction is run]
        if (
            len(run.commands) != 1
            or len(pips) != 1
            or pips[0].specs
            or len(pips[0].values("requirement")) != 1
            or _needs_more(view, pips[0])
        ):
            return
        file = view.file_named(pips[0].values("requirement")[0])
        if file is None or any(spec.is_url for spec in file.specs) or file.options:
            return
        yield ORDER.finding(
            view,
            copy,
            "every change of the code reinstalls all requirements",
            f"COPY {' '.join(copy.values)} before pip install -r {file.path}",
            f"copy {file.path} alone first, and the rest after the installation",
            _swapped(view, copy, run, file.path, pips[0].values("requirement")[0]),
        )
        return


def _needs_more(view: StageView, by: PipInstall) -> bool:
    """Another file or folder of the context, such as constraints or wheels."""
    addresses = [value for name in ("find-links", "constraint", "editable") for value in by.values(name)]
    addresses += [value for name, value in view.environment(by).items() if name in _NAME_FILES]
    return any("://" not in value for value in addresses)


def _swapped(view: StageView, copy: Instruction, run: Instruction, path: str, named: str) -> tuple[Edit, ...]:
    """COPY FILE; RUN pip; COPY . where it stood before: only for steps of one line, one behind the other."""
    lines = lines_of(view.docker.text)
    if copy.first != copy.last or run.first != copy.last + 1 or named.startswith("/") or "$" in named:
        return ()
    if named != path or not lines[run.last - 1].endswith("\n"):
        return ()
    old = "".join(lines[copy.first - 1 : run.last])
    end = "\r\n" if lines[copy.first - 1].endswith("\r\n") else "\n"
    folder = copy.values[1].rstrip("/")
    first = f"COPY {path} {folder}/{path}{end}" if folder not in ("", ".") else f"COPY {path} ./{path}{end}"
    new = first + "".join(lines[run.first - 1 : run.last]) + lines[copy.first - 1]
    return (Edit(view.docker.path, copy.first, run.last, old, new),)


def no_dockerignore(view: StageView) -> Iterator[Finding]:
    project = view.project
    unwanted = [name for name in _UNWANTED if name in project.names]
    ignored = ".dockerignore", f"{project.dockerfile}.dockerignore"
    if not unwanted or any(project.has(name) or name in project.names for name in ignored):
        return
    for copy in view.stage.instructions:
        if (
            copy.word in ("COPY", "ADD")
            and copy.flag("from") is None
            and copy.values[:1] in ((".",), ("./",))
        ):
            text = "".join(f"{name}\n" for name in unwanted)
            yield CONTEXT.finding(
                view,
                copy,
                f"{', '.join(unwanted)} would be copied into the image",
                f"COPY {' '.join(copy.values)}, and there is no .dockerignore",
                "name them in .dockerignore",
                (Edit(".dockerignore", 1, 0, "", text),),
            )
            return


def runs_as_root(view: StageView) -> Iterator[Finding]:
    if not view.is_last or not view.stage.instructions:
        return
    users = [step for step in view.steps if step.word == "USER" and step.values]
    if not users or users[-1].values[0].partition(":")[0] in ("root", "0"):
        at = users[-1] if users else view.stage.origin
        evidence = f"USER {users[-1].values[0]}" if users else "no USER"
        advice = "add a USER; clusters that enforce Pod Security `restricted` reject root"
        yield ROOT.finding(view, at, "the image runs as root", evidence, advice)


def small_shared_memory(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    if torch is None or not view.is_last or view.kind is not Kind.GPU:
        return
    argv = " ".join(" ".join(step.values) for step in view.steps if step.word in ("CMD", "ENTRYPOINT"))
    if re.search(r"--shm|num[-_]workers[= ]0\b", argv):
        return
    yield SHM.finding(
        view,
        torch.installed.spec,
        "DataLoader processes share tensors through /dev/shm, and a container has 64 MB of it",
        "torch on a GPU target",
        "run it with --shm-size=8g or --ipc=host; on Kubernetes, an emptyDir with medium: Memory on /dev/shm",
    )


RULES = (layer_order, no_dockerignore, runs_as_root, small_shared_memory)

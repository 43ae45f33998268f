"""Is the image quick to rebuild, small and safe, and does it say what it needs to run? (20, 21)"""

import re
from collections.abc import Iterator

from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.project import Edit, Finding, Kind, Level, lines_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

ORDER = Pattern(
    number=20,
    id="layer-order",
    what="All code is copied before the requirements: every change of the code installs them again.",
    fix="the requirements file is copied first, the code behind the installation",
    level=Level.WARNING,
)
CONTEXT = Pattern(
    number=20,
    id="no-dockerignore",
    what="`COPY .` takes folders into the image that do not belong there, such as .git.",
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


def layer_order(place: Place) -> Iterator[Finding]:
    steps = place.stage.instructions
    for at, copy in enumerate(steps[:-1]):
        if (
            copy.word != "COPY"
            or copy.flags
            or copy.values[:1] not in ((".",), ("./",))
            or len(copy.values) != 2
        ):
            continue
        run = steps[at + 1]
        pips = [by for by in place.pip if by.instruction is run]
        if (
            len(run.commands) != 1
            or len(pips) != 1
            or pips[0].asked
            or len(pips[0].values("requirement")) != 1
            or _needs_more(place, pips[0])
        ):
            return
        file = place.file_named(pips[0].values("requirement")[0])
        if file is None or any(asked.is_url for asked in file.asked) or file.options:
            return
        yield ORDER.found(
            place,
            copy,
            "whatever changes in your code, all requirements are installed again",
            f"COPY {' '.join(copy.values)} before pip install -r {file.path}",
            f"copy {file.path} alone first, and the rest behind the installation",
            _swapped(place, copy, run, file.path, pips[0].values("requirement")[0]),
        )
        return


def _needs_more(place: Place, by: PipInstall) -> bool:
    """Another file or folder of the context, such as constraints or wheels."""
    addresses = [value for name in ("find-links", "constraint", "editable") for value in by.values(name)]
    addresses += [value for name, value in place.environment(by).items() if name in _NAME_FILES]
    return any("://" not in value for value in addresses)


def _swapped(place: Place, copy: Instruction, run: Instruction, path: str, named: str) -> tuple[Edit, ...]:
    """COPY FILE; RUN pip; COPY . where it stood before: only for steps of one line, one behind the other."""
    lines = lines_of(place.docker.text)
    if copy.first != copy.last or run.first != copy.last + 1 or named.startswith("/") or "$" in named:
        return ()
    if named != path or not lines[run.last - 1].endswith("\n"):
        return ()
    old = "".join(lines[copy.first - 1 : run.last])
    end = "\r\n" if lines[copy.first - 1].endswith("\r\n") else "\n"
    folder = copy.values[1].rstrip("/")
    first = f"COPY {path} {folder}/{path}{end}" if folder not in ("", ".") else f"COPY {path} ./{path}{end}"
    new = first + "".join(lines[run.first - 1 : run.last]) + lines[copy.first - 1]
    return (Edit(place.docker.path, copy.first, run.last, old, new),)


def no_dockerignore(place: Place) -> Iterator[Finding]:
    project = place.project
    unwanted = [name for name in _UNWANTED if name in project.names]
    ignored = ".dockerignore", f"{project.dockerfile}.dockerignore"
    if not unwanted or any(project.has(name) or name in project.names for name in ignored):
        return
    for copy in place.stage.instructions:
        if (
            copy.word in ("COPY", "ADD")
            and copy.flag("from") is None
            and copy.values[:1] in ((".",), ("./",))
        ):
            text = "".join(f"{name}\n" for name in unwanted)
            yield CONTEXT.found(
                place,
                copy,
                f"{', '.join(unwanted)} would be copied into the image",
                f"COPY {' '.join(copy.values)}, and there is no .dockerignore",
                "name them in .dockerignore",
                (Edit(".dockerignore", 1, 0, "", text),),
            )
            return


def runs_as_root(place: Place) -> Iterator[Finding]:
    if not place.is_last or not place.stage.instructions:
        return
    users = [step for step in place.steps if step.word == "USER" and step.values]
    if not users or users[-1].values[0].partition(":")[0] in ("root", "0"):
        at = users[-1] if users else place.stage.origin
        evidence = f"USER {users[-1].values[0]}" if users else "no USER"
        advice = "add a USER; clusters that ask for Pod Security `restricted` refuse root"
        yield ROOT.found(place, at, "the image runs as root", evidence, advice)


def small_shared_memory(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None or not place.is_last or place.kind is not Kind.GPU:
        return
    said = " ".join(" ".join(step.values) for step in place.steps if step.word in ("CMD", "ENTRYPOINT"))
    if re.search(r"--shm|num[-_]workers[= ]0\b", said):
        return
    yield SHM.found(
        place,
        torch.installed.asked,
        "DataLoader processes share tensors through /dev/shm, and a container has 64 MB of it",
        "torch on a GPU target",
        "run it with --shm-size=8g or --ipc=host; on Kubernetes, an emptyDir with medium: Memory on /dev/shm",
    )


RULES = (layer_order, no_dockerignore, runs_as_root, small_shared_memory)

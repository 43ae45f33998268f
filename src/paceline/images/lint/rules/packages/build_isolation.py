"""Rules about packages that import torch while they are built: isolation, and the order of steps (9).

pip builds in an environment of its own, without torch, unless `--no-build-isolation` is given; then torch
must be installed by an earlier command.
"""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.edits import dropped, lines_added_behind, with_flag
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.matrix import matrix
from paceline.images.lint.project import Edit, Finding, Level
from paceline.images.lint.rules.packages.nvcc import (
    COMPILED_FROM_SOURCE,
    IMPORT_TORCH,
    REPOSITORIES,
    entered_folder,
    has_wheels,
    repository_name,
    source_name,
)
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

ISOLATED = Pattern(
    number=9,
    id="build-isolation",
    what="A package imports torch during its build, and pip's build environment has none.",
    fix="it is installed after torch, separately, with `--no-build-isolation`",
)
ORDER = Pattern(
    number=9,
    id="torch-comes-later",
    what="A package that imports torch during its build is installed before torch, or in the same command.",
    fix="it is installed after torch",
)
PATTERNS = (ISOLATED, ORDER)
# They name torch among what their build needs, and are then built for its newest release.
_BUILT_FOR_NEWEST = frozenset({"causal-conv1d", "mamba-ssm"})
# Packages that bring torch with them.
_BRING_TORCH = frozenset(
    [
        "torchvision",
        "torchaudio",
        "accelerate",
        "deepspeed",
        "vllm",
        "lightning",
        "pytorch-lightning",
        "timm",
        "sentence-transformers",
        "ultralytics",
        "peft",
        "trl",
        "bitsandbytes",
        "xformers",
        "sglang",
        "unsloth",
        "fairscale",
        "torchmetrics",
        "diffusers",
    ]
)
# Steps after which another step continues from the same place.
_LEAVE_NO_TRACE = {"apt-get", "apt", "apk", "pip", "pip3", "python", "python3", "rm", "mkdir", "set", "echo"}
_NEWEST_PIP = re.compile(r"get-pip\.py$|Miniconda3-latest|latest/download/Miniforge3")
_BUILD_NEEDS = "setuptools wheel packaging ninja"


def build_isolation(view: StageView) -> Iterator[Finding]:
    if view.find("torch") is None and view.base.family not in ("pytorch", "ngc", "dlc"):
        return
    for package in view.own:
        name = source_name(package.spec)
        if name not in IMPORT_TORCH or has_wheels(view, package) or _is_not_isolated(view, package):
            continue
        if name in COMPILED_FROM_SOURCE and not package.spec.is_url:
            continue
        if name in _BUILT_FOR_NEWEST and not _is_older_torch(view):
            continue
        # Without pyproject.toml, as in these repositories, a pip before 25.3 builds in the open environment.
        is_released = bool(package.spec.name) and not package.spec.is_url
        is_certain = name not in _BUILT_FOR_NEWEST and (is_released or has_newest_pip(view, package))
        yield ISOLATED.finding(
            view,
            package.spec,
            f"{name} is built for the newest torch, not for the installed one"
            if name in _BUILT_FOR_NEWEST
            else f"{name} imports torch during its build, and pip's build environment has none: "
            "`No module named 'torch'`",
            f"{package.spec.text} without --no-build-isolation",
            "install it after torch, with --no-build-isolation",
            separate_step(view, package),
            level=Level.PROBLEM if is_certain else Level.WARNING,
        )
        return  # one at a time: two of them would want the same line
    yield from _isolated_clone(view)


def _isolated_clone(view: StageView) -> Iterator[Finding]:
    """`git clone` of such a repository, `cd` into it, `pip install .`: built where no torch is."""
    cloned: set[str] = set()
    for by_step in view.stage.instructions:
        cloned |= {
            tail
            for c in by_step.commands
            for word in c.texts
            if (tail := repository_name(word)) in REPOSITORIES
        }
        for by in [
            install for install in view.commands_of_pip if install.instruction is by_step and install.is_pip
        ]:
            folder = entered_folder(by_step, by.command)
            name = REPOSITORIES.get(folder, "")
            is_project = any(re.fullmatch(r"\./?(?:\[\S*\])?", word) for word in by.command.texts)
            if (
                folder not in cloned
                or name not in IMPORT_TORCH
                or name in _BUILT_FOR_NEWEST
                or not is_project
            ):
                continue
            variables = view.environment(by).keys()
            if by.flags & {"--no-build-isolation", "--no-deps"} or "PIP_NO_BUILD_ISOLATION" in variables:
                continue
            if "--no-use-pep517" in by.flags or "UV_NO_BUILD_ISOLATION" in variables:
                continue
            yield ISOLATED.finding(
                view,
                by_step,
                f"{name} imports torch during its build, and pip's build environment has none: "
                "`No module named 'torch'`",
                f"{' '.join(by.command.texts[:6])} without --no-build-isolation",
                "add --no-build-isolation",
                level=Level.PROBLEM if _isolates(view, by) else Level.WARNING,
            )
            return


def _isolates(view: StageView, by: PipInstall) -> bool:
    """uv, or a pip that builds every project in isolation: that of the images of NVIDIA since 2025."""
    release = re.match(r"^(\d\d)\.", view.base.tag or "") if view.base.family == "ngc" else None
    if by.is_uv or (release is not None and int(release[1]) >= 25):
        return True
    before = [package for package in view.installed if package.by.instruction.first <= by.instruction.first]
    upgraded = any(
        o.spec.name == "pip" and not o.spec.specifier and o.by.flags & {"-U", "--upgrade"} for o in before
    )
    return upgraded or (
        view.base.torch is not None and view.base.torch >= Version("2.10") and not _pins_pip(view)
    )


def _is_not_isolated(view: StageView, package: Installed) -> bool:
    """Whether the build uses the packages of the environment: by a flag, a variable or a setting of uv."""
    if package.by.flags & {"--no-build-isolation", "--no-deps-build-isolation"}:
        return True
    if package.spec.name in [str(name).lower() for name in package.by.values("no-build-isolation-package")]:
        return True
    variables = view.environment(package.by).keys()
    if variables & {"PIP_NO_BUILD_ISOLATION", "UV_NO_BUILD_ISOLATION", "UV_NO_BUILD_ISOLATION_PACKAGE"}:
        return True
    files = view.files_of(package.by)
    options = [option for file in files for option in file.options]
    options += [
        o for f in view.files.values() if f.path == "pyproject.toml" and package.by.is_uv for o in f.options
    ]
    return any(
        option.name == "no-build-isolation"
        or (option.name == "no-build-isolation-package" and option.value == package.spec.name)
        for option in options
    )


def has_newest_pip(view: StageView, package: Installed) -> bool:
    """uv, or a pip from 25.3 on: both always build in isolation."""
    base = view.base
    if package.by.is_uv or any(_NEWEST_PIP.search(word) for word in view.words):
        return True
    if base.family == "python" and base.is_floating and base.python is not None and not view.has_own_python:
        return Version(base.python) >= Version("3.13") and not _pins_pip(view)
    if base.torch is not None and base.torch >= Version("2.10"):
        return not _pins_pip(view)
    before = [o for o in view.installed if o.by.instruction.first <= package.by.instruction.first]
    return any(
        o.spec.name == "pip" and not o.spec.specifier and o.by.flags & {"-U", "--upgrade"} for o in before
    )


def _pins_pip(view: StageView) -> bool:
    return any(package.spec.name == "pip" and package.spec.specifier for package in view.installed)


def _is_older_torch(view: StageView) -> bool:
    if view.torch is not None and view.torch.pin is not None:
        return view.torch.pin.release < matrix().newest.torch.release
    return view.base.torch is not None


def torch_comes_later(view: StageView) -> Iterator[Finding]:
    """Built in the open environment, where torch is not yet, or never."""
    if view.base.family not in ("cuda", "python", "debian", "ubuntu") or view.has_conda:
        return
    torch = view.find("torch")
    for package in view.own:
        if (
            package.spec.name not in IMPORT_TORCH
            or has_wheels(view, package)
            or not _is_not_isolated(view, package)
        ):
            continue
        if not package.by.is_pip or _is_brought(view, package):
            continue
        if torch is not None and torch.by is not package.by:
            earlier = next(o for o in view.installed if o.spec.name == "torch")
            if view.installed.index(earlier) < view.installed.index(package):
                continue
        elif torch is None and not _are_steps_known(view, package):
            continue
        yield ORDER.finding(
            view,
            package.spec,
            f"{package.spec.name} imports torch during its build, and torch is not installed yet: "
            "`No module named 'torch'`",
            f"{package.spec.text}, {'before torch' if torch is not None else 'and no step installs torch'}",
            "install torch in a command before it",
        )
        return


def _is_brought(view: StageView, package: Installed) -> bool:
    """A package installed before it brings torch."""
    before = [o for o in view.installed if o.by is not package.by][: view.installed.index(package)]
    return any(o.spec.name in _BRING_TORCH or not o.spec.name for o in before)


def _are_steps_known(view: StageView, package: Installed) -> bool:
    """Every requirements file before it could be read, and no step installs by other means."""
    before = [by for by in view.pip if by.instruction.first <= package.by.instruction.first]
    unread = any(
        view.file_named(view.path_in_context(by, p)) is None
        for by in before
        for p in by.values("requirement")
    )
    copies = any(s.word == "COPY" and s.flag("from") is not None for s in view.steps)
    return not unread and not copies and view.are_packages_known and not view.has_conditional


def separate_step(view: StageView, package: Installed) -> tuple[Edit, ...]:
    """A separate step after the one that installs the other packages, including torch."""
    torch = view.find("torch")
    is_alone = [spec.name for spec in view.specs_by(package.by)] == [package.spec.name]
    if is_alone and (torch is None or torch.by is not package.by):
        return with_flag(view, package.by, "--no-build-isolation")
    if torch is not None and torch.by.instruction.first > package.by.instruction.first:
        return ()  # torch is installed later: a person decides the order
    if (
        not package.spec.is_literal
        or package.by.is_uv
        or not package.by.is_editable
        or not _is_movable(package.by)
    ):
        return ()
    without = dropped(view, package)
    program = " ".join(word.text for word in package.by.program)
    cache = " --no-cache-dir" if "--no-cache-dir" in package.by.flags else ""
    requirements = (
        f'"{package.spec.text}"'
        if any(sign in package.spec.text for sign in "<>[]!; ")
        else package.spec.text
    )
    lines = [
        f"RUN {program} install{cache} {_BUILD_NEEDS} \\",
        f" && {program} install{cache} --no-build-isolation {requirements}",
    ]
    return without + lines_added_behind(view, package.by.instruction, lines) if without else ()


def _is_movable(by: PipInstall) -> bool:
    """Whether the same pip in a separate step would install to the same place. Not after `activate`,
    `conda run`, `cd` or a variable, and not into a folder."""
    begins = by.command.words[0] is by.program[0]
    before = by.instruction.commands[: by.instruction.commands.index(by.command)]
    plain = all(
        command.texts[0] in _LEAVE_NO_TRACE or command.texts[0].startswith("<<") for command in before
    )
    return begins and plain and not by.values("target", "prefix", "root") and "--user" not in by.flags


RULES = (build_isolation, torch_comes_later)

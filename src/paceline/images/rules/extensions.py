"""Can packages that are compiled against CUDA and torch be compiled here? (8, 9)"""

from collections.abc import Iterator

from paceline.images.bases import read_base
from paceline.images.changing import another_base, dropped, lines_added_behind, with_flag
from paceline.images.choosing import nearest_cuda_tag
from paceline.images.installs import PipInstall
from paceline.images.project import Edit, Finding
from paceline.images.rules.pattern import Pattern
from paceline.images.view import Installed, Place

NO_COMPILER = Pattern(
    number=8,
    id="needs-nvcc",
    what="A package is compiled with nvcc, and the base has no CUDA compiler (`base` and `runtime` images).",
    fix="the `devel` image for the stage that compiles; copy the result into a smaller stage if size matters",
)
ISOLATED = Pattern(
    number=9,
    id="build-isolation",
    what="A package imports torch while it is built, and pip builds it where no torch is.",
    fix="it is installed behind torch, alone, with `--no-build-isolation`",
)
PATTERNS = (NO_COMPILER, ISOLATED)
# Their setup.py imports torch without saying so.
IMPORT_TORCH = frozenset(
    [
        "flash-attn",
        "apex",
        "causal-conv1d",
        "mamba-ssm",
        "torch-scatter",
        "torch-sparse",
        "torch-cluster",
        "torch-spline-conv",
        "detectron2",
        "pytorch3d",
        "diff-gaussian-rasterization",
        "grouped-gemm",
    ]
)
# Compiled on installation from their archive on PyPI, or from a repository.
_COMPILED = IMPORT_TORCH | {"tinycudann"}
_WHEEL_VARIABLES = {"PIP_FIND_LINKS", "PIP_ONLY_BINARY", "UV_FIND_LINKS"}
# Steps after which another step goes on from the same place.
_LEAVE_NO_TRACE = {"apt-get", "apt", "apk", "pip", "pip3", "python", "python3", "rm", "mkdir", "set", "echo"}
_BUILD_NEEDS = "setuptools wheel packaging ninja"


def compiled(place: Place, one: Installed) -> bool:
    if one.asked.name == "flash-attn" and "FLASH_ATTENTION_SKIP_CUDA_BUILD" in place.environment(one.by):
        return False
    return one.asked.name in _COMPILED and not _has_wheels(place, one)


def _has_wheels(place: Place, one: Installed) -> bool:
    """It is a wheel, or a folder or page of ready wheels was named for it."""
    if one.asked.text.endswith(".whl") or one.by.values("find-links", "only-binary"):
        return True
    options = {option.name for file in place.files_of(one.by) for option in file.options}
    variables = place.environment(one.by).keys()
    return bool(options & {"find-links", "only-binary"} or variables & _WHEEL_VARIABLES)


def needs_nvcc(place: Place) -> Iterator[Finding]:
    base = place.base
    if base.family not in ("cuda", "pytorch", "python", "debian", "ubuntu") or base.flavour == "devel":
        return
    if any("cuda-toolkit" in name or "cuda-nvcc" in name for name in place.system_packages):
        return
    first = next((one for one in place.own if compiled(place, one)), None)
    if first is None:
        return
    new = None
    if base.family == "cuda" and base.cuda is not None and base.tag is not None:
        tag = nearest_cuda_tag(base, base.cuda.major, base.cuda, flavour="devel")
        same = base.tag.replace(f"-{base.flavour}-", "-devel-")
        new = f"{base.name}:{same if read_base(f'nvidia/cuda:{same}').flavour == 'devel' else tag}"
    elif base.family == "pytorch" and base.flavour == "runtime":
        new = base.reference.replace("-runtime", "-devel")
    yield NO_COMPILER.found(
        place,
        first.asked,
        f"{first.asked.name} is compiled with nvcc, which {base.reference} has not: `nvcc was not found`",
        f"{first.asked.text} on {base.flavour or base.family}",
        f"use {new}" if new else "compile it in a stage from nvidia/cuda:…-devel, and copy the result",
        another_base(place, new) if new else (),
    )


def build_isolation(place: Place) -> Iterator[Finding]:
    if place.find("torch") is None and place.base.family not in ("pytorch", "ngc", "dlc"):
        return
    if "PIP_NO_BUILD_ISOLATION" in place.variables:
        return
    for one in place.own:
        if one.asked.name not in IMPORT_TORCH or _has_wheels(place, one):
            continue
        if one.by.flags & {"--no-build-isolation", "--no-deps-build-isolation"}:
            continue
        yield ISOLATED.found(
            place,
            one.asked,
            f"{one.asked.name} imports torch while it is built, and pip builds it where none is: "
            "`No module named 'torch'`",
            f"{one.asked.text} without --no-build-isolation",
            "install it behind torch, with --no-build-isolation",
            apart(place, one),
        )
        return  # one at a time: two of them would want the same line


def apart(place: Place, one: Installed) -> tuple[Edit, ...]:
    """A step of its own behind the one that installs the others, torch among them."""
    torch = place.find("torch")
    is_alone = [asked.name for asked in place.asked_by(one.by)] == [one.asked.name]
    if is_alone and (torch is None or torch.by is not one.by):
        return with_flag(place, one.by, "--no-build-isolation")
    if torch is not None and torch.by.instruction.first > one.by.instruction.first:
        return ()  # torch comes later: in which order, a person decides
    if not one.asked.is_literal or one.by.is_uv or not _can_go_on_elsewhere(one.by):
        return ()
    without = dropped(place, one)
    program = " ".join(word.text for word in one.by.program)
    cache = " --no-cache-dir" if "--no-cache-dir" in one.by.flags else ""
    wanted = f'"{one.asked.text}"' if any(sign in one.asked.text for sign in "<>[]!; ") else one.asked.text
    lines = [
        f"RUN {program} install{cache} {_BUILD_NEEDS} \\",
        f" && {program} install{cache} --no-build-isolation {wanted}",
    ]
    return without + lines_added_behind(place, one.by.instruction, lines) if without else ()


def _can_go_on_elsewhere(by: PipInstall) -> bool:
    """Would the same pip in a step of its own install to the same place? Not behind `activate`, `conda run`,
    `cd` or a variable, and not into a folder."""
    begins = by.command.words[0] is by.program[0]
    before = by.instruction.commands[: by.instruction.commands.index(by.command)]
    plain = all(one.texts[0] in _LEAVE_NO_TRACE or one.texts[0].startswith("<<") for one in before)
    return begins and plain and not by.values("target", "prefix", "root") and "--user" not in by.flags


RULES = (needs_nvcc, build_isolation)

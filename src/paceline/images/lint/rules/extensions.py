"""Rules about packages that are compiled against CUDA and torch, when installed or when run (8, 9, 32)."""

import re
from collections.abc import Iterator, Mapping

from packaging.utils import canonicalize_name
from packaging.version import Version

from paceline.images.lint.bases import read_base
from paceline.images.lint.dependency_files import Asked
from paceline.images.lint.dockerfile import Command, Instruction, substituted
from paceline.images.lint.edits import (
    another_base,
    dropped,
    lines_added_behind,
    nearest_cuda_tag,
    with_flag,
)
from paceline.images.lint.installs import PipInstall, conditional_commands
from paceline.images.lint.matrix import matrix
from paceline.images.lint.project import Edit, Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, Place

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
ORDER = Pattern(
    number=9,
    id="torch-comes-later",
    what="A package that imports torch while it is built is installed before torch, or in the same command.",
    fix="it is installed behind torch",
)
PATTERNS = (NO_COMPILER, ISOLATED, ORDER)
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
        "simple-knn",
        "pointnet2-ops",
        "tinycudann",
        "minkowskiengine",
        "torchsparse",
        "fused-ssim",
        "kaolin",
        "groundingdino",
        "lietorch",
        "natten",
        "exllamav2",
        "deep-ep",
        "deep-gemm",
        "nvdiffrast",
        "fast-hadamard-transform",
        "megablocks",
        "torch-points-kernels",
        "auto-gptq",
        "sageattention",
    ]
)
# They name torch among what their build needs, and are then built for its newest release.
_BUILT_FOR_NEWEST = frozenset({"causal-conv1d", "mamba-ssm"})
# Their setup.py asks for nvcc even where no GPU is; the others leave CUDA out unless FORCE_CUDA is set.
_NEED_NVCC = frozenset(
    [
        "flash-attn",
        "causal-conv1d",
        "mamba-ssm",
        "grouped-gemm",
        "diff-gaussian-rasterization",
        "simple-knn",
        "tinycudann",
        "pointnet2-ops",
        "minkowskiengine",
        "deeperspeed",
        "torchsparse",
        "deep-ep",
        "fused-ssim",
        "lietorch",
        "fast-hadamard-transform",
        "vllm",
    ]
)
# On PyPI these are ready wheels: only a build from the repository is compiled.
_COMPILED_FROM_SOURCE = frozenset({"vllm", "sageattention", "natten", "exllamav2", "auto-gptq", "nvdiffrast"})
_NVCC = re.compile(
    r"cuda-nvcc|cuda-toolkit|cuda-compiler|cuda-minimal-build|cuda_\d[\d._]*linux|cuda-\d+-\d+$|nvhpc|^cuda$|cudatoolkit"
    r"|/cuda-[\d.]+/bin/nvcc"
)
# Repositories whose setup.py calls nvcc, by the last part of their address.
_REPOSITORIES = {
    "flash-attention": "flash-attn",
    "causal-conv1d": "causal-conv1d",
    "mamba": "mamba-ssm",
    "diff-gaussian-rasterization": "diff-gaussian-rasterization",
    "simple-knn": "simple-knn",
    "tiny-cuda-nn": "tinycudann",
    "minkowskiengine": "minkowskiengine",
    "deeperspeed": "deeperspeed",
    "torchsparse": "torchsparse",
    "pointnet2-ops-lib": "pointnet2-ops",
    "pointnet2-ops": "pointnet2-ops",
    "grouped-gemm": "grouped-gemm",
    "transformerengine": "transformer-engine",
    "deep-ep": "deep-ep",
    "deepep": "deep-ep",
    "deepgemm": "deep-gemm",
    "sageattention": "sageattention",
    "apex": "apex",
    "detectron2": "detectron2",
    "pytorch3d": "pytorch3d",
    "fused-ssim": "fused-ssim",
    "kaolin": "kaolin",
    "groundingdino": "groundingdino",
    "lietorch": "lietorch",
    "natten": "natten",
    "exllamav2": "exllamav2",
    "nvdiffrast": "nvdiffrast",
    "autogptq": "auto-gptq",
    "vllm": "vllm",
    "fast-hadamard-transform": "fast-hadamard-transform",
    "pytorch-scatter": "torch-scatter",
    "pytorch-sparse": "torch-sparse",
    "pytorch-cluster": "torch-cluster",
    "torch-points-kernels": "torch-points-kernels",
}
# Repositories that make compiles with nvcc, without an option that asks for it.
_MADE_WITH_NVCC = frozenset(
    {"nccl-tests", "nccl", "cuda-samples", "nvbandwidth", "gpu-burn", "cuda-gpu-burn"}
)
_MAKE_CUDA = re.compile(
    r"\b(?:GGML_CUDA|LLAMA_CUBLAS|LLAMA_CUDA|USE_CUDA|WITH_CUDA|GPU|WHISPER_CUBLAS)=(?:1|ON)\b|\bNVCC\w*="
)
_CMAKE_CUDA = re.compile(
    r"-D\s?(?:\w*(?:CUDA|CUBLAS)|FAISS_ENABLE_GPU|USE_GPU)(?::\w+)?=(?:ON|1|TRUE|YES)\b|-DCMAKE_CUDA_\w+=\S",
    re.I,
)
# Variants of Gaussian splatting's rasterizer, each in a repository of its own.
_RASTERIZER = re.compile(r"^diff-[\w-]*(?:raster|gauss)[\w-]*$")
_WHEEL_VARIABLES = {"PIP_FIND_LINKS", "PIP_ONLY_BINARY", "UV_FIND_LINKS"}
# Steps after which another step goes on from the same place.
_LEAVE_NO_TRACE = {"apt-get", "apt", "apk", "pip", "pip3", "python", "python3", "rm", "mkdir", "set", "echo"}
_NEWEST_PIP = re.compile(r"get-pip\.py$|Miniconda3-latest|latest/download/Miniforge3")
_BUILD_NEEDS = "setuptools wheel packaging ninja"


def compiled(place: Place, one: Installed) -> bool:
    if one.asked.name == "flash-attn" and "FLASH_ATTENTION_SKIP_CUDA_BUILD" in place.environment(one.by):
        return False
    name = source_name(one.asked)
    values = place.environment(one.by)
    is_forced = values.get("FORCE_CUDA", "0") != "0" and name in (*IMPORT_TORCH, "mmcv-full", "mmcv")
    # Operators of DeepSpeed are compiled when it is installed only where a variable asks for it.
    is_forced |= name == "deepspeed" and any(
        key.startswith("DS_BUILD_") and key != "DS_BUILD_STRING" and value == "1"
        for key, value in values.items()
    )
    if name in _COMPILED_FROM_SOURCE and not one.asked.is_url:
        return False
    is_apex = name == "apex" and any("cuda_ext" in word for word in one.by.command.texts)
    return (name in _NEED_NVCC or is_forced or is_apex) and not _has_wheels(place, one)


def source_name(asked: Asked) -> str:
    """The package; of an address or a folder, the one that is known to be in it."""
    if not asked.is_url or asked.text.endswith(".whl"):
        return asked.name
    address = asked.text.rpartition("@ ")[2] if asked.requirement is not None else asked.text
    path = re.sub(r"(?:\.git)?(?:@[^/]*)?/?$", "", address.partition("#")[0].rstrip("/"))
    tail = str(canonicalize_name(path.rpartition("/")[2] or "x"))
    if _RASTERIZER.match(tail):
        return "diff-gaussian-rasterization"
    return _REPOSITORIES.get(tail, asked.name or (tail if tail in IMPORT_TORCH else ""))


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
    if any(_NVCC.search(word) for word in place.words) or not _are_packages_known(place):
        return
    if place.has_conda and any(re.search(r"\.ya?ml$|nvidia|conda-forge", word) for word in place.words):
        return  # conda may bring a compiler of its own
    if any(step.word in ("COPY", "ADD") and "cuda" in " ".join(step.values) for step in place.steps):
        return
    needed = _needs_it(place)
    if needed is None:
        return
    at, name, shown = needed
    new = None
    if base.family == "cuda" and base.cuda is not None and base.tag is not None:
        tag = nearest_cuda_tag(base, base.cuda.major, base.cuda, flavour="devel")
        same = base.tag.replace(f"-{base.flavour}-", "-devel-")
        new = f"{base.name}:{same if read_base(f'nvidia/cuda:{same}').flavour == 'devel' else tag}"
    elif base.family == "pytorch" and base.flavour == "runtime":
        new = base.reference.replace("-runtime", "-devel")
    yield NO_COMPILER.found(
        place,
        at,
        f"{name} needs nvcc, which {base.reference} has not: `nvcc was not found`",
        f"{shown} on {base.flavour or base.family}",
        f"use {new}" if new else "compile it in a stage from nvidia/cuda:…-devel, and copy the result",
        another_base(place, new) if new else (),
    )


def _are_packages_known(place: Place) -> bool:
    """The scripts of these projects bring no nvcc; what another script installs is not known."""
    scripts = [word for word in place.words if word.endswith(".sh")]
    return place.are_packages_known or (
        bool(scripts)
        and all(
            re.search(r"(?:^|/)(?:efa_installer|autogen|bootstrap|configure)\.sh$", one) for one in scripts
        )
        and not any("$" in name for name in place.system_packages)
        and not {"xargs", "install"} <= set(place.words)
    )


def _builds_with_nvcc(command: Command, values: Mapping[str, str]) -> str:
    """What make, cmake or a build of llama.cpp compiles with nvcc; empty: nothing that is known."""
    words = [substituted(word, values) for word in command.texts]
    called = [word for word in words if not re.match(r"^\w+=", word)]
    program = called[0].rpartition("/")[2] if called else ""
    line = " ".join(words)
    if program == "make" and _MAKE_CUDA.search(line):
        return "this make"
    if program == "cmake" and "--build" not in words and _CMAKE_CUDA.search(line):
        return "this cmake"
    is_forced = _CMAKE_CUDA.search(f"{line} {values.get('CMAKE_ARGS', '')}") and "install" in words
    return "llama-cpp-python" if is_forced and re.search(r"llama[-_]cpp[-_]python", line) else ""


def _needs_it(place: Place) -> tuple[Asked | Instruction, str, str] | None:
    """What is compiled with nvcc first: a package, a cloned repository, or a call of nvcc itself."""
    first = next((one for one in place.own if compiled(place, one)), None)
    if first is not None:
        return first.asked, source_name(first.asked), first.asked.text
    cloned: set[str] = set()
    for step in place.stage.instructions:
        maybe = conditional_commands(step)
        for command in step.commands:
            line = " ".join(command.texts)
            cloned |= {
                _REPOSITORIES[tail] for word in command.texts if (tail := _tail(word)) in _REPOSITORIES
            }
            if id(command) in maybe:
                continue
            if re.match(r"(?:which |command -v )?\S*nvcc(?: |$)", line):
                return step, "this command", line[:80]
            made = _builds_with_nvcc(command, place.docker.variables(place.stage, step.first))
            if made:
                return step, made, line[:80]
            if (
                re.match(r"(?:\w+=\S* )*make(?: |$)", line)
                and (name := _entered(step, command)) in _MADE_WITH_NVCC
            ):
                return step, name, line[:80]
            if "--cuda_ext" in line and re.search(r"setup\.py|pip3? .*install|pip3? wheel", line):
                return step, "apex with --cuda_ext", line[:80]
            built = re.search(
                r"setup\.py (?:install|develop|build|bdist)|pip3? install(?: .*)? \./?(?:\[\S*\])?(?: |$)",
                line,
            )
            named = sorted(name for name in cloned if name in _NEED_NVCC and name != "deeperspeed")
            if built and named and _is_inside(step, command, named[0]):
                return step, named[0], line[:80]
    return None


def _tail(word: str) -> str:
    if "://" not in word and not word.startswith("git@"):
        return ""
    return str(canonicalize_name(re.sub(r"\.git$", "", word.rstrip("/")).rpartition("/")[2] or "x"))


def _is_inside(step: Instruction, command: Command, name: str) -> bool:
    """A `cd` of the same step has entered the cloned folder of this package."""
    return _entered(step, command) in [tail for tail, package in _REPOSITORIES.items() if package == name]


def _entered(step: Instruction, command: Command) -> str:
    """The last folder that a `cd` of the same step has entered, by its own name."""
    before = step.commands[: step.commands.index(command)]
    entered = [
        str(canonicalize_name(one.texts[1].rstrip("/").rpartition("/")[2] or "x"))
        for one in before
        if one.texts[0] == "cd" and len(one.texts) > 1
    ]
    return entered[-1] if entered else ""


def build_isolation(place: Place) -> Iterator[Finding]:
    if place.find("torch") is None and place.base.family not in ("pytorch", "ngc", "dlc"):
        return
    for one in place.own:
        name = source_name(one.asked)
        if name not in IMPORT_TORCH or _has_wheels(place, one) or _is_open(place, one):
            continue
        if name in _COMPILED_FROM_SOURCE and not one.asked.is_url:
            continue
        if name in _BUILT_FOR_NEWEST and not _is_older_torch(place):
            continue
        # Without pyproject.toml, as in these repositories, a pip before 25.3 builds in the open environment.
        is_released = bool(one.asked.name) and not one.asked.is_url
        is_certain = name not in _BUILT_FOR_NEWEST and (is_released or has_newest_pip(place, one))
        yield ISOLATED.found(
            place,
            one.asked,
            f"{name} is built for the newest torch, and not for the one that is installed"
            if name in _BUILT_FOR_NEWEST
            else f"{name} imports torch while it is built, and pip builds it where none is: "
            "`No module named 'torch'`",
            f"{one.asked.text} without --no-build-isolation",
            "install it behind torch, with --no-build-isolation",
            apart(place, one),
            level=Level.PROBLEM if is_certain else Level.WARNING,
        )
        return  # one at a time: two of them would want the same line
    yield from _isolated_clone(place)


def _isolated_clone(place: Place) -> Iterator[Finding]:
    """`git clone` of such a repository, `cd` into it, `pip install .`: built where no torch is."""
    cloned: set[str] = set()
    for by_step in place.stage.instructions:
        cloned |= {
            tail for c in by_step.commands for word in c.texts if (tail := _tail(word)) in _REPOSITORIES
        }
        for by in [one for one in place.commands_of_pip if one.instruction is by_step and one.is_pip]:
            folder = _entered(by_step, by.command)
            name = _REPOSITORIES.get(folder, "")
            is_project = any(re.fullmatch(r"\./?(?:\[\S*\])?", word) for word in by.command.texts)
            if (
                folder not in cloned
                or name not in IMPORT_TORCH
                or name in _BUILT_FOR_NEWEST
                or not is_project
            ):
                continue
            variables = place.environment(by).keys()
            if by.flags & {"--no-build-isolation", "--no-deps"} or "PIP_NO_BUILD_ISOLATION" in variables:
                continue
            if "--no-use-pep517" in by.flags or "UV_NO_BUILD_ISOLATION" in variables:
                continue
            yield ISOLATED.found(
                place,
                by_step,
                f"{name} imports torch while it is built, and pip builds it where none is: "
                "`No module named 'torch'`",
                f"{' '.join(by.command.texts[:6])} without --no-build-isolation",
                "add --no-build-isolation",
                level=Level.PROBLEM if _isolates(place, by) else Level.WARNING,
            )
            return


def _isolates(place: Place, by: PipInstall) -> bool:
    """uv, or a pip that builds every project in isolation: that of the images of NVIDIA since 2025."""
    release = re.match(r"^(\d\d)\.", place.base.tag or "") if place.base.family == "ngc" else None
    if by.is_uv or (release is not None and int(release[1]) >= 25):
        return True
    before = [one for one in place.installed if one.by.instruction.first <= by.instruction.first]
    upgraded = any(
        o.asked.name == "pip" and not o.asked.specifier and o.by.flags & {"-U", "--upgrade"} for o in before
    )
    return upgraded or (
        place.base.torch is not None and place.base.torch >= Version("2.10") and not _pins_pip(place)
    )


def _is_open(place: Place, one: Installed) -> bool:
    """The build sees the packages of the environment: by a flag, a variable or a setting of uv."""
    if one.by.flags & {"--no-build-isolation", "--no-deps-build-isolation"}:
        return True
    if one.asked.name in [str(name).lower() for name in one.by.values("no-build-isolation-package")]:
        return True
    variables = place.environment(one.by).keys()
    if variables & {"PIP_NO_BUILD_ISOLATION", "UV_NO_BUILD_ISOLATION", "UV_NO_BUILD_ISOLATION_PACKAGE"}:
        return True
    files = place.files_of(one.by)
    options = [option for file in files for option in file.options]
    options += [
        o for f in place.files.values() if f.path == "pyproject.toml" and one.by.is_uv for o in f.options
    ]
    return any(
        option.name == "no-build-isolation"
        or (option.name == "no-build-isolation-package" and option.value == one.asked.name)
        for option in options
    )


def has_newest_pip(place: Place, one: Installed) -> bool:
    """uv, or a pip from 25.3 on: both always build in isolation."""
    base = place.base
    if one.by.is_uv or any(_NEWEST_PIP.search(word) for word in place.words):
        return True
    if base.family == "python" and base.is_floating and base.python is not None and not place.has_own_python:
        return Version(base.python) >= Version("3.13") and not _pins_pip(place)
    if base.torch is not None and base.torch >= Version("2.10"):
        return not _pins_pip(place)
    before = [o for o in place.installed if o.by.instruction.first <= one.by.instruction.first]
    return any(
        o.asked.name == "pip" and not o.asked.specifier and o.by.flags & {"-U", "--upgrade"} for o in before
    )


def _pins_pip(place: Place) -> bool:
    return any(one.asked.name == "pip" and one.asked.specifier for one in place.installed)


def _is_older_torch(place: Place) -> bool:
    if place.torch is not None and place.torch.pin is not None:
        return place.torch.pin.release < matrix().newest.torch.release
    return place.base.torch is not None


def torch_comes_later(place: Place) -> Iterator[Finding]:
    """Built in the open environment, where torch is not yet, or never."""
    if place.base.family not in ("cuda", "python", "debian", "ubuntu") or place.has_conda:
        return
    torch = place.find("torch")
    for one in place.own:
        if one.asked.name not in IMPORT_TORCH or _has_wheels(place, one) or not _is_open(place, one):
            continue
        if not one.by.is_pip or _is_brought(place, one):
            continue
        if torch is not None and torch.by is not one.by:
            earlier = next(o for o in place.installed if o.asked.name == "torch")
            if place.installed.index(earlier) < place.installed.index(one):
                continue
        elif torch is None and not _is_all_known(place, one):
            continue
        yield ORDER.found(
            place,
            one.asked,
            f"{one.asked.name} imports torch while it is built, and torch is not there yet: "
            "`No module named 'torch'`",
            f"{one.asked.text}, {'before torch' if torch is not None else 'and no step installs torch'}",
            "install torch in a command before it",
        )
        return


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


def _is_brought(place: Place, one: Installed) -> bool:
    """A package installed before it brings torch."""
    before = [o for o in place.installed if o.by is not one.by][: place.installed.index(one)]
    return any(o.asked.name in _BRING_TORCH or not o.asked.name for o in before)


def _is_all_known(place: Place, one: Installed) -> bool:
    """Every requirements file before it could be read, and no step installs by other means."""
    before = [by for by in place.pip if by.instruction.first <= one.by.instruction.first]
    unread = any(
        place.file_named(place.path_in_context(by, p)) is None
        for by in before
        for p in by.values("requirement")
    )
    copies = any(s.word == "COPY" and s.flag("from") is not None for s in place.steps)
    return not unread and not copies and place.are_packages_known and not place.has_conditional


def apart(place: Place, one: Installed) -> tuple[Edit, ...]:
    """A step of its own behind the one that installs the others, torch among them."""
    torch = place.find("torch")
    is_alone = [asked.name for asked in place.asked_by(one.by)] == [one.asked.name]
    if is_alone and (torch is None or torch.by is not one.by):
        return with_flag(place, one.by, "--no-build-isolation")
    if torch is not None and torch.by.instruction.first > one.by.instruction.first:
        return ()  # torch comes later: in which order, a person decides
    if not one.asked.is_literal or one.by.is_uv or not one.by.is_editable or not _can_go_on_elsewhere(one.by):
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


RULES = (needs_nvcc, build_isolation, torch_comes_later)

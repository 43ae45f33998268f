"""The rule about packages that are compiled with nvcc, and the tables of such packages (8).

Other rules use the tables too: `compiled` decides whether an installation calls nvcc, `IMPORT_TORCH` names
the packages whose build imports torch.
"""

import re
from collections.abc import Iterator, Mapping

from packaging.utils import canonicalize_name

from paceline.images.lint.bases import read_base
from paceline.images.lint.dependency_files import PackageSpec
from paceline.images.lint.dockerfile import Command, Instruction, substituted
from paceline.images.lint.edits import another_base, nearest_cuda_tag
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

NO_COMPILER = Pattern(
    number=8,
    id="needs-nvcc",
    what="A package is compiled with nvcc, and the base has no CUDA compiler (`base` and `runtime` images).",
    fix="the `devel` image for the stage that compiles; copy the result into a smaller stage if size matters",
)
PATTERNS = (NO_COMPILER,)
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
# Their setup.py requires nvcc even without a GPU; the others leave CUDA out unless FORCE_CUDA is set.
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
COMPILED_FROM_SOURCE = frozenset({"vllm", "sageattention", "natten", "exllamav2", "auto-gptq", "nvdiffrast"})
_NVCC = re.compile(
    r"cuda-nvcc|cuda-toolkit|cuda-compiler|cuda-minimal-build|cuda_\d[\d._]*linux|cuda-\d+-\d+$|nvhpc|^cuda$|cudatoolkit"
    r"|/cuda-[\d.]+/bin/nvcc"
)
# Repositories whose setup.py calls nvcc, by the last part of their address.
REPOSITORIES = {
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
# Repositories that make compiles with nvcc, without an option to enable it.
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
# Variants of Gaussian splatting's rasterizer, each in a separate repository.
_RASTERIZER = re.compile(r"^diff-[\w-]*(?:raster|gauss)[\w-]*$")
_WHEEL_VARIABLES = {"PIP_FIND_LINKS", "PIP_ONLY_BINARY", "UV_FIND_LINKS"}


def needs_nvcc(view: StageView) -> Iterator[Finding]:
    base = view.base
    if base.family not in ("cuda", "pytorch", "python", "debian", "ubuntu") or base.flavour == "devel":
        return
    if any(_NVCC.search(word) for word in view.words) or not _are_packages_known(view):
        return
    if view.has_conda and any(re.search(r"\.ya?ml$|nvidia|conda-forge", word) for word in view.words):
        return  # conda may install a compiler
    if any(step.word in ("COPY", "ADD") and "cuda" in " ".join(step.values) for step in view.steps):
        return
    needed = _first_use(view)
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
    yield NO_COMPILER.finding(
        view,
        at,
        f"{name} needs nvcc, which {base.reference} does not have: `nvcc was not found`",
        f"{shown} on {base.flavour or base.family}",
        f"use {new}" if new else "compile it in a stage from nvidia/cuda:…-devel, and copy the result",
        another_base(view, new) if new else (),
    )


def compiled(view: StageView, package: Installed) -> bool:
    if package.spec.name == "flash-attn" and "FLASH_ATTENTION_SKIP_CUDA_BUILD" in view.environment(
        package.by
    ):
        return False
    name = source_name(package.spec)
    values = view.environment(package.by)
    is_forced = values.get("FORCE_CUDA", "0") != "0" and name in (*IMPORT_TORCH, "mmcv-full", "mmcv")
    # Operators of DeepSpeed are compiled when it is installed only if a variable requests it.
    is_forced |= name == "deepspeed" and any(
        key.startswith("DS_BUILD_") and key != "DS_BUILD_STRING" and value == "1"
        for key, value in values.items()
    )
    if name in COMPILED_FROM_SOURCE and not package.spec.is_url:
        return False
    is_apex = name == "apex" and any("cuda_ext" in word for word in package.by.command.texts)
    return (name in _NEED_NVCC or is_forced or is_apex) and not has_wheels(view, package)


def source_name(spec: PackageSpec) -> str:
    """The package; of an address or a folder, the one that is known to be in it."""
    if not spec.is_url or spec.text.endswith(".whl"):
        return spec.name
    address = spec.text.rpartition("@ ")[2] if spec.requirement is not None else spec.text
    path = re.sub(r"(?:\.git)?(?:@[^/]*)?/?$", "", address.partition("#")[0].rstrip("/"))
    tail = str(canonicalize_name(path.rpartition("/")[2] or "x"))
    if _RASTERIZER.match(tail):
        return "diff-gaussian-rasterization"
    return REPOSITORIES.get(tail, spec.name or (tail if tail in IMPORT_TORCH else ""))


def has_wheels(view: StageView, package: Installed) -> bool:
    """It is a wheel, or a folder or page of ready wheels was named for it."""
    if package.spec.text.endswith(".whl") or package.by.values("find-links", "only-binary"):
        return True
    options = {option.name for file in view.files_of(package.by) for option in file.options}
    variables = view.environment(package.by).keys()
    return bool(options & {"find-links", "only-binary"} or variables & _WHEEL_VARIABLES)


def _are_packages_known(view: StageView) -> bool:
    """The scripts of these projects bring no nvcc; what another script installs is not known."""
    scripts = [word for word in view.words if word.endswith(".sh")]
    return view.are_packages_known or (
        bool(scripts)
        and all(
            re.search(r"(?:^|/)(?:efa_installer|autogen|bootstrap|configure)\.sh$", script)
            for script in scripts
        )
        and not any("$" in name for name in view.system_packages)
        and not {"xargs", "install"} <= set(view.words)
    )


def _builds_with_nvcc(command: Command, values: Mapping[str, str]) -> str:
    """Target that make, cmake or a build of llama.cpp compiles with nvcc; empty if none is known."""
    argv = [substituted(word, values) for word in command.texts]
    called = [word for word in argv if not re.match(r"^\w+=", word)]
    program = called[0].rpartition("/")[2] if called else ""
    line = " ".join(argv)
    if program == "make" and _MAKE_CUDA.search(line):
        return "this make"
    if program == "cmake" and "--build" not in argv and _CMAKE_CUDA.search(line):
        return "this cmake"
    is_forced = _CMAKE_CUDA.search(f"{line} {values.get('CMAKE_ARGS', '')}") and "install" in argv
    return "llama-cpp-python" if is_forced and re.search(r"llama[-_]cpp[-_]python", line) else ""


def _first_use(view: StageView) -> tuple[PackageSpec | Instruction, str, str] | None:
    """First target compiled with nvcc: a package, a cloned repository, or a call of nvcc itself."""
    first = next((package for package in view.own if compiled(view, package)), None)
    if first is not None:
        return first.spec, source_name(first.spec), first.spec.text
    cloned: set[str] = set()
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        for command in step.commands:
            line = " ".join(command.texts)
            cloned |= {
                REPOSITORIES[tail]
                for word in command.texts
                if (tail := repository_name(word)) in REPOSITORIES
            }
            if id(command) in conditional:
                continue
            if re.match(r"(?:which |command -v )?\S*nvcc(?: |$)", line):
                return step, "this command", line[:80]
            program = _builds_with_nvcc(command, view.docker.variables(view.stage, step.first))
            if program:
                return step, program, line[:80]
            if (
                re.match(r"(?:\w+=\S* )*make(?: |$)", line)
                and (name := entered_folder(step, command)) in _MADE_WITH_NVCC
            ):
                return step, name, line[:80]
            if "--cuda_ext" in line and re.search(r"setup\.py|pip3? .*install|pip3? wheel", line):
                return step, "apex with --cuda_ext", line[:80]
            built = re.search(
                r"setup\.py (?:install|develop|build|bdist)|pip3? install(?: .*)? \./?(?:\[\S*\])?(?: |$)",
                line,
            )
            named = sorted(name for name in cloned if name in _NEED_NVCC and name != "deeperspeed")
            if built and named and _is_in_clone(step, command, named[0]):
                return step, named[0], line[:80]
    return None


def repository_name(word: str) -> str:
    if "://" not in word and not word.startswith("git@"):
        return ""
    return str(canonicalize_name(re.sub(r"\.git$", "", word.rstrip("/")).rpartition("/")[2] or "x"))


def _is_in_clone(step: Instruction, command: Command, name: str) -> bool:
    """A `cd` of the same step has entered the cloned folder of this package."""
    return entered_folder(step, command) in [
        tail for tail, package in REPOSITORIES.items() if package == name
    ]


def entered_folder(step: Instruction, command: Command) -> str:
    """The last folder that a `cd` of the same step has entered, by its own name."""
    before = step.commands[: step.commands.index(command)]
    entered = [
        str(canonicalize_name(command.texts[1].rstrip("/").rpartition("/")[2] or "x"))
        for command in before
        if command.texts[0] == "cd" and len(command.texts) > 1
    ]
    return entered[-1] if entered else ""


RULES = (needs_nvcc,)

"""Rules about the CUDA of base and wheels, the GPU, its driver, and doubled libraries (1, 14 to 16).

torch's wheels bring their own CUDA libraries. The CUDA of the base matters to what is compiled in the image
and to packages that load the libraries of the system.
"""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.bases import catalog
from paceline.images.lint.dockerfile import Instruction, env_values
from paceline.images.lint.edits import another_base, nearest_cuda_tag
from paceline.images.lint.matrix import matrix
from paceline.images.lint.project import Change, Edit, Finding, Level, deletion, edits_of, offset_of
from paceline.images.lint.rules.packages.nvcc import compiled
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

MAJOR = Pattern(
    number=1,
    id="cuda-major",
    what="A package that is compiled, or loads the system's CUDA, conflicts with the CUDA major version of "
    "the base.",
    fix="the base of the wheel's major; torch is kept. Where nothing is compiled, it is only noted",
)
ARCH = Pattern(
    number=14,
    id="gpu-too-new",
    what="The torch wheel has no code for the GPU: it is too old for a new GPU, or too new for an old one.",
    fix="only reported: another torch or build is recommended",
)
DRIVER = Pattern(
    number=15,
    id="driver-too-old",
    what="The driver on the hosts is older than the CUDA of the wheel needs.",
    fix="a newer driver, or a build for an older CUDA, is recommended",
)
TWICE = Pattern(
    number=16,
    id="second-cudnn",
    what="cuDNN or NCCL is present twice: from the base or a loader path, and from torch's own wheels.",
    fix="the same base without cuDNN; the loader path is removed",
    level=Level.WARNING,
)
PATTERNS = (MAJOR, ARCH, DRIVER, TWICE)
# Packages that use the cuDNN of the system, because they bring none.
_USE_SYSTEM_CUDNN = frozenset(
    [
        "tensorflow",
        "jax",
        "jaxlib",
        "onnxruntime-gpu",
        "ctranslate2",
        "faster-whisper",
        "cupy-cuda11x",
        "cupy-cuda12x",
        "tensorrt",
        "paddlepaddle-gpu",
        "mxnet",
    ]
)


def cuda_major(view: StageView) -> Iterator[Finding]:
    base = view.base
    torch = view.torch
    if base.family != "cuda" or base.cuda is None or torch is None or torch.installed not in view.own:
        return
    wheel = torch.cuda
    spec = torch.installed.spec
    if wheel is None and torch.build is None and not spec.specifier and base.cuda.major == 11:
        yield from _newest_on_11(view)
        return
    if wheel is None:
        if torch.pin is not None and torch.row is None and torch.build is None:
            yield _unknown(view)
        return
    if wheel.major == base.cuda.major:
        return
    tag = nearest_cuda_tag(base, wheel.major, wheel)
    source = f"its build {torch.build}" if torch.build else f"wheel metadata of {matrix().dated}"
    builder = _compiled_here(view)
    known = f"the base has CUDA {base.cuda}, and torch {torch.pin or ''} was built with CUDA {wheel}"
    level = Level.WARNING if base.flavour == "devel" else Level.NOTE
    effect = "torch has its own libraries, but extensions compiled here do not work with it"
    if builder:
        level = Level.PROBLEM
        effect = f"{builder} is compiled here, and `the detected CUDA version mismatches`"
    yield MAJOR.finding(
        view,
        view.stage.origin,
        f"{known}: {effect}",
        f"FROM {base.reference}; {torch.installed.spec.text} ({torch.installed.spec.path}:"
        f"{torch.installed.spec.line}), CUDA {wheel} by {source}",
        f"use {base.name}:{tag}; the torch pin is kept" if tag else "use a base of the same CUDA major",
        another_base(view, f"{base.name}:{tag}") if tag and builder else (),
        level=level,
    )


def _newest_on_11(view: StageView) -> Iterator[Finding]:
    """torch without a version is the newest, which was built with a later CUDA."""
    newest = matrix().newest
    builder = _compiled_here(view)
    assert view.torch is not None, "asked for by cuda_major, which has looked"
    if builder:
        yield MAJOR.finding(
            view,
            view.torch.installed.spec,
            f"the newest torch was built with CUDA {newest.cuda}, and the base has {view.base.cuda}: "
            f"{builder} is compiled here, and `the detected CUDA version mismatches`",
            f"FROM {view.base.reference}; {view.torch.installed.spec.text} without a version",
            f"pin a torch from {catalog().index}/cu118, or use a base with CUDA 12",
        )


def _compiled_here(view: StageView) -> str:
    """Package compiled against torch's CUDA in this stage; empty if none is known."""
    names = [package.spec.name for package in view.own if compiled(view, package)]
    built = [c for step in view.stage.instructions for c in step.commands if "setup.py" in " ".join(c.texts)]
    arches = "TORCH_CUDA_ARCH_LIST" in view.variables or "FORCE_CUDA" in view.variables
    if names:
        return names[0]
    return "setup.py" if built and arches else ""


def system_cuda(view: StageView) -> Iterator[Finding]:
    """Packages that load CUDA from the system, built for another major than the base has."""
    base = view.base
    if (
        base.family != "cuda"
        or base.cuda is None
        or any("nvidia-cuda" in package.spec.name for package in view.installed)
    ):
        return
    for package in view.own:
        needs = _system_major(package)
        if needs is not None and needs != base.cuda.major and view.find("torch") is None:
            yield MAJOR.finding(
                view,
                package.spec,
                f"{package.spec.text} loads the libraries of CUDA {needs}, and the base has CUDA {base.cuda}",
                f"FROM {base.reference}; {package.spec.path}:{package.spec.line}",
                f"use a base with CUDA {needs}, or the build for CUDA {base.cuda.major}",
            )


def _system_major(package: Installed) -> int | None:
    named = re.fullmatch(r"cupy-cuda(\d\d)x?\d*", package.spec.name)
    if named is not None:
        return int(named[1])
    extras = package.spec.requirement.extras if package.spec.requirement is not None else set()
    local = [
        extra for extra in extras if package.spec.name == "jax" and re.fullmatch(r"cuda1\d[-_]local", extra)
    ]
    return int(local[0][4:6]) if local else None


def _unknown(view: StageView) -> Finding:
    assert view.torch is not None, "asked for by cuda_major, which has looked"
    return MAJOR.finding(
        view,
        view.torch.installed.spec,
        f"torch {view.torch.pin} is not in the matrix of {matrix().dated}: its CUDA is not checked",
        f"newest known: torch {matrix().newest.torch}",
        "update the matrix: paceline image matrix --refresh",
        level=Level.NOTE,
    )


def gpu_too_new(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    arch = view.target.arch
    if torch is None or arch is None or torch.installed not in view.own:
        return
    cuda = torch.cuda
    known = catalog()
    floor = known.arch_floor.get(_carried_by(arch, torch.pin))
    gone = known.arch_gone.get(arch)
    if floor is not None:
        oldest = Version(floor[0])
        oldest_cuda = Version(floor[1])
        if (torch.pin is not None and torch.pin < oldest) or (cuda is not None and cuda < oldest_cuda):
            yield ARCH.finding(
                view,
                torch.installed.spec,
                f"this torch has no code for {arch}: `no kernel image is available for execution`",
                f"{arch} needs torch {oldest} and CUDA {oldest_cuda} or later; here torch "
                f"{torch.pin or 'unpinned'}, CUDA {cuda or 'unknown'}",
                f"pin torch {oldest} or later, built for CUDA {oldest_cuda} or later",
            )
    if gone is not None and cuda is not None and cuda.major >= int(gone):
        yield ARCH.finding(
            view,
            torch.installed.spec,
            f"wheels for CUDA {cuda.major} no longer have code for {arch}",
            f"{torch.installed.spec.text}, CUDA {cuda}",
            f"use a build for CUDA {int(gone) - 1}, such as {known.index}/cu126",
        )


def _carried_by(arch: str, torch: Version | None) -> str:
    """Code for sm_80 runs on sm_86 and sm_89 too: within a major version, an earlier minor is enough."""
    within = {"sm_86": "sm_80", "sm_87": "sm_80", "sm_89": "sm_80", "sm_103": "sm_100", "sm_121": "sm_120"}
    return arch if torch is None else within.get(arch, arch)


def driver_too_old(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    driver = view.target.driver
    cuda = None if torch is None else torch.cuda
    if torch is None or driver is None or cuda is None or torch.installed not in view.own:
        return
    needs = catalog().drivers.get(str(cuda.major))
    if needs is not None and driver < needs:
        yield DRIVER.finding(
            view,
            torch.installed.spec,
            f"driver {driver} cannot run CUDA {cuda.major}: `the NVIDIA driver on your system is too old`",
            f"CUDA {cuda.major} needs driver {needs} or later; {torch.installed.spec.text} has CUDA {cuda}",
            f"upgrade the hosts to driver {needs}, or use a torch built for CUDA {cuda.major - 1}",
        )


def second_cudnn(view: StageView) -> Iterator[Finding]:
    base = view.base
    torch = view.torch
    needs_it = any(package.spec.name in _USE_SYSTEM_CUDNN for package in view.installed)
    if torch is None or torch.build == "cpu" or needs_it or torch.installed not in view.own:
        return
    if base.family == "cuda" and base.cudnn and view.stage.parent is None:
        without = base.reference.replace(base.cudnn, "", 1)
        # A package from a local folder may use the system's cuDNN: then a person decides.
        is_certain = base.flavour != "devel" and all(package.spec.name for package in view.installed)
        yield TWICE.finding(
            view,
            view.stage.origin,
            "the base has a cuDNN, and torch's wheel includes its own: the image is larger, and the loader "
            "may use the wrong one",
            f"FROM {base.reference}; {torch.installed.spec.text}",
            f"use {without}, unless something here is compiled with cuDNN",
            another_base(view, without) if is_certain else (),
        )
    for step in view.stage.instructions:
        path_value = env_values(step).get("LD_LIBRARY_PATH", "") if step.word == "ENV" else ""
        second = [folder for folder in path_value.split(":") if _is_second(folder)]
        if second:
            yield TWICE.finding(
                view,
                step,
                "LD_LIBRARY_PATH puts another cuDNN or NCCL before the ones of torch's wheels",
                f"LD_LIBRARY_PATH={path_value}",
                f"leave out {':'.join(second)}",
                _without_folders(view, step, path_value, second),
            )


def _is_second(folder: str) -> bool:
    """A plugin of NCCL's, such as the one for EFA, is no second NCCL."""
    return re.search(r"cudnn|nccl", folder) is not None and not re.search(r"ofi|plugin|net|rdma", folder)


def _without_folders(
    view: StageView, step: Instruction, path_value: str, second: list[str]
) -> tuple[Edit, ...]:
    argv = [word for step in view.steps for command in step.commands for word in command.texts]
    if any(parent in word for folder in second for parent in [_top(folder)] for word in argv):
        return ()  # it was installed deliberately, by a separate step
    kept = [folder for folder in path_value.split(":") if folder not in second]
    if not [path for path in kept if path and not re.fullmatch(r"\$\{?LD_LIBRARY_PATH\}?", path)]:
        return (deletion(view.dockerfile, step.first, step.last),) if len(step.values) == 2 else ()
    text = view.docker.text
    at = text.find(path_value, offset_of(text, step.first), offset_of(text, step.last + 1))
    return () if at < 0 else edits_of(view.dockerfile, [Change(at, at + len(path_value), ":".join(kept))])


def _top(folder: str) -> str:
    """/opt/nccl of /opt/nccl/build/lib: where a step that makes it would work."""
    parts = folder.split("/")
    last = max(at for at, part in enumerate(parts) if re.search(r"cudnn|nccl", part))
    return "/".join(parts[: last + 1])


RULES = (cuda_major, system_cuda, gpu_too_new, driver_too_old, second_cudnn)

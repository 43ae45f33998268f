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
from paceline.images.lint.rules.extensions import compiled
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, Place

MAJOR = Pattern(
    number=1,
    id="cuda-major",
    what="What is compiled, or loads the system's CUDA, meets a base of another CUDA major version.",
    fix="the base of the wheel's major; torch is kept. Where nothing is compiled, it is only noted",
)
ARCH = Pattern(
    number=14,
    id="gpu-too-new",
    what="The torch wheel has no code for the GPU: it is too old for a new GPU, or too new for an old one.",
    fix="another torch or build is recommended, never chosen for you",
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
    what="cuDNN or NCCL is there twice: from the base or a loader path, and from torch's own wheels.",
    fix="the same base without cuDNN; the loader path goes",
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


def cuda_major(place: Place) -> Iterator[Finding]:
    base, torch = place.base, place.torch
    if base.family != "cuda" or base.cuda is None or torch is None or torch.installed not in place.own:
        return
    wheel = torch.cuda
    asked = torch.installed.asked
    if wheel is None and torch.build is None and not asked.specifier and base.cuda.major == 11:
        yield from _newest_on_11(place)
        return
    if wheel is None:
        if torch.pin is not None and torch.row is None and torch.build is None:
            yield _unknown(place)
        return
    if wheel.major == base.cuda.major:
        return
    tag = nearest_cuda_tag(base, wheel.major, wheel)
    source = f"its build {torch.build}" if torch.build else f"wheel metadata of {matrix().dated}"
    builder = _compiled_here(place)
    known = f"the base has CUDA {base.cuda}, and torch {torch.pin or ''} was built with CUDA {wheel}"
    yield MAJOR.found(
        place,
        place.stage.origin,
        f"{known}: {builder} is compiled here, and `the detected CUDA version mismatches`"
        if builder
        else f"{known}: torch brings its own libraries, but what is compiled here cannot be used with it",
        f"FROM {base.reference}; {torch.installed.asked.text} ({torch.installed.asked.path}:"
        f"{torch.installed.asked.line}), CUDA {wheel} by {source}",
        f"use {base.name}:{tag}; torch stays as you pinned it"
        if tag
        else "use a base of the same CUDA major",
        another_base(place, f"{base.name}:{tag}") if tag and builder else (),
        level=Level.PROBLEM if builder else Level.WARNING if base.flavour == "devel" else Level.NOTE,
    )


def _newest_on_11(place: Place) -> Iterator[Finding]:
    """torch without a version is the newest, which was built with a later CUDA."""
    newest, builder = matrix().newest, _compiled_here(place)
    assert place.torch is not None, "asked for by cuda_major, which has looked"
    if builder:
        yield MAJOR.found(
            place,
            place.torch.installed.asked,
            f"the newest torch was built with CUDA {newest.cuda}, and the base has {place.base.cuda}: "
            f"{builder} is compiled here, and `the detected CUDA version mismatches`",
            f"FROM {place.base.reference}; {place.torch.installed.asked.text} without a version",
            f"pin a torch from {catalog().index}/cu118, or use a base with CUDA 12",
        )


def _compiled_here(place: Place) -> str:
    """What is compiled against torch's CUDA in this stage; empty: nothing that is known."""
    names = [one.asked.name for one in place.own if compiled(place, one)]
    built = [c for step in place.stage.instructions for c in step.commands if "setup.py" in " ".join(c.texts)]
    arches = "TORCH_CUDA_ARCH_LIST" in place.variables or "FORCE_CUDA" in place.variables
    return names[0] if names else "setup.py" if built and arches else ""


def system_cuda(place: Place) -> Iterator[Finding]:
    """Packages that load CUDA from the system, built for another major than the base has."""
    base = place.base
    if (
        base.family != "cuda"
        or base.cuda is None
        or any("nvidia-cuda" in one.asked.name for one in place.installed)
    ):
        return
    for one in place.own:
        needs = _system_major(one)
        if needs is not None and needs != base.cuda.major and place.find("torch") is None:
            yield MAJOR.found(
                place,
                one.asked,
                f"{one.asked.text} loads the libraries of CUDA {needs}, and the base has CUDA {base.cuda}",
                f"FROM {base.reference}; {one.asked.path}:{one.asked.line}",
                f"use a base with CUDA {needs}, or the build for CUDA {base.cuda.major}",
            )


def _system_major(one: Installed) -> int | None:
    named = re.fullmatch(r"cupy-cuda(\d\d)x?\d*", one.asked.name)
    if named is not None:
        return int(named[1])
    extras = one.asked.requirement.extras if one.asked.requirement is not None else set()
    local = [
        extra for extra in extras if one.asked.name == "jax" and re.fullmatch(r"cuda1\d[-_]local", extra)
    ]
    return int(local[0][4:6]) if local else None


def _unknown(place: Place) -> Finding:
    assert place.torch is not None, "asked for by cuda_major, which has looked"
    return MAJOR.found(
        place,
        place.torch.installed.asked,
        f"torch {place.torch.pin} is not in the matrix of {matrix().dated}: its CUDA is not judged",
        f"newest known: torch {matrix().newest.torch}",
        "bring the matrix up to date: paceline image matrix --refresh",
        level=Level.NOTE,
    )


def gpu_too_new(place: Place) -> Iterator[Finding]:
    torch, arch = place.torch, place.target.arch
    if torch is None or arch is None or torch.installed not in place.own:
        return
    cuda, known = torch.cuda, catalog()
    floor = known.arch_floor.get(_carried_by(arch, torch.pin))
    gone = known.arch_gone.get(arch)
    if floor is not None:
        oldest, oldest_cuda = Version(floor[0]), Version(floor[1])
        if (torch.pin is not None and torch.pin < oldest) or (cuda is not None and cuda < oldest_cuda):
            yield ARCH.found(
                place,
                torch.installed.asked,
                f"this torch has no code for {arch}: `no kernel image is available for execution`",
                f"{arch} needs torch {oldest} and CUDA {oldest_cuda} or later; here torch "
                f"{torch.pin or 'unpinned'}, CUDA {cuda or 'unknown'}",
                f"pin torch {oldest} or later, built for CUDA {oldest_cuda} or later",
            )
    if gone is not None and cuda is not None and cuda.major >= int(gone):
        yield ARCH.found(
            place,
            torch.installed.asked,
            f"wheels for CUDA {cuda.major} have no code for {arch} any more",
            f"{torch.installed.asked.text}, CUDA {cuda}",
            f"take a build for CUDA {int(gone) - 1}, such as {known.index}/cu126",
        )


def _carried_by(arch: str, torch: Version | None) -> str:
    """Code for sm_80 runs on sm_86 and sm_89 too: within a major version, an earlier minor is enough."""
    within = {"sm_86": "sm_80", "sm_87": "sm_80", "sm_89": "sm_80", "sm_103": "sm_100", "sm_121": "sm_120"}
    return arch if torch is None else within.get(arch, arch)


def driver_too_old(place: Place) -> Iterator[Finding]:
    torch, driver = place.torch, place.target.driver
    cuda = None if torch is None else torch.cuda
    if torch is None or driver is None or cuda is None or torch.installed not in place.own:
        return
    needs = catalog().drivers.get(str(cuda.major))
    if needs is not None and driver < needs:
        yield DRIVER.found(
            place,
            torch.installed.asked,
            f"driver {driver} cannot run CUDA {cuda.major}: `the NVIDIA driver on your system is too old`",
            f"CUDA {cuda.major} needs driver {needs} or later; {torch.installed.asked.text} has CUDA {cuda}",
            f"bring the hosts to driver {needs}, or take a torch built for CUDA {cuda.major - 1}",
        )


def second_cudnn(place: Place) -> Iterator[Finding]:
    base, torch = place.base, place.torch
    needs_it = any(one.asked.name in _USE_SYSTEM_CUDNN for one in place.installed)
    if torch is None or torch.build == "cpu" or needs_it or torch.installed not in place.own:
        return
    if base.family == "cuda" and base.cudnn and place.stage.parent is None:
        without = base.reference.replace(base.cudnn, "", 1)
        # What a folder of one's own brings may use the system's cuDNN: then a person decides.
        is_certain = base.flavour != "devel" and all(one.asked.name for one in place.installed)
        yield TWICE.found(
            place,
            place.stage.origin,
            "the base has a cuDNN, and torch's wheel brings its own: the image is bigger by one of them, and "
            "the loader may take the wrong one",
            f"FROM {base.reference}; {torch.installed.asked.text}",
            f"use {without}, unless something here is compiled with cuDNN",
            another_base(place, without) if is_certain else (),
        )
    for step in place.stage.instructions:
        said = env_values(step).get("LD_LIBRARY_PATH", "") if step.word == "ENV" else ""
        second = [folder for folder in said.split(":") if _is_second(folder)]
        if second:
            yield TWICE.found(
                place,
                step,
                "LD_LIBRARY_PATH puts another cuDNN or NCCL before the ones of torch's wheels",
                f"LD_LIBRARY_PATH={said}",
                f"leave out {':'.join(second)}",
                _without_folders(place, step, said, second),
            )


def _is_second(folder: str) -> bool:
    """A plugin of NCCL's, such as the one for EFA, is no second NCCL."""
    return re.search(r"cudnn|nccl", folder) is not None and not re.search(r"ofi|plugin|net|rdma", folder)


def _without_folders(place: Place, step: Instruction, said: str, second: list[str]) -> tuple[Edit, ...]:
    words = [word for one in place.steps for command in one.commands for word in command.texts]
    if any(parent in word for folder in second for parent in [_top(folder)] for word in words):
        return ()  # it was put there on purpose, by a step of its own
    kept = [folder for folder in said.split(":") if folder not in second]
    if not [one for one in kept if one and not re.fullmatch(r"\$\{?LD_LIBRARY_PATH\}?", one)]:
        return (deletion(place.dockerfile, step.first, step.last),) if len(step.values) == 2 else ()
    text = place.docker.text
    at = text.find(said, offset_of(text, step.first), offset_of(text, step.last + 1))
    return () if at < 0 else edits_of(place.dockerfile, [Change(at, at + len(said), ":".join(kept))])


def _top(folder: str) -> str:
    """/opt/nccl of /opt/nccl/build/lib: where a step that makes it would work."""
    parts = folder.split("/")
    last = max(at for at, part in enumerate(parts) if re.search(r"cudnn|nccl", part))
    return "/".join(parts[: last + 1])


RULES = (cuda_major, system_cuda, gpu_too_new, driver_too_old, second_cudnn)

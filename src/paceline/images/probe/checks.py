"""Checks of an image's facts: each passes or fails, with a hint where it fails.

Pure: facts in (`probe/script.py` collects them), checks out. A fact that is missing is not judged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from packaging.markers import InvalidMarker, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_ROWS: tuple[tuple[str, str], ...] = (
    (r"libGL\.so", "use opencv-python-headless instead of opencv-python, or install libgl1 with apt-get"),
    (r"libgthread|libglib-2", "install libglib2.0-0 with apt-get"),
    (r"libgomp\.so", "install libgomp1 with apt-get"),
    (r"libsndfile\.so", "install libsndfile1 with apt-get"),
    (
        r"libcud(art|nn)|libcublas|libnccl|libnvrtc",
        "the wheel was built for another CUDA than the base image has: use a base of its major version, or "
        "the wheel from that CUDA's index",
    ),
    (
        r"([\w+.-]+\.so[\w.]*): cannot open shared object file",
        "install the package that holds \\1 (apt-file search \\1)",
    ),
    (
        r"compiled using NumPy 1\.x|numpy\.core\.multiarray|_ARRAY_API not found",
        "add numpy<2 to the requirements",
    ),
    (r"operator torchvision::nms does not exist", "pin the torchvision that matches this torch"),
    (
        r"undefined symbol",
        "two packages were built against different versions of a third: pin them to one release",
    ),
    (r"GLIBC_[\d.]+' not found", "the base image is too old for this wheel: use one with a newer glibc"),
    (r"crashed: SIGILL", "the wheel uses instructions that this processor does not have"),
    (r"crashed: SIG", "run it alone in the image to see where: python -X faulthandler -c 'import …'"),
    (r"No module named 'paceline", "install paceline into the image, or test it without --task"),
    (r"No module named '([\w.]+)'", "add the package that holds \\1 to the requirements"),
    (r"Exec format error", "build for the machine it runs on: --platform linux/amd64"),
    (r"out of memory|CUDA error", "check nvidia-smi on the host; test with --batch-size 1"),
)


def advice_for(error: str) -> str:
    for pattern, advice in _ROWS:
        if match := re.search(pattern, error):
            return match.expand(advice) if "\\" in advice else advice
    return "run it in the image to see its full output: podman run --rm -it --entrypoint python IMAGE"


Facts: TypeAlias = Mapping[str, Any]  # Any: JSON that the probe wrote
_SMALL_SHM = 1 << 30
# Not in any image: the container runtime brings it from the host, where there is a GPU.
_DRIVER = re.compile(r"lib(cuda|nvidia-ml)\.so\.1")


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    group: str  # imports, versions, cuda, model, container
    name: str
    verdict: Verdict
    detail: str
    advice: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    is_gpu: bool | None = None  # None: not given
    arch: str | None = None  # such as sm_90


def check_facts(facts: Facts, expected: Expected) -> list[Check]:
    return [
        *_imports(facts),
        *_versions(facts),
        *_torch(facts, expected),
        *_model(facts),
        *_container(facts),
    ]


def smoke_checks(facts: Facts) -> list[Check]:
    """Checks of a smoke test: the image's Python starts, and what the Dockerfile installs imports there."""
    checks = []
    for check in _imports(facts):
        # The program that the image starts may be another Python than the one on PATH.
        is_missing = check.name in facts["missing"]
        checks.append(replace(check, verdict=Verdict.WARNING) if is_missing else check)
    return [*checks, _python(facts)]


def no_model_check() -> Check:
    """For a test that was given no model: what passed says nothing about training."""
    advice = "name one: --entry MODULE:FUNCTION, --entry SCRIPT.py -- ARGS, or --task of paceline"
    return _warning("model", "model", "no model was tested", advice)


def _imports(facts: Facts) -> Iterator[Check]:
    for name in facts["missing"]:
        advice = f"the image has no {name}: install it in the final stage"
        yield _failed("imports", str(name), "it is not installed", advice)
    for row in facts["imports"]:
        name = row["name"] if row["module"] == row["name"] else f"{row['name']} ({row['module']})"
        if row["error"] and _DRIVER.search(row["error"]):
            advice = "test it where a GPU is: --gpus all"
            yield _warning("imports", name, f"{row['error']}: the host's NVIDIA driver has it", advice)
        elif row["error"]:
            yield _failed("imports", name, row["error"], advice_for(row["error"]), row["seconds"])
        else:
            yield _passed("imports", name, f"imported in {row['seconds']:.2f} s", row["seconds"])


def _versions(facts: Facts) -> Iterator[Check]:
    installed: dict[str, str] = {canonicalize_name(d["name"]): d["version"] for d in facts["distributions"]}
    broken = 0
    for package in facts["distributions"]:
        for need in package["requires"]:
            problem = _unmet(need, installed, facts["markers"])
            if problem is not None:
                broken += 1
                requirement = need.split(";")[0].strip()
                advice = f"pin what {package['name']} {package['version']} requires: {requirement}"
                yield _failed("versions", package["name"], problem, advice)
    yield from _known_pairs(installed)
    if not broken:
        yield _passed("versions", "needs", f"{len(installed)} packages have their requirements")


def _unmet(need: str, installed: Mapping[str, str], markers: Mapping[str, str]) -> str | None:
    try:
        requirement = Requirement(need)
        if requirement.marker is not None and not requirement.marker.evaluate(dict(markers)):
            return None
    except (InvalidRequirement, InvalidMarker, UndefinedEnvironmentName):
        return None  # in another format: no statement is possible
    version = installed.get(canonicalize_name(requirement.name))
    if version is None:
        return f"it needs {requirement.name}, which is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"it needs {requirement.name}{requirement.specifier}, but {version} is installed"


def _known_pairs(installed: Mapping[str, str]) -> Iterator[Check]:
    """Known incompatibilities that no package declares."""
    torch = _version(installed.get("torch"))
    numpy = _version(installed.get("numpy"))
    if torch is not None and numpy is not None and torch < Version("2.3") and numpy >= Version("2"):
        detail = f"torch {torch} was built for NumPy 1, but {numpy} is installed"
        yield _failed("versions", "numpy", detail, "add numpy<2 to the requirements")


def _version(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        return None


def _torch(facts: Facts, expected: Expected) -> Iterator[Check]:
    torch = facts["torch"]
    if torch is None:
        return
    if torch["error"]:
        yield _failed("cuda", "torch", torch["error"], advice_for(torch["error"]))
        return
    built = "no CUDA"
    if torch["cuda"]:
        built = f"CUDA {torch['cuda']}"
    elif torch["hip"]:
        built = f"ROCm {torch['hip']}"
    parts = [f"torch {torch['version']}, built with {built}"]
    parts += [f"{name} {torch[key]}" for name, key in (("cuDNN", "cudnn"), ("NCCL", "nccl")) if torch[key]]
    yield _passed("cuda", "torch", ", ".join(parts))
    yield from _fits(torch, expected)
    for name, key in (("numpy bridge", "numpy_bridge"), ("torchvision ops", "vision_ops")):
        if torch[key]:
            yield _failed("versions", name, torch[key], advice_for(torch[key]))
    for name, paths in torch["loaded"].items():
        if len(paths) > 1:
            advice = "use a base image without it, or drop its folder from LD_LIBRARY_PATH"
            yield _warning("cuda", f"two of {name}", ", ".join(paths), advice)


def _fits(torch: Facts, expected: Expected) -> Iterator[Check]:
    if expected.is_gpu is True and not torch["cuda"] and not torch["hip"]:
        advice = "install torch from an index with CUDA; the +cpu wheel does not support GPUs"
        yield _failed(
            "cuda", "gpu build", "this torch was built without CUDA, but the target has GPUs", advice
        )
    if expected.is_gpu is False and torch["cuda"]:
        advice = "use the wheel of https://download.pytorch.org/whl/cpu: the image gets gigabytes smaller"
        yield _warning(
            "cuda", "cpu build", f"built with CUDA {torch['cuda']}, but the target has no GPU", advice
        )
    if torch["arch"]:
        yield _passed("cuda", "architectures", " ".join(torch["arch"]))
    if expected.arch is not None and torch["arch"] and not _runs_on(expected.arch, torch["arch"]):
        detail = f"built for {' '.join(torch['arch'])}, not for {expected.arch}"
        yield _failed("cuda", expected.arch, detail, "use a newer torch, or a build for a newer CUDA")
    if torch["gpus"]:
        yield _passed("cuda", "gpus", ", ".join(torch["gpus"]))


def _runs_on(arch: str, built: Sequence[str]) -> bool:
    """Code for an older minor version of the same major one runs too; compute_ (PTX) of any older one."""
    number_needed = _number(arch)
    for architecture in built:
        number = _number(architecture)
        is_ptx = architecture.startswith("compute")
        if number <= number_needed and (is_ptx or number // 10 == number_needed // 10):
            return True
    return False


def _number(arch: str) -> int:
    return int("".join(sign for sign in arch.partition("_")[2] if sign.isdigit()) or 0)


def _model(facts: Facts) -> Iterator[Check]:
    for row in facts["model"]:
        if row["error"]:
            yield _failed("model", row["part"], row["error"], advice_for(row["error"]), row["seconds"])
        else:
            yield _passed("model", row["part"], row["detail"], row["seconds"])


def _container(facts: Facts) -> Iterator[Check]:
    yield _python(facts)
    if facts["uid"] == 0:
        yield _warning("container", "user", "it runs as root", "add a user, and USER 1000, at the end")
    shm = facts["shm_bytes"]
    if shm is not None and shm < _SMALL_SHM:
        advice = "for data loaders with several processes, run with --shm-size=2g (Kubernetes: an emptyDir "
        advice += "of medium Memory at /dev/shm)"
        yield _warning("container", "shared memory", f"/dev/shm has {shm >> 20} MB", advice)


def _python(facts: Facts) -> Check:
    return _passed("container", "python", f"Python {facts['python']} on {facts['machine']}, {facts['libc']}")


def _passed(group: str, name: str, detail: str, seconds: float | None = None) -> Check:
    return Check(group=group, name=name, verdict=Verdict.PASSED, detail=detail, seconds=seconds)


def _failed(group: str, name: str, detail: str, advice: str, seconds: float | None = None) -> Check:
    return Check(
        group=group, name=name, verdict=Verdict.FAILED, detail=detail, advice=advice, seconds=seconds
    )


def _warning(group: str, name: str, detail: str, advice: str) -> Check:
    return Check(group=group, name=name, verdict=Verdict.WARNING, detail=detail, advice=advice)

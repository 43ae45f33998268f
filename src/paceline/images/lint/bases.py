"""The contents of a base image, by its name and tag and a curated, dated list.

Of a name that is not in the list nothing is known: then nothing is judged, and nothing is changed.
"""

import json
import re
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib.resources import files

from packaging.version import Version

_CUDA_TAG = re.compile(
    r"^(?P<cuda>\d+\.\d+(?:\.\d+)?)(?P<cudnn>-cudnn\d*)?-(?P<flavour>base|runtime|devel)(?P<late>-cudnn\d*)?"
    r"-(?P<system>[a-z]+[\d.]+)$"
)
_TORCH_TAG = re.compile(
    r"^(?P<torch>\d+\.\d+(?:\.\d+)?)-cuda(?P<cuda>\d+\.\d+)-cudnn(?P<cudnn>\d+)-(?P<flavour>runtime|devel)$"
)
_PYTHON_TAG = re.compile(r"^(?P<python>3\.\d+)(?P<patch>\.\d+)?(?:[a-z]+\d+)?(?P<rest>(?:-[a-z0-9.]+)*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Facts about a base image. None and "" mean unknown."""

    reference: str
    name: str  # without registry of the hub, tag and digest: "python", "nvidia/cuda"
    tag: str | None
    digest: str | None = None
    family: str = ""  # python, debian, ubuntu, cuda, pytorch, ngc, dlc, …; "": unknown
    system: str = ""  # "debian12", "ubuntu22.04", "alpine", "centos7"
    python: str | None = None  # "3.11"; for Debian and Ubuntu the one of its package python3
    cuda: Version | None = None
    flavour: str = ""  # of CUDA images: base, runtime, devel
    cudnn: str = ""  # as in the tag: "-cudnn8", "-cudnn"
    torch: Version | None = None
    is_slim: bool = False  # no compiler, no git
    is_floating: bool = False  # a python image without a patch release: built again for the newest Debian

    def apt_system(self, today: date) -> str:
        """The release that apt-get installs from: "debian13"; "" if the tag does not determine it."""
        if self.system in ("ubuntu26.04", "ubuntu26.10"):
            return "ubuntu24.04"  # packages removed there are removed in later releases
        if self.family != "python" or self.system != "debian":
            return self.system if self.system.startswith(("debian", "ubuntu")) else ""
        if not self.is_floating or self.python is None:
            return ""
        # The images of 3.8 were built for the last time before the release of Debian 13.
        if Version(self.python) >= Version("3.9") and today >= _DEBIAN_13:
            return "debian13"
        return "debian12" if today >= _DEBIAN_12 else ""


@dataclass(frozen=True, slots=True)
class PackageGone:
    """A system package that some releases do not have."""

    systems: tuple[str, ...]
    instead: str  # the package that took its place; "": none
    is_elsewhere: bool  # other people's repositories have it


@dataclass(frozen=True, slots=True)
class Catalog:
    dated: date
    index: str
    cuda_tags: tuple[str, ...]
    torch_tags: tuple[str, ...]
    pythons: dict[str, date]  # version: when its support ends
    systems: dict[str, date]
    system_pythons: dict[str, str]
    unreachable_systems: tuple[str, ...]  # systems whose package servers have moved: apt-get update fails
    packages_gone: dict[str, PackageGone]
    python_packages: dict[str, tuple[str, ...]]  # system: Pythons that it has packages of
    cuda_last_patch: dict[str, int]  # of minors whose earlier patch releases were deleted
    cuda_deleted_below: Version
    cuda_ended_below: Version
    drivers: dict[str, int]
    arch_floor: dict[str, tuple[str, str]]  # arch: (oldest torch, oldest CUDA)
    arch_gone: dict[str, str]  # arch: CUDA whose wheels have no code for it any more
    gpus: dict[str, str]
    glibc: dict[str, Version]  # system: the version of its C library
    oldest_python_of_pip: Version  # that get-pip.py of the day accepts


@cache
def catalog() -> Catalog:
    data = json.loads(files(__package__).joinpath("data/bases.json").read_text("utf-8"))
    return Catalog(
        dated=date.fromisoformat(data["dated"]),
        index=data["torch_index"],
        cuda_tags=tuple(data["cuda_tags"]),
        torch_tags=tuple(data["torch_tags"]),
        pythons={name: date.fromisoformat(day) for name, day in data["pythons"].items()},
        systems={name: date.fromisoformat(day) for name, day in data["systems"].items()},
        system_pythons=dict(data["system_pythons"]),
        unreachable_systems=tuple(data["unreachable_systems"]),
        packages_gone={
            name: PackageGone(systems=tuple(row[0]), instead=row[1], is_elsewhere=row[2])
            for name, row in data["packages_gone"].items()
        },
        python_packages={system: tuple(row) for system, row in data["python_packages"].items()},
        cuda_last_patch=dict(data["cuda_last_patch"]),
        cuda_deleted_below=Version(data["cuda_deleted_below"]),
        cuda_ended_below=Version(data["cuda_ended_below"]),
        drivers={major: int(number) for major, number in data["drivers"].items()},
        arch_floor={arch: (row[0], row[1]) for arch, row in data["arch_floor"].items()},
        arch_gone=dict(data["arch_gone"]),
        gpus=dict(data["gpus"]),
        glibc={system: Version(number) for system, number in data["glibc"].items()},
        oldest_python_of_pip=Version(data["oldest_python_of_pip"]),
    )


_CODENAMES = {
    "stretch": "debian9",
    "buster": "debian10",
    "bullseye": "debian11",
    "bookworm": "debian12",
    "trixie": "debian13",
    "bionic": "ubuntu18.04",
    "focal": "ubuntu20.04",
    "jammy": "ubuntu22.04",
    "noble": "ubuntu24.04",
    "xenial": "ubuntu16.04",
    "jessie": "debian8",
    "zesty": "ubuntu17.04",
    "artful": "ubuntu17.10",
    "cosmic": "ubuntu18.10",
    "disco": "ubuntu19.04",
    "eoan": "ubuntu19.10",
    "groovy": "ubuntu20.10",
    "hirsute": "ubuntu21.04",
    "impish": "ubuntu21.10",
    "kinetic": "ubuntu22.10",
    "lunar": "ubuntu23.04",
    "mantic": "ubuntu23.10",
    "oracular": "ubuntu24.10",
    # Tags that move on with every release.
    "stable": "debian13",
    "rolling": "ubuntu26.10",
    "devel": "ubuntu26.10",
}
# The last patch releases whose images were built for Debian 10 or earlier, where the tag names no system.
_LAST_ON_DEBIAN_10 = {"3.5": 99, "3.6": 13, "3.7": 10, "3.8": 10, "3.9": 5}
_LATEST = {"ubuntu": "ubuntu26.04", "debian": "debian13"}
_RED_HAT = re.compile(r"(?:^|/)(?:ubi|rockylinux|almalinux|rhel|oraclelinux)([89])?(?:/|-|$)")
# Since when a python image of no stated system has which Debian.
_DEBIAN_12 = date(2023, 6, 15)
_DEBIAN_13 = date(2025, 8, 15)
# Registries that serve the images of Docker Hub under the same names.
_MIRROR = re.compile(
    r"^(?:mirror\.gcr\.io|public\.ecr\.aws/docker|docker\.1ms\.run|docker\.m\.daocloud\.io|m\.daocloud\.io/docker\.io"
    r"|hub\.rat\.dev|dockerproxy\.(?:com|net|cn)|registry-1\.docker\.io|docker\.mirrors\.[\w.]+|docker\.[a-z0-9]+\.run)/"
)
_ARCH_PREFIX = re.compile(r"^(arm64v8|arm32v7|amd64|i386)/")


def read_base(reference: str) -> Base:
    """`nvidia/cuda:12.1.1-runtime-ubuntu22.04`, taken apart."""
    rest, _, digest = reference.partition("@")
    head, _, tail = rest.rpartition("/")
    last, _, tag = tail.partition(":")
    name = f"{head}/{last}" if head else last
    name = _MIRROR.sub("", re.sub(r"^(?:index\.)?docker\.io/", "", name))
    name = _ARCH_PREFIX.sub("", name.removeprefix("library/"))
    base = Base(reference=reference, name=name, tag=tag or None, digest=digest or None)
    if "$" in reference:
        return base
    if name == "python":
        return _python(base)
    if name in ("debian", "ubuntu", "alpine", "centos"):
        return _system(base)
    if name in ("nvidia/cuda", "nvcr.io/nvidia/cuda"):
        return _cuda(base)
    if name == "pytorch/pytorch":
        return _pytorch(base)
    if name == "nvcr.io/nvidia/pytorch":
        return replace(base, family="ngc", flavour="devel")
    if name == "tensorflow/tensorflow":
        return _tensorflow(base)
    if name in ("continuumio/miniconda3", "continuumio/anaconda3"):
        return _conda(base)
    if name == "amazonlinux" or _RED_HAT.search(name):
        return _red_hat(base)
    if re.search(r"\.dkr\.ecr\..*/(?:huggingface-)?pytorch-", rest) or "/deep-learning-containers/" in rest:
        return _deep_learning_container(base)
    return base


def _python(base: Base) -> Base:
    tag = base.tag or ""
    floating = re.fullmatch(r"(?:(?:latest|3)(?=-|$))?-?((?:[a-z]+[\d.]*)?(?:-[a-z0-9.]+)*)", tag)
    if floating is not None and not tag.startswith("2"):
        # The newest Python is in the image some weeks after its release: the one before it is certain.
        tag = f"{sorted(catalog().pythons, key=Version)[-2]}-{floating[1]}".rstrip("-")
    match = _PYTHON_TAG.match(tag)
    if match is None:
        return replace(base, family="python", system="debian10" if tag.startswith("2") else "")
    rest = match["rest"].split("-")
    system = next((_CODENAMES[word] for word in rest if word in _CODENAMES), "")
    if any(word.startswith("alpine") for word in rest):
        system = "alpine"
    last = _LAST_ON_DEBIAN_10.get(match["python"], -1)
    patch = int((match["patch"] or ".999")[1:])
    if not system and (patch <= last or last == 99):
        system = "debian10"
    return replace(
        base,
        family="python",
        python=match["python"],
        system=system or "debian",
        is_slim="slim" in rest or system == "alpine",
        is_floating=match["patch"] is None,
    )


def _system(base: Base) -> Base:
    tag = (base.tag or "").removesuffix("-slim")
    number = re.match(r"^\d+(?:\.04|\.10)?", tag)
    system = _CODENAMES.get(tag.partition("-")[0], "")
    if base.name == "alpine":
        system = "alpine"
    elif tag in ("", "latest"):
        system = _LATEST.get(base.name, "")
    elif not system and number is not None:
        system = f"{base.name}{number[0]}"
    python = catalog().system_pythons.get(system)
    return replace(base, family=base.name, system=system, python=python, is_slim=True)


def _tensorflow(base: Base) -> Base:
    """`2.8.0-gpu`: the systems of its releases are not listed; only that apt reads NVIDIA's repository."""
    return replace(base, family="tensorflow", flavour="gpu" if "gpu" in (base.tag or "") else "")


def _conda(base: Base) -> Base:
    old = re.fullmatch(r"4\.(\d+)\.\d+", base.tag or "")
    return replace(base, family="conda", system="debian10" if old and int(old[1]) <= 10 else "")


def _red_hat(base: Base) -> Base:
    """Only its C library is known: the family stays empty, and rules about packages do not apply."""
    if base.name == "amazonlinux":
        return replace(base, system=f"amazon{(base.tag or '').partition('.')[0]}")
    named = _RED_HAT.search(base.name)
    release = (named[1] if named else None) or (base.tag or "")[:1]
    return replace(base, system=f"rhel{release}")


def _cuda(base: Base) -> Base:
    match = _CUDA_TAG.match(base.tag or "")
    if match is None:
        return replace(base, family="cuda", is_slim=True)
    return replace(
        base,
        family="cuda",
        cuda=Version(match["cuda"]),
        cudnn=match["cudnn"] or match["late"] or "",
        flavour=match["flavour"],
        system=match["system"],
        python=catalog().system_pythons.get(match["system"]),
        is_slim=match["flavour"] != "devel",
    )


def _pytorch(base: Base) -> Base:
    match = _TORCH_TAG.match(base.tag or "")
    if match is None:
        return replace(base, family="pytorch")
    return replace(
        base,
        family="pytorch",
        torch=Version(match["torch"]),
        cuda=Version(match["cuda"]),
        flavour=match["flavour"],
        is_slim=match["flavour"] != "devel",
    )


def _deep_learning_container(base: Base) -> Base:
    match = re.match(r"^(\d+\.\d+\.\d+)-", base.tag or "")
    torch = Version(match[1]) if match else None
    cuda = re.search(r"-cu(\d{2})(\d)-", base.tag or "")
    return replace(
        base, family="dlc", torch=torch, cuda=Version(f"{cuda[1]}.{cuda[2]}") if cuda is not None else None
    )

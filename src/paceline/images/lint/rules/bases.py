"""Rules about base images: tags that do not exist, systems that have ended, other processors (13, 18, 19)."""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.bases import Base, catalog, read_base
from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.edits import above, another_base, is_root_at, nearest_cuda_tag, supported_python
from paceline.images.lint.matrix import wheels
from paceline.images.lint.project import Change, Edit, Finding, Kind, Level, edits_of, insertion, offset_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

ENDED = Pattern(
    number=13,
    id="base-ended",
    what="The base image is out of support, was deleted, or changes over time (`latest`).",
    fix="the nearest supported tag: same CUDA major, same flavour, same system where there is one",
)
LIBC = Pattern(
    number=18,
    id="old-libc",
    what="The base has musl, or a glibc older than the wheels need (manylinux_2_28).",
    fix="the same Python on Debian slim, or Ubuntu 22.04",
)
PLATFORM = Pattern(
    number=19,
    id="wrong-platform",
    what="The image is built for another CPU architecture than its hosts (exec format error).",
    fix="`--platform` is set to the target's",
)
KEY = Pattern(
    number=13,
    id="repository-key",
    what="The base has an old key of NVIDIA's repository, replaced in April 2022: apt-get update fails.",
    fix="the outdated list is removed before `apt-get update`",
)
PATTERNS = (ENDED, LIBC, PLATFORM, KEY)
_KEYED = Version("1.12.0")  # the first pytorch images made with NVIDIA's present key
_OLD_GLIBC = frozenset({"ubuntu16.04", "ubuntu18.04", "debian9", "centos7"})
_WITH_2_28 = Version("2.6.0")  # torch's wheels are manylinux_2_28 from here on
_NEW_SYSTEM = {"debian9": "bookworm", "debian10": "bookworm"}
# Packages with the same name in Debian 10 and 12.
_SAME_IN_BOOKWORM = frozenset(
    [
        "git",
        "curl",
        "wget",
        "gcc",
        "g++",
        "make",
        "cmake",
        "build-essential",
        "ca-certificates",
        "ffmpeg",
        "unzip",
        "zip",
        "vim",
        "libgl1",
        "libgl1-mesa-glx",
        "libglib2.0-0",
        "libsm6",
        "libxext6",
        "libxrender1",
        "libgomp1",
        "libpq-dev",
        "libpq5",
        "pkg-config",
        "libsndfile1",
        "ninja-build",
        "tmux",
        "htop",
        "python3-dev",
        "procps",
        "gnupg",
        "openssh-client",
        "openssh-server",
        "rsync",
        "jq",
        "less",
        "locales",
        "libssl-dev",
        "libffi-dev",
    ]
)
_WITH_CUDNN_9 = Version("2.4")
_CODENAME = {"debian9": "stretch", "debian10": "buster"}


def ended(view: StageView) -> Iterator[Finding]:
    base = view.base
    origin = view.stage.origin
    if view.stage.parent is not None or base.digest is not None:
        return
    if base.family == "cuda":
        yield from _cuda_ended(view, base, origin)
    elif why := _why_no_such_tag(base):
        yield ENDED.finding(view, origin, why, f"FROM {base.reference}", "use a tag of the publisher's list")
    elif base.family == "pytorch" and base.torch is not None:
        yield from _no_pytorch_tag(view, base, origin)
    elif base.family == "python" and (why := _why_no_python_tag(base)):
        advice = "use a tag of Docker Hub's list, such as python:3.12-slim-bookworm"
        yield ENDED.finding(view, origin, why, f"FROM {base.reference}", advice)
    elif base.system in catalog().unreachable_systems and view.system and not _asks_the_archive(view):
        yield _packages_moved(view, base, origin)
    elif base.family and base.tag in (None, "latest"):
        yield ENDED.finding(
            view,
            origin,
            f"{base.reference} changes whenever its publisher updates it",
            f"tag: {base.tag or 'none, which means latest'}",
            "name a version; `python:3.12-slim` or a tag of the curated list",
            level=Level.WARNING,
        )
    else:
        yield from _no_longer_supported(view, base, origin)


def _cuda_ended(view: StageView, base: Base, origin: Instruction) -> Iterator[Finding]:
    why = _why_deleted(base)
    is_old = base.cuda is not None and base.cuda < catalog().cuda_ended_below
    if not why and not is_old:
        return
    tag = existing_tag(view, base) if why else None
    yield ENDED.finding(
        view,
        origin,
        why or f"CUDA {base.cuda} images are no longer supported, and NVIDIA deletes such tags",
        f"FROM {base.reference}; the list of {catalog().dated} starts with {catalog().cuda_ended_below}",
        f"use {base.name}:{tag}" if tag else "choose a tag of a supported CUDA",
        another_base(view, f"{base.name}:{tag}") if tag and _is_same_system(base, tag) else (),
        level=Level.PROBLEM if why and base.name == "nvidia/cuda" else Level.WARNING,
    )


def existing_tag(view: StageView, base: Base) -> str | None:
    """The same tag with a patch release that is left, or the nearest one of the list."""
    minor = re.match(r"^(\d+\.\d+)", base.tag or "")
    patches = dict(catalog().cuda_last_patch)
    for tag in catalog().cuda_tags:
        number = Version(tag.partition("-")[0])
        patches[f"{number.major}.{number.minor}"] = number.micro
    if minor is not None and minor[1] in patches and "-" in (base.tag or ""):
        same = re.sub(r"^\d+\.\d+(\.\d+)?", f"{minor[1]}.{patches[minor[1]]}", base.tag or "")
        if same != base.tag and not _why_deleted(read_base(f"nvidia/cuda:{same}")):
            return same
    return nearest_cuda_tag(base, _major_wanted(view, base))


def _is_same_system(base: Base, tag: str) -> bool:
    """Another release has other packages and another Python: then a person decides."""
    return base.system == "" or tag.endswith(f"-{base.system}")


def _why_deleted(base: Base) -> str:
    """Why there is no such tag of nvidia/cuda; empty: there may be."""
    tag = base.tag or "latest"
    cuda = base.cuda
    last = catalog().cuda_last_patch
    if tag == "latest":
        return "nvidia/cuda has no tag latest, which a name without a tag means"
    if re.match(r"^\d+\.\d+-", tag):
        return f"nvidia/cuda has no tag {tag}: its versions have three parts"
    if re.match(r"^\d+\.\d+(\.\d+)?$", tag):
        return f"nvidia/cuda has no tag {tag}: the flavour and the system are parts of it"
    bare = re.match(r"^(\d+\.\d+\.\d+)(?:-cudnn\d*)?-(?:base|runtime|devel)$", tag)
    cuda = Version(bare[1]) if bare is not None else cuda  # a tag without a system: a few are left
    if cuda is None:
        return ""
    if cuda < catalog().cuda_deleted_below:
        return f"NVIDIA has deleted the images of CUDA {cuda}"
    if cuda.micro < last.get(f"{cuda.major}.{cuda.minor}", 0):
        minor = f"{cuda.major}.{cuda.minor}"
        return f"NVIDIA has deleted the images of CUDA {cuda}: of {minor} only {minor}.{last[minor]} is left"
    return _why_never(base, cuda)


def _why_never(base: Base, cuda: Version) -> str:
    """Flavours and systems that this CUDA was never published with."""
    tag = base.tag or ""
    minor = Version(f"{cuda.major}.{cuda.minor}")
    if re.search(r"-(?:runtime|devel|base)-cudnn", tag):
        return f"nvidia/cuda has no tag {tag}: cuDNN comes before the flavour"
    if base.cudnn == "-cudnn" and minor < Version("12.4"):
        return f"nvidia/cuda has no tag {tag}: before CUDA 12.4 the tag names cuDNN's version, such as cudnn8"
    if base.cudnn == "-cudnn8" and minor >= Version("12.4"):
        return f"nvidia/cuda has no tag {tag}: from CUDA 12.4 on it has cudnn, without a version"
    first = {"ubuntu24.04": Version("12.5"), "ubuntu22.04": Version("11.7")}.get(base.system)
    if first is not None and minor < first:
        return f"nvidia/cuda has no tag {tag}: {base.system} starts with CUDA {first}"
    if base.system == "ubuntu20.04" and minor >= Version("13.0"):
        return f"nvidia/cuda has no tag {tag}: CUDA 13 is not made for {base.system}"
    return ""


_CONTAINER_TAG = re.compile(
    r"^\d+\.\d+(?:\.\d+)?(?:-transformers[\d.]+)?(?:-(?:cpu|gpu)(?:-py3\d{0,2}(?:-cu\d{2,3})?(?:-(?:ubuntu|amzn)[\d.]+)?"
    r"(?:-(?:sagemaker|ec2|e3))?(?:-v?[\d.-]+)*)?)?$"
)


def _why_no_such_tag(base: Base) -> str:
    """Tags that do not have the form of their publisher's; empty: it may exist."""
    tag = base.tag or "latest"
    if re.search(r"\.amazonaws\.com/pytorch-(?:training|inference)$", base.name) and base.family == "dlc":
        if not _CONTAINER_TAG.match(tag):
            return f"{base.name} has no tag {tag}: its parts are version-device-python-CUDA-system-service"
        if re.search(r"-gpu-py3\d*-(?:ubuntu|amzn)", tag) or re.search(r"-cpu-py3\d*-cu", tag):
            return f"{base.name} has no tag {tag}: gpu tags with a system name CUDA, cpu tags do not"
    if base.family == "ngc" and not re.match(r"^\d\d\.(?:0[1-9]|1[0-2])-py[23]", tag):
        return f"{base.name} has no tag {tag}: they are year.month-py3, such as 25.03-py3"
    release = re.match(r"^v?(\d+\.\d+(?:\.\d+)?)(?:[-+_]|$)", tag) if base.family == "pytorch" else None
    is_recent = release is not None and Version(release[1]) >= Version("1.6")
    if is_recent and (base.torch is None or base.torch.release[2:] == ()):
        return f"{base.name} has no tag {tag}: they are version-cudaX.Y-cudnnZ-runtime or -devel"
    return ""


# The first and the last Python that the images of a Debian release were made for.
_PYTHONS_OF_DEBIAN = {"debian10": ("3.0", "3.11"), "debian12": ("3.7", "3.99"), "debian13": ("3.9", "3.99")}


def _why_no_python_tag(base: Base) -> str:
    """Why there is no such tag of python; empty: there may be."""
    if base.system.startswith("ubuntu"):
        return f"python has no tag {base.tag}: its images are made for Debian and Alpine"
    first, last = _PYTHONS_OF_DEBIAN.get(base.system, ("3.0", "3.99"))
    is_named = base.tag is not None and re.search(r"buster|bookworm|trixie", base.tag) is not None
    if base.python is None or not is_named or Version(first) <= Version(base.python) <= Version(last):
        return ""
    return f"python has no tag {base.tag}: images for {base.system} are those of Python {first} to {last}"


def _no_pytorch_tag(view: StageView, base: Base, origin: Instruction) -> Iterator[Finding]:
    """Each release of pytorch/pytorch is published with two or three CUDAs."""
    assert base.torch is not None, "asked for by ended, which has looked"
    cudas = wheels().image_cudas.get(f"{base.torch.major}.{base.torch.minor}")
    cudnn = re.search(r"-cudnn(\d+)-", base.tag or "")
    expected = "9" if base.torch >= _WITH_CUDNN_9 else "8"
    if cudnn is not None and base.torch >= Version("2.0") and cudnn[1] != expected:
        yield ENDED.finding(
            view,
            origin,
            f"{base.reference} was never published: the images of torch {base.torch} have cuDNN {expected}",
            f"FROM {base.reference}",
            f"write -cudnn{expected}-",
        )
    elif cudas is not None and base.cuda is not None and f"{base.cuda.major}.{base.cuda.minor}" not in cudas:
        yield ENDED.finding(
            view,
            origin,
            f"{base.reference} was never published: torch {base.torch} exists with CUDA {', '.join(cudas)}",
            f"FROM {base.reference}",
            f"use CUDA {cudas[-1]}, with the cuDNN in its tag",
        )


def _major_wanted(view: StageView, base: Base) -> int:
    torch = view.torch
    if torch is not None and torch.cuda is not None:
        return torch.cuda.major
    return 12 if base.cuda is None else max(base.cuda.major, 11)


def _asks_the_archive(view: StageView) -> bool:
    """Its packages are still served from the archive."""
    argv = [word for step in view.steps for command in step.commands for word in command.texts]
    copied = [value for step in view.steps if step.word in ("COPY", "ADD") for value in step.values]
    return any(
        re.search(
            r"archive\.debian\.org|vault\.centos\.org|old-releases\.ubuntu\.com|snapshot\.debian\.org|sources\.list",
            word,
        )
        for word in argv
    ) or any("sources.list" in value or "yum.repos.d" in value for value in copied)


def _packages_moved(view: StageView, base: Base, origin: Instruction) -> Finding:
    old = _CODENAME.get(base.system, "")
    new = _NEW_SYSTEM.get(base.system, "")
    other = base.reference.replace(old, new) if old else base.reference
    if base.family == "python":
        other = re.sub(r":(3\.\d+)\.\d+", r":\1", other)  # old patch releases were never made for the new one
    plain = all(word.text in _SAME_IN_BOOKWORM for install in view.system for word in install.packages)
    can = other != base.reference and base.python != "3.6" and plain  # nor was the whole of 3.6
    return ENDED.finding(
        view,
        origin,
        f"{base.system} is out of support, and its package server is offline: apt-get update fails",
        f"FROM {base.reference}, out of support since {catalog().systems[base.system]}",
        f"use {other}" if can else "use a supported system",
        another_base(view, other) if can else (),
    )


def _no_longer_supported(view: StageView, base: Base, origin: Instruction) -> Iterator[Finding]:
    """It is still there and still builds: a person decides."""
    today = view.target.today
    known = catalog()
    ends = known.systems.get(base.system)
    subject = base.system
    newer = ""
    if base.family == "python" and base.python is not None:
        ends = known.pythons.get(base.python)
        subject = f"Python {base.python}"
        other = supported_python(view, today)
        newer = "" if other is None else base.reference.replace(base.python, other, 1)
        newer = re.sub(r"(3\.\d+)\.\d+", r"\1", newer)
    if ends is not None and ends < today:
        yield ENDED.finding(
            view,
            origin,
            f"{subject} has had no security fixes since {ends}",
            f"FROM {base.reference}",
            f"use {newer}, after testing your code with it" if newer else "move to a supported version",
            another_base(view, newer) if newer else (),
            asks=True,
            level=Level.WARNING,
        )


def repository_key(view: StageView) -> Iterator[Finding]:
    """Images of before April 2022 with a list of NVIDIA's repository: the signature cannot be verified."""
    base = view.base
    if view.stage.parent is not None or base.digest is not None:
        return
    is_old_torch = base.family == "pytorch" and base.flavour == "devel" and (base.torch or _KEYED) < _KEYED
    release = re.match(r"^(\d+\.\d+\.\d+)", base.tag or "") if base.flavour == "gpu" else None
    is_old_tensorflow = release is not None and Version(release[1]) <= Version("2.8.0")
    script = " ".join(view.words)
    is_replaced = re.search(
        r"3bf863cc|A4B469963BF863CC|cuda-keyring|sources\.list|allow-insecure|AllowInsecure", script, re.I
    )
    if not (is_old_torch or is_old_tensorflow) or is_replaced or "trusted=yes" in script:
        return
    step = next((step for step in view.stage.instructions if _updates_lists(step)), None)
    if step is None:
        return
    remove = "RUN rm -f /etc/apt/sources.list.d/cuda.list /etc/apt/sources.list.d/nvidia-ml.list"
    yield KEY.finding(
        view,
        step,
        f"{base.reference} is older than the key of NVIDIA's repository: `NO_PUBKEY A4B469963BF863CC`",
        f"FROM {base.reference}; the key was replaced on 2022-04-27",
        f"add `{remove}` before apt-get update, or use a newer base",
        (insertion(view.dockerfile, above(view, step), [remove]),) if is_root_at(view, step) else (),
    )


def _updates_lists(step: Instruction) -> bool:
    return any(
        re.search(r"\bapt(?:-get)?\b.*\bupdate\b", " ".join(command.texts)) for command in step.commands
    )


def old_libc(view: StageView) -> Iterator[Finding]:
    base = view.base
    is_alpine = base.system == "alpine"
    heavy = [package for package in view.own if _is_only_for_glibc(package, is_alpine=is_alpine)]
    is_inherited = view.stage.parent is not None
    if not heavy or (is_inherited and not is_alpine):
        return
    if is_alpine:
        why = f"{heavy[0].spec.name} has no wheels for musl, which {base.reference} uses"
        new = re.sub(r"-alpine[\d.]*$", "-slim", base.reference) if base.family == "python" else ""
    elif base.system in _OLD_GLIBC and _is_new(view):
        why = f"{heavy[0].spec.name} needs glibc 2.28, and {base.system} has an older one"
        new = base.reference.replace("18.04", "22.04").replace("16.04", "22.04")
        if base.family == "cuda":
            tag = nearest_cuda_tag(base, base.cuda.major if base.cuda else 12)
            new = f"{base.name}:{tag}" if tag else ""
        if any(install.tool == "apt" for install in view.system):
            new = ""  # the packages of the newer system have other names and another Python
    else:
        return
    if new == base.reference:
        new = ""
    # Its own package commands (apk) mean nothing on Debian: then a person must translate them.
    can = bool(new) and not is_inherited and not any(install.tool == "apk" for install in view.system)
    yield LIBC.finding(
        view,
        heavy[0].spec if is_inherited else view.stage.origin,
        why,
        f"FROM {base.reference}; {heavy[0].spec.text} ({heavy[0].spec.path}:{heavy[0].spec.line})",
        f"use {new}" if new else "use a Debian or Ubuntu base",
        another_base(view, new) if can else (),
    )


# Their dependencies name torch, without an extra that must be requested.
_NEED_TORCH = frozenset(
    [
        "accelerate",
        "deepspeed",
        "demucs",
        "easyocr",
        "fairscale",
        "lightning",
        "openai-whisper",
        "peft",
        "pytorch-lightning",
        "sentence-transformers",
        "stable-baselines3",
        "timm",
        "torchmetrics",
        "trl",
        "ultralytics",
        "vllm",
        "whisperx",
    ]
)


def _is_only_for_glibc(package: Installed, *, is_alpine: bool) -> bool:
    """Whether its wheels are from PyPI or PyTorch's index, and none is for musl."""
    brings_torch = is_alpine and package.spec.name in _NEED_TORCH and not package.by.flags & {"--no-deps"}
    if package.spec.is_url or not (brings_torch or wheels().has_nothing_for_musl(package.spec.name)):
        return False
    return all(is_alpine and "pytorch.org" in address for address in package.by.values("find-links"))


def _is_new(view: StageView) -> bool:
    torch = view.torch
    return torch is not None and torch.pin is not None and torch.pin >= _WITH_2_28


def wrong_platform(view: StageView) -> Iterator[Finding]:
    origin = view.stage.origin
    expected = view.target.platform
    platform = origin.flag("platform")
    reached = {stage.number for stage in view.docker.chain(view.docker.stages[-1])}
    if view.stage.number not in reached:
        return
    # Intended for the other architecture, by its name or its downloads.
    script = " ".join([view.docker.path, *view.words])
    on_purpose = re.search(r"aarch64|arm64|jetson|l4t|sbsa|graviton|armv[78]", script, re.I) is not None
    other = re.match(r"^(arm64v8|arm32v7|i386)/", view.stage.base)
    if (
        platform is not None
        and not platform.startswith("$")
        and platform.split("/")[:2] != expected.split("/")[:2]
    ):
        if on_purpose:
            return
        edits = _platform_edit(view, origin, platform, expected) if view.kind is Kind.GPU else ()
        why = f"it is built for {platform}, but the target is {expected}"
        # The default of --platform is a guess: certain only where the rest of the image is for NVIDIA's GPUs.
        level = Level.PROBLEM if view.kind is Kind.GPU else Level.WARNING
        evidence = f"FROM --platform={platform}"
        yield PLATFORM.finding(view, origin, why, evidence, f"write {expected}", edits, level=level)
    elif platform is not None and re.fullmatch(r"\$\{?BUILDPLATFORM\}?", platform):
        edits = _platform_edit(view, origin, platform, "$TARGETPLATFORM")
        why = "the final stage is built for the build machine, not for the target"
        yield PLATFORM.finding(
            view,
            origin,
            why,
            f"FROM --platform={platform}",
            "write $TARGETPLATFORM",
            edits,
            level=Level.WARNING,
        )
    elif other is not None and expected == "linux/amd64" and not on_purpose:
        new = view.stage.base.removeprefix(other[0])
        why = f"{view.stage.base} is built for {other[1]}, but the target is {expected}"
        edits = another_base(view, new)
        yield PLATFORM.finding(view, origin, why, f"FROM {view.stage.base}", f"use {new}", edits)


def _platform_edit(view: StageView, origin: Instruction, old: str, new: str) -> tuple[Edit, ...]:
    text = view.docker.text
    at = text.find(f"={old}", offset_of(text, origin.first)) + 1
    return edits_of(view.dockerfile, [Change(at, at + len(old), new)])


RULES = (ended, repository_key, old_libc, wrong_platform)

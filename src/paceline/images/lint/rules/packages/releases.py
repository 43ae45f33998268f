"""Rules about pinned releases and builds that were never published (22).

Judged by the table of wheels, which is complete up to its date for the packages it names. A later release, a
package or an index that it does not know is not judged.
"""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.matrix import wheels
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

NO_RELEASE = Pattern(
    number=22,
    id="no-such-release",
    what="A pinned release, or its build for this CUDA, was never published.",
    fix="only reported: the nearest release that exists",
)
PATTERNS = (NO_RELEASE,)
# Their makers publish releases in other places too: what PyPI does not list may exist there.
_ALSO_ELSEWHERE = frozenset(
    [
        "xformers",
        "vllm",
        "flash-attn",
        "onnxruntime-gpu",
        "tensorrt",
        "mmcv",
        "mmcv-full",
        "torch-scatter",
        "torch-sparse",
        "torch-cluster",
        "torch-spline-conv",
        "dgl",
        "paddlepaddle",
        "paddlepaddle-gpu",
        "llama-cpp-python",
        "auto-gptq",
        "jaxlib",
        "triton",
        "fbgemm-gpu",
        "torchrec",
        "torchdata",
        "torchtext",
        "gdal",
        "causal-conv1d",
        "mamba-ssm",
        "deepspeed",
        "bitsandbytes",
        "faiss-gpu",
    ]
)
KNOWN_HOSTS = re.compile(
    r"pytorch\.org|pypi\.org|pypi\.python\.org|tsinghua|aliyun|ustc|tencent|huaweicloud|douban"
)
_BUILD = re.compile(r"cu(\d{2,3})")
_MMCV = re.compile(r"openmmlab\.com/mmcv/dist/cu(\d+)/torch(\d+\.\d+)")


def is_judged(view: StageView, package: Installed) -> bool:
    """Whether its wheels are from PyPI or PyTorch's index, and a pin selects the release."""
    if package.spec.pin is None or package.spec.is_url:
        return False
    addresses = view.indexes(package)
    return all(KNOWN_HOSTS.search(address) or "$" in address for address in addresses) and not any(
        "nightly" in address or "/test" in address for address in addresses
    )


def no_such_release(view: StageView) -> Iterator[Finding]:
    yield from _no_version(view)
    for package in view.own:
        name = package.spec.name
        pin = package.spec.pin
        if pin is None or not is_judged(view, package) or pin.is_prerelease or pin.is_devrelease:
            continue
        if name not in _ALSO_ELSEWHERE and wheels().knows(name, pin) and not wheels().exists(name, pin):
            if pin < min(wheels().packages[name]) or pin.is_postrelease:
                continue
            near = _near_releases(name, pin)
            yield NO_RELEASE.finding(
                view,
                package.spec,
                f"{name} {pin.public} was never released: `No matching distribution found`",
                f"not among the releases on PyPI of {wheels().dated}; near it: {', '.join(near)}",
                f"pin an existing release, such as {near[-1]}",
            )
        elif name == "torch":
            yield from _no_such_build(view, package, pin)


def _no_version(view: StageView) -> Iterator[Finding]:
    """`torch==latest`: pip reads `==` as a version, and that is none."""
    for by in [install for install in view.pip if id(install.instruction) in view.own_steps]:
        for word in by.command.words if by.tool == "pip" else ():
            match = re.fullmatch(r"([A-Za-z][\w.-]*)(?:\[[\w,-]*\])?==(latest|newest|stable)", word.text)
            if match is not None:
                yield NO_RELEASE.finding(
                    view,
                    by.instruction,
                    f"{match[2]} is not a version: `No matching distribution found for {word.text}`",
                    word.text,
                    f"write {match[1]} alone, or pin a release",
                )


def _near_releases(name: str, pin: Version) -> list[str]:
    known = sorted(wheels().packages[name])
    older = [release for release in known if release < pin][-2:]
    return [str(release) for release in (*older, *[release for release in known if release > pin][:1])]


def _no_such_build(view: StageView, package: Installed, pin: Version) -> Iterator[Finding]:
    """`torch==2.4.0+cu128`, or torch 2.4.0 from the index cu128 alone."""
    builds = wheels().cuda_builds.get(f"{pin.major}.{pin.minor}")
    only = [*package.by.values("index-url", "default-index")]
    match = pin.local or next((address.rstrip("/").rpartition("/")[2] for address in only), "")
    matched = _BUILD.fullmatch(match)
    if builds is None or matched is None or matched[1] in builds or package.by.values("extra-index-url"):
        return
    yield NO_RELEASE.finding(
        view,
        package.spec,
        f"torch {pin.public} was never built for {match}: `No matching distribution found`",
        f"torch {pin.major}.{pin.minor} has builds for {', '.join(f'cu{build}' for build in builds)}",
        f"use cu{builds[-1]}, or a torch that has a build for {match}",
    )


def no_such_index(view: StageView) -> Iterator[Finding]:
    """OpenMMLab's wheels lie in a folder for each CUDA and torch: none where torch was never built for it."""
    for by in [install for install in view.pip if id(install.instruction) in view.own_steps]:
        for address in by.values("find-links"):
            match = _MMCV.search(address)
            builds = wheels().cuda_builds.get(match[2]) if match is not None else None
            torch = view.torch.pin if view.torch is not None else view.base.torch
            if match is None:
                continue
            if builds is not None and match[1] not in builds:
                yield NO_RELEASE.finding(
                    view,
                    by.instruction,
                    f"torch {match[2]} was never built for CUDA {match[1]}: that address has no wheels",
                    address,
                    f"name the CUDA of your torch: {', '.join(f'cu{build}' for build in builds)}",
                )
            elif torch is not None and f"{torch.major}.{torch.minor}" != match[2] and not view.has_conda:
                yield NO_RELEASE.finding(
                    view,
                    by.instruction,
                    f"the wheels there are for torch {match[2]}, and torch {torch} is installed: "
                    "`undefined symbol` on import",
                    address,
                    f"name torch{torch.major}.{torch.minor} in the address",
                )


RULES = (
    no_such_release,
    no_such_index,
)

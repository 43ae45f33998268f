"""Rules about releases: pins that do not exist, have no wheel here, or exclude each other (3, 22 to 25).

Judged by the table of wheels, which is complete up to its date for the packages it names. A later release, a
package or an index that it does not know is not judged.
"""

import re
from collections.abc import Iterator
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from paceline.images.lint.bases import catalog
from paceline.images.lint.edits import another_base, respelled, with_python
from paceline.images.lint.matrix import matrix, wheels
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, Place

NO_WHEEL = Pattern(
    number=3,
    id="python-without-wheel",
    what="A pinned package has no wheel for the Python of the image, and cannot be built there.",
    fix="the nearest Python that every pin has a wheel for; pins are not touched",
)
NO_RELEASE = Pattern(
    number=22,
    id="no-such-release",
    what="A pinned release, or its build for this CUDA, was never published.",
    fix="only reported: the nearest release that exists",
)
UNPINNED = Pattern(
    number=23,
    id="sister-unpinned",
    what="torchvision without a version is installed behind a pinned torch: it replaces that torch.",
    fix="the sister is pinned to the release made for that torch",
)
BOUND = Pattern(
    number=24,
    id="bound-to-another-torch",
    what="A package that accepts one torch only (xformers, vllm, triton) is pinned beside another.",
    fix="only reported: which torch it accepts",
)
NAME = Pattern(
    number=25,
    id="wrong-package-name",
    what="The name asked for is not the package that is meant, and its installation fails.",
    fix="the name of the package that is meant",
)
ONLY_INDEX = Pattern(
    number=25,
    id="not-on-this-index",
    what="`--index-url` names PyTorch's index alone, which does not have the other packages of the command.",
    fix="only reported: a command of its own for torch, or `--extra-index-url`",
)
PATTERNS = (NO_WHEEL, NO_RELEASE, UNPINNED, BOUND, NAME, ONLY_INDEX)
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
# Their archives take Fortran, LLVM, Arrow or a Python that still has distutils: on a Python later than their
# wheels' the build fails with a C compiler too.
_HARD_TO_BUILD = frozenset(
    [
        "numpy",
        "scipy",
        "pandas",
        "scikit-learn",
        "numba",
        "llvmlite",
        "pyarrow",
        "tensorflow",
        "onnx",
        "h5py",
        "tables",
        "scikit-image",
        "ray",
    ]
)
# Compiled by Rust's compiler.
_RUST = frozenset({"tokenizers", "safetensors", "tiktoken", "orjson", "pydantic-core", "polars"})
# Their build takes the newest Cython, which refuses their code: (first, last) release.
_CYTHON_3 = {"pyyaml": (Version("5.4"), Version("6.0"))}
# Built against torch, by rules of their own.
_AGAINST_TORCH = frozenset({"xformers", "vllm", "deepspeed", "flash-attn", "mmcv", "mmcv-full"})
_KNOWN_HOSTS = re.compile(
    r"pytorch\.org|pypi\.org|pypi\.python\.org|tsinghua|aliyun|ustc|tencent|huaweicloud|douban"
)
_MEANT = {
    "sklearn": "scikit-learn",
    "pytorch": "torch",
    "cv2": "opencv-python-headless",
    "pil": "pillow",
    "skimage": "scikit-image",
    "opencv": "opencv-python-headless",
    "tensorflow-gpu": "tensorflow",
    "yaml": "pyyaml",
}
# Names that no release on PyPI, or none of what is meant, stands behind; what to do is not another name.
_NOT_ON_PYPI = {
    "apex": "NVIDIA's Apex is not on PyPI: install git+https://github.com/NVIDIA/apex",
    "pkg-resources": "pip freeze of Debian names it by mistake: leave it out",
    **dict.fromkeys(
        ["os", "sys", "json", "math", "time", "pickle", "tkinter"], "a part of Python: leave it out"
    ),
}
_STILL_THERE = {"tensorflow-gpu": Version("2.11"), "pytorch": Version("99")}
_BUILD = re.compile(r"cu(\d{2,3})")
# Of the packages that are asked for beside torch, these are certainly not on PyTorch's index.
_ONLY_ON_PYPI = frozenset(
    [
        "transformers",
        "accelerate",
        "datasets",
        "diffusers",
        "pandas",
        "scikit-learn",
        "scipy",
        "matplotlib",
        "opencv-python",
        "peft",
        "gradio",
        "opencv-python-headless",
        "fastapi",
        "flask",
        "tensorboard",
        "wandb",
        "lightning",
        "pytorch-lightning",
        "ultralytics",
        "timm",
        "uvicorn",
        "sentencepiece",
        "tokenizers",
        "huggingface-hub",
        "streamlit",
        "mlflow",
        "trl",
        "bitsandbytes",
        "deepspeed",
        "jupyter",
        "einops",
        "sentence-transformers",
        "spacy",
        "nltk",
        "seaborn",
    ]
)


def _is_judged(place: Place, one: Installed) -> bool:
    """Its wheels come from PyPI or PyTorch's index, and a pin says which."""
    if one.asked.pin is None or one.asked.is_url:
        return False
    addresses = place.indexes(one)
    return all(_KNOWN_HOSTS.search(address) or "$" in address for address in addresses) and not any(
        "nightly" in address or "/test" in address for address in addresses
    )


def _is_amd64(place: Place) -> bool:
    said = place.docker.chain(place.stage)[0].origin.flag("platform") or place.target.platform
    return "arm" not in said


def python_without_wheel(place: Place) -> Iterator[Finding]:
    python, libc = place.python, "musl" if place.base.system == "alpine" else ""
    if python is None or not _is_amd64(place):
        return
    for one in place.own:
        name, pin = one.asked.name, one.asked.pin
        if pin is None or not _is_judged(place, one) or not wheels().tags(name, pin):
            continue
        if wheels().has_wheel(name, pin, python, libc=libc):
            continue
        if libc and wheels().has_nothing_for_musl(name):
            continue  # no Python would help: judged with the base
        known = wheels().pythons(name, pin)
        if wheels().has_source(name, pin, python) and not _must_fail(place, name, pin, known):
            continue
        if (
            not known
            and not wheels().has_source(name, pin, python)
            and "source" not in wheels().tags(name, pin)
        ):
            continue  # a release for other systems, or for Pythons before those of the table
        yield _without_wheel(place, one, python, known)


_LATEST_CONDA = re.compile(r"Miniconda3-latest|latest/download/Miniforge3")
_OLDEST_OF_CONDA = Version("3.12")  # the latest installers have this Python or a newer one


def installer_without_wheel(place: Place) -> Iterator[Finding]:
    """The latest Miniconda brings its own Python, which an old torch has no wheel for."""
    words = place.words
    chosen = re.compile(r"^python\W*[=<>~]|^python3?\.?\d|^(?:create|env|pyenv|venv|uv)$|\.ya?ml$")
    if place.base.family not in ("debian", "ubuntu", "cuda") or "python3-pip" in place.system_packages:
        return
    installer = next((word for word in words if _LATEST_CONDA.search(word)), None)
    if installer is None or any(chosen.search(word.strip("\"'")) for word in words):
        return
    for one in place.own:
        pin = one.asked.pin
        if one.asked.name != "torch" or pin is None or not _is_judged(place, one):
            continue
        known = wheels().pythons("torch", pin)
        if known and Version(known[-1]) < _OLDEST_OF_CONDA:
            yield NO_WHEEL.found(
                place,
                one.asked,
                f"torch {pin} has wheels up to Python {known[-1]}, and the latest installer of conda brings "
                f"{_OLDEST_OF_CONDA} or newer: `No matching distribution found`",
                f"{one.asked.text}; {installer[-80:]}",
                f"install python={known[-1]} with conda before it, or pin the installer's release",
            )


def _must_fail(place: Place, name: str, pin: Version, known: list[str]) -> bool:
    """Building the archive fails: no compiler, no Rust, or code that the tools of the day refuse."""
    if name in _AGAINST_TORCH or "no-build-isolation" in "".join(place.words):
        return False
    python = Version(place.python or "3")
    first, last = _CYTHON_3.get(name, (Version("1"), Version("0")))
    if first <= pin <= last:
        return True
    is_later = bool(known) and python > Version(known[-1])
    if (
        is_later
        and name in _HARD_TO_BUILD
        and (python >= Version("3.12") or name in ("numba", "llvmlite", "pyarrow"))
    ):
        return not place.has_conda
    has_rust = any(re.search(r"rustup|cargo|rustc", word) for word in place.words)
    if name in _RUST:
        return bool(known) and not has_rust and not place.has_conda and place.are_packages_known
    return wheels().is_compiled(name) and _has_no_compiler(place)


def _has_no_compiler(place: Place) -> bool:
    named = any(re.search(r"\bgcc|\bclang|build-essential|build-base|\bg\+\+", word) for word in place.words)
    return place.base.is_slim and not named and not place.has_conda and place.are_packages_known


def _without_wheel(place: Place, one: Installed, python: str, known: list[str]) -> Finding:
    pinned = [o for o in place.installed if o.asked.pin is not None and not o.asked.is_url]
    listed = [set(wheels().pythons(o.asked.name, o.asked.pin)) for o in pinned if o.asked.pin is not None]
    common = set.intersection(*listed) if listed else set()
    if place.base.system == "alpine":
        common = set()  # the table of Pythons is for glibc
    # The other Python is certain to build only where the table knows every pin.
    other = _nearest(python, sorted(common, key=Version))
    new = with_python(place, other, tuple(sorted(common, key=Version))) if other else None
    shown = f"{known[0]} to {known[-1]}" if known else "no Python that is known"
    musl = " on musl" if place.base.system == "alpine" else ""
    return NO_WHEEL.found(
        place,
        one.asked,
        f"{one.asked.name} {one.asked.pin} has no wheel for Python {python}{musl}, and its archive cannot be "
        "built or does not accept it",
        f"wheels for {shown} (file names on PyPI of {wheels().dated}); FROM {place.base.reference}",
        f"use {new}; {one.asked.name} stays as it is pinned"
        if new
        else f"use a base with Python {shown}, or a compiler for the archive",
        another_base(place, new) if new else (),
    )


def _nearest(python: str, common: list[str]) -> str | None:
    if not common:
        return None
    older = [one for one in common if Version(one) < Version(python)]
    return older[-1] if older else common[0]


def no_such_release(place: Place) -> Iterator[Finding]:
    yield from _no_version(place)
    for one in place.own:
        name, pin = one.asked.name, one.asked.pin
        if pin is None or not _is_judged(place, one) or pin.is_prerelease or pin.is_devrelease:
            continue
        if name not in _ALSO_ELSEWHERE and wheels().knows(name, pin) and not wheels().exists(name, pin):
            if pin < min(wheels().packages[name]) or pin.is_postrelease:
                continue
            near = _near_releases(name, pin)
            yield NO_RELEASE.found(
                place,
                one.asked,
                f"{name} {pin.public} was never released: `No matching distribution found`",
                f"not among the releases on PyPI of {wheels().dated}; near it: {', '.join(near)}",
                f"pin a release that exists, such as {near[-1]}",
            )
        elif name == "torch":
            yield from _no_such_build(place, one, pin)


def _no_version(place: Place) -> Iterator[Finding]:
    """`torch==latest`: pip reads `==` as a version, and that is none."""
    for by in [one for one in place.pip if id(one.instruction) in place.own_steps]:
        for word in by.command.words if by.tool == "pip" else ():
            found = re.fullmatch(r"([A-Za-z][\w.-]*)(?:\[[\w,-]*\])?==(latest|newest|stable)", word.text)
            if found is not None:
                yield NO_RELEASE.found(
                    place,
                    by.instruction,
                    f"{found[2]} is no version: `No matching distribution found for {word.text}`",
                    word.text,
                    f"ask for {found[1]} alone, or pin a release",
                )


def _near_releases(name: str, pin: Version) -> list[str]:
    known = sorted(wheels().packages[name])
    older = [one for one in known if one < pin][-2:]
    return [str(one) for one in (*older, *[one for one in known if one > pin][:1])]


def _no_such_build(place: Place, one: Installed, pin: Version) -> Iterator[Finding]:
    """`torch==2.4.0+cu128`, or torch 2.4.0 from the index cu128 alone."""
    builds = wheels().cuda_builds.get(f"{pin.major}.{pin.minor}")
    only = [*one.by.values("index-url", "default-index")]
    said = pin.local or next((address.rstrip("/").rpartition("/")[2] for address in only), "")
    found = _BUILD.fullmatch(said)
    if builds is None or found is None or found[1] in builds or one.by.values("extra-index-url"):
        return
    yield NO_RELEASE.found(
        place,
        one.asked,
        f"torch {pin.public} was never built for {said}: `No matching distribution found`",
        f"torch {pin.major}.{pin.minor} has builds for {', '.join(f'cu{build}' for build in builds)}",
        f"take cu{builds[-1]}, or a torch that has a build for {said}",
    )


_MMCV = re.compile(r"openmmlab\.com/mmcv/dist/cu(\d+)/torch(\d+\.\d+)")


def no_such_index(place: Place) -> Iterator[Finding]:
    """OpenMMLab's wheels lie in a folder for each CUDA and torch: none where torch was never built for it."""
    for by in [one for one in place.pip if id(one.instruction) in place.own_steps]:
        for address in by.values("find-links"):
            found = _MMCV.search(address)
            builds = wheels().cuda_builds.get(found[2]) if found is not None else None
            torch = place.torch.pin if place.torch is not None else place.base.torch
            if found is None:
                continue
            if builds is not None and found[1] not in builds:
                yield NO_RELEASE.found(
                    place,
                    by.instruction,
                    f"torch {found[2]} was never built for CUDA {found[1]}: that address has no wheels",
                    address,
                    f"name the CUDA of your torch: {', '.join(f'cu{build}' for build in builds)}",
                )
            elif torch is not None and f"{torch.major}.{torch.minor}" != found[2] and not place.has_conda:
                yield NO_RELEASE.found(
                    place,
                    by.instruction,
                    f"the wheels there are for torch {found[2]}, and torch {torch} is installed: "
                    "`undefined symbol` on import",
                    address,
                    f"name torch{torch.major}.{torch.minor} in the address",
                )


def wheel_for_another_image(place: Place) -> Iterator[Finding]:
    """`….whl` by its address: its tags must fit the Python and the C library of the image."""
    for one in place.own:
        name = re.split(r"[?#]", one.asked.text)[0].rpartition("/")[2].strip()
        if not one.asked.is_url or not name.endswith(".whl"):
            continue
        why = _refused_because(place, unquote(name))
        if why:
            yield NO_WHEEL.found(
                place,
                one.asked,
                f"{why}: `is not a supported wheel on this platform`",
                f"{name} on {place.base.reference}",
                "take the wheel with the tags of this image, or another base",
            )


def _refused_because(place: Place, name: str) -> str:
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename:
        return ""
    python = place.python
    glibc = catalog().glibc.get(place.base.system)
    minors = {tag.interpreter for tag in tags}
    is_exact = all(re.fullmatch(r"cp3\d+", one) for one in minors) and all(tag.abi != "abi3" for tag in tags)
    if python is not None and is_exact and f"cp{python.replace('.', '')}" not in minors:
        return f"the wheel is for {', '.join(sorted(minors))}, and the image has Python {python}"
    needs = [
        Version(f"{m[1]}.{m[2]}") for tag in tags if (m := re.match(r"manylinux_(\d+)_(\d+)_", tag.platform))
    ]
    is_all_named = len(needs) == len({(tag.interpreter, tag.abi, tag.platform) for tag in tags})
    if glibc is not None and needs and is_all_named and min(needs) > glibc:
        return f"the wheel needs glibc {min(needs)}, and {place.base.system} has {glibc}"
    return ""


def sister_unpinned(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None or torch.pin is None or place.has_conda or not torch.installed.by.is_pip:
        return
    for name in ("torchvision", "torchaudio"):
        sister = place.find(name)
        made = None if torch.row is None else getattr(torch.row, name)
        if sister is None or sister not in place.own or sister.asked.is_url or sister.asked.specifier:
            continue
        if _is_held(place, sister) or torch.pin.release >= matrix().newest.torch.release:
            continue
        is_apart = sister.by is not torch.installed.by
        later = place.installed.index(sister) > place.installed.index(torch.installed)
        if is_apart and not later:
            continue  # torch comes behind it and has the last word; pip names the conflict
        binds = name == "torchvision" or (made is not None and made.release[:2] == torch.pin.release[:2])
        new = sister.asked.with_range(f"=={made}") if made is not None else ""
        level = Level.PROBLEM if is_apart and name == "torchvision" else Level.WARNING
        if not binds:
            continue
        why = (
            f"the newest {name} needs a newer torch: pip puts it in the place of torch {torch.pin}"
            if is_apart
            else f"which {name} goes with torch {torch.pin} is left to the index, on every build again"
        )
        yield UNPINNED.found(
            place,
            sister.asked,
            why,
            f"{sister.asked.text} without a version, torch=={torch.pin}",
            f"pin {new}" if new else f"pin {name} to the release made for torch {torch.pin}",
            respelled(place, sister.asked, new) if new and is_apart and torch.build is None else (),
            level=level,
        )


def _is_held(place: Place, one: Installed) -> bool:
    """Constraints, or an installation without dependencies, keep torch as it is."""
    names = {"PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE", "PIP_NO_DEPS"}
    said = one.by.values("constraint", "constraints", "override", "overrides")
    return bool(said or one.by.flags & {"--no-deps"} or place.environment(one.by).keys() & names)


def bound_to_another_torch(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None or torch.pin is None or torch.pin.is_prerelease:
        return
    mine = Version(torch.pin.base_version)
    for one in place.own:
        name, pin = one.asked.name, one.asked.pin
        if pin is None or not _is_judged(place, one) or one.by.flags & {"--no-deps"}:
            continue
        if name == "triton":
            needs = wheels().triton_of_torch.get(mine)
            differs = needs is not None and needs != Version(pin.base_version) and torch.build is None
            told = f"torch {mine} needs triton {needs}"
        else:
            needs = wheels().bound_to_torch.get(name, {}).get(Version(pin.public))
            differs = needs is not None and needs != mine
            told = f"{name} {pin.public} needs torch {needs}"
        if not differs:
            continue
        together = one.by is torch.installed.by
        yield BOUND.found(
            place,
            one.asked,
            f"{told}, and torch {torch.pin} is pinned: pip finds no solution"
            if together
            else f"{told}, and torch {torch.pin} is pinned: the command that comes later replaces it",
            f"{one.asked.text} ({one.asked.path}:{one.asked.line}); {torch.installed.asked.text}",
            f"pin what goes together: {told}",
        )


def wrong_package_name(place: Place) -> Iterator[Finding]:
    for one in place.own:
        advice = _NOT_ON_PYPI.get(one.asked.name)
        is_pypi = all(_KNOWN_HOSTS.search(address) for address in place.indexes(one))
        if advice is not None and one.asked.requirement is not None and not one.asked.is_url and is_pypi:
            yield NAME.found(
                place,
                one.asked,
                f"{one.asked.name} on PyPI is not the package that is meant, or does not exist",
                one.asked.text,
                advice,
            )
            continue
        meant = _MEANT.get(one.asked.name)
        if meant is None or one.asked.requirement is None or one.asked.is_url:
            continue
        pin, last = one.asked.pin, _STILL_THERE.get(one.asked.name)
        if pin is not None and (last is None or pin < last) and one.asked.name != "pytorch":
            continue
        if "SKLEARN_ALLOW_DEPRECATED_SKLEARN_PACKAGE_INSTALL" in place.environment(one.by):
            continue
        is_plain = not one.asked.specifier
        yield NAME.found(
            place,
            one.asked,
            f"{one.asked.name} is not the package that is meant, and cannot be installed",
            one.asked.text,
            f"ask for {meant}",
            respelled(place, one.asked, meant) if is_plain else (),
        )


def not_on_this_index(place: Place) -> Iterator[Finding]:
    for by in place.pip:
        only = by.values("index-url", "default-index")
        more = by.values("extra-index-url", "index", "find-links")
        if len(only) != 1 or more or not re.search(r"download\.pytorch\.org/whl/[\w.]+/?$", only[0]):
            continue
        variables = place.environment(by).keys()
        if variables & {"PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_FIND_LINKS"}:
            continue
        mine = [one for one in place.own if one.by is by and one.asked.name in _ONLY_ON_PYPI]
        earlier = {one.asked.name for one in place.installed if one.by is not by}
        missing = [one for one in mine if one.asked.name not in earlier]
        options = [option.name for file in place.files_of(by) for option in file.options]
        if missing and "extra-index-url" not in options:
            yield ONLY_INDEX.found(
                place,
                missing[0].asked,
                f"{missing[0].asked.name} is not on {only[0]}, and no other index is asked: "
                "`No matching distribution found`",
                f"--index-url {only[0]}",
                "install torch alone from that index, or name it with --extra-index-url",
            )


RULES = (
    no_such_release,
    no_such_index,
    wheel_for_another_image,
    python_without_wheel,
    installer_without_wheel,
    wrong_package_name,
    not_on_this_index,
    bound_to_another_torch,
    sister_unpinned,
)

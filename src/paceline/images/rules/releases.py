"""Rules about releases: pins that do not exist, have no wheel here, or exclude each other (3, 22 to 25).

Judged by the table of wheels, which is complete up to its date for the packages it names. A later release, a
package or an index that it does not know is not judged.
"""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.changing import another_base, respelled
from paceline.images.choosing import with_python
from paceline.images.matrix import matrix, wheels
from paceline.images.project import Finding, Level
from paceline.images.rules.pattern import Pattern
from paceline.images.view import Installed, Place

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
# The lists of these are complete on PyPI: what they do not hold was never published, or was deleted.
_COMPLETE = frozenset(
    ["torch", "torchvision", "torchaudio", "tensorflow", "numpy", "scipy", "pandas", "scikit-learn"]
)
# Built from their archive by a compiler alone; the others need Fortran, Rust, LLVM or much more.
_BUILD_WITH_C = frozenset({"sentencepiece", "xformers", "vllm", "deepspeed", "flash-attn"})
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
    python = place.python
    if python is None or not _is_amd64(place) or place.base.system == "alpine":
        return
    for one in place.own:
        name, pin = one.asked.name, one.asked.pin
        if pin is None or not _is_judged(place, one) or not wheels().tags(name, pin):
            continue
        if wheels().has_wheel(name, pin, python):
            continue
        known = wheels().pythons(name, pin)
        too_old = bool(known) and Version(python) < Version(known[0])
        if (
            wheels().has_source(name, pin)
            and not too_old
            and (not known or not _must_fail(place, name, known))
        ):
            continue
        yield _without_wheel(place, one, python, known)


def _must_fail(place: Place, name: str, known: list[str]) -> bool:
    """Building the archive fails: no compiler, no Rust, or Python 3.12 without the distutils it relies on."""
    if name in _BUILD_WITH_C or "no-build-isolation" in "".join(place.words):
        return False
    python = Version(place.python or "3")
    if python >= Version("3.12") and Version(known[-1]) < Version("3.12") and name != "tokenizers":
        return True
    has_rust = any(re.search(r"rustup|cargo|rustc", word) for word in place.words)
    if name == "tokenizers":
        return not has_rust
    has_compiler = bool(place.system_packages & {"gcc", "g++", "build-essential", "clang"}) or place.has_conda
    return place.base.is_slim and not has_compiler and place.are_packages_known


def _without_wheel(place: Place, one: Installed, python: str, known: list[str]) -> Finding:
    pinned = [o for o in place.installed if o.asked.pin is not None and not o.asked.is_url]
    listed = [set(wheels().pythons(o.asked.name, o.asked.pin)) for o in pinned if o.asked.pin is not None]
    common = set.intersection(*listed) if listed else set()
    # The other Python is certain to build only where the table knows every pin.
    other = _nearest(python, sorted(common, key=Version))
    new = with_python(place, other, tuple(sorted(common, key=Version))) if other else None
    shown = f"{known[0]} to {known[-1]}" if known else "no Python that is known"
    return NO_WHEEL.found(
        place,
        one.asked,
        f"{one.asked.name} {one.asked.pin} has no wheel for Python {python}",
        f"wheels for {shown} (file names on PyPI of {wheels().dated}); FROM {place.base.reference}",
        f"use {new}; {one.asked.name} stays as it is pinned" if new else f"use a base with Python {shown}",
        another_base(place, new) if new else (),
    )


def _nearest(python: str, common: list[str]) -> str | None:
    if not common:
        return None
    older = [one for one in common if Version(one) < Version(python)]
    return older[-1] if older else common[0]


def no_such_release(place: Place) -> Iterator[Finding]:
    for one in place.own:
        name, pin = one.asked.name, one.asked.pin
        if pin is None or not _is_judged(place, one) or pin.is_prerelease or pin.is_devrelease:
            continue
        if name in _COMPLETE and wheels().knows(name, pin) and not wheels().exists(name, pin):
            if pin < min(wheels().packages[name]):
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
    python_without_wheel,
    wrong_package_name,
    not_on_this_index,
    bound_to_another_torch,
    sister_unpinned,
)

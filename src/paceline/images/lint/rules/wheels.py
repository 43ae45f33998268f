"""Rules about torch, its sisters and numpy, and about the build of torch that is found (2, 4 to 6)."""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.bases import catalog
from paceline.images.lint.dependency_files import Asked
from paceline.images.lint.edits import beside, index_added, index_switched, respelled
from paceline.images.lint.matrix import TorchRow, matrix, wheels
from paceline.images.lint.project import Edit, Finding, Kind, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, Place

TRIO = Pattern(
    number=2,
    id="torch-trio",
    what="torchvision or torchaudio is pinned to a release that was made for another torch.",
    fix="the sister's pin is changed to the one made for the torch you pinned",
)
NUMPY = Pattern(
    number=4,
    id="numpy-abi",
    what="torch before 2.3 was compiled with NumPy 1, and NumPy 2 would be installed beside it.",
    fix="`numpy<2`",
)
NO_INDEX = Pattern(
    number=5,
    id="build-without-index",
    what="`+cu118`, `+cpu` and the like are not on PyPI, and no index that has them is named.",
    fix="`--extra-index-url` of PyTorch's index for that build",
)
KIND = Pattern(
    number=6,
    id="wrong-build",
    what="A torch without CUDA on a machine with GPUs, or one with CUDA where there is none.",
    fix="the other index; where the build is part of your pin, you are asked",
)
PATTERNS = (TRIO, NUMPY, NO_INDEX, KIND)
_KNOWS_NUMPY_2 = Version("2.3.0")
# Packages that bring numpy without being asked.
_BRING_NUMPY = frozenset(
    [
        "torchvision",
        "pandas",
        "scipy",
        "scikit-learn",
        "transformers",
        "datasets",
        "opencv-python",
        "opencv-python-headless",
        "matplotlib",
        "accelerate",
        "timm",
        "torchmetrics",
        "lightning",
        "pytorch-lightning",
        "gymnasium",
        "librosa",
    ]
)
# Packages that set no upper limit for numpy.
_LEAVE_NUMPY = frozenset(
    [
        "torch",
        "torchaudio",
        "numpy",
        "six",
        "tqdm",
        "pyyaml",
        "requests",
        "pillow",
        "einops",
        "flask",
        "fastapi",
        "uvicorn",
        "wandb",
        "tensorboard",
        "click",
        "sentencepiece",
        "tokenizers",
        "safetensors",
        "huggingface-hub",
        "flash-attn",
        "packaging",
        "ninja",
        "setuptools",
        "wheel",
        "pip",
        "psutil",
        "boto3",
        "rich",
        "pytest",
        "jinja2",
        "protobuf",
        "omegaconf",
        "hydra-core",
        "peft",
        "trl",
        "bitsandbytes",
        "jupyterlab",
        "notebook",
    ]
)
_CONSTRAINTS = {"PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE"}
_BUILD = re.compile(r"^(cu\d{3}|cpu|rocm[\d.]+)$")


def trio(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None or torch.pin is None:
        return
    if torch.row is None:
        yield from _older_trio(place, torch.pin)
        return
    for name in ("torchvision", "torchaudio"):
        sister, made = place.find(name), getattr(torch.row, name)
        if sister is None or sister.asked.pin is None or made is None or not _is_bound(torch.row, name):
            continue
        pin = sister.asked.pin
        if not _is_for_another(Version(pin.base_version), made, name) or sister not in place.own:
            continue
        new = sister.asked.with_range(f"=={made}" + (f"+{pin.local}" if pin.local else ""))
        yield TRIO.found(
            place,
            sister.asked,
            f"{name} {pin} was made for another torch than {torch.pin}: pip finds no solution, or the import "
            "fails",
            f"torch {torch.pin.public} goes with {name} {made} (wheel metadata of {matrix().dated})",
            f"pin {new}",
            respelled(place, sister.asked, new),
        )


def _older_trio(place: Place, torch: Version) -> Iterator[Finding]:
    """Before the matrix begins, the minors that go together are known; which patch, a person decides."""
    minors = wheels().older_sisters.get(f"{torch.major}.{torch.minor}")
    for name, minor in zip(("torchvision", "torchaudio"), minors or (), strict=False):
        sister = place.find(name)
        pin = None if sister is None else sister.asked.pin
        if sister is None or pin is None or sister not in place.own or f"{pin.major}.{pin.minor}" == minor:
            continue
        yield TRIO.found(
            place,
            sister.asked,
            f"{name} {pin} was made for another torch than {torch}: pip refuses, or the import fails",
            f"torch {torch.major}.{torch.minor} goes with {name} {minor}",
            f"pin {name} {minor}",
        )


def _is_bound(row: TorchRow, name: str) -> bool:
    """torchaudio no longer says which torch it needs once its numbers stop following torch's."""
    made = getattr(row, name)
    return name != "torchaudio" or made.release[:2] == row.torch.release[:2] or row.torch.major < 2


def _is_for_another(pin: Version, made: Version, name: str) -> bool:
    """Another minor, or a patch release that is known to belong to another torch; the rest is not known."""
    known = [getattr(row, name) for row in matrix().torch]
    return pin != made and (pin in known or pin.release[:2] != made.release[:2])


def numpy_abi(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None:
        yield from _numpy_beside_base(place)
    if torch is None or torch.installed not in place.own:
        return
    newest = torch.pin or _newest_allowed(torch.installed)
    if newest is None or newest >= _KNOWS_NUMPY_2:
        return
    if place.python is not None and Version(place.python) < Version("3.9"):
        return  # NumPy 2 has no wheels for it
    numpy = place.find("numpy")
    bringer = next((one for one in place.installed if one.asked.name in _BRING_NUMPY), None)
    evidence = f"torch {newest} was compiled with NumPy 1, and its metadata sets no limit"
    why = "NumPy 2 would be installed: `A module that was compiled using NumPy 1.x cannot be run`"
    if numpy is not None and numpy.asked.requirement is not None:
        if _stays_below_2(numpy.asked) or _holds_back(place):
            return
        new = below_2(numpy.asked)
        edits = respelled(place, numpy.asked, new)
        # A version that was chosen, and a torch that may be newer, are left to the user.
        asks = torch.pin is None or numpy.asked.pin is not None
        yield NUMPY.found(place, numpy.asked, why, evidence, f"write {new}", edits, asks=asks)
        return
    constraint = _numpy_constraint(place)
    if constraint is not None and bringer is not None and not _stays_below_2(constraint):
        evidence = f"{evidence}; {constraint.path} has {constraint.text}"
        yield NUMPY.found(place, constraint, why, evidence, f"write {below_2(constraint)}")
    elif (
        torch.pin is not None and bringer is not None and not _is_constrained(place) and not _has_numpy(place)
    ):
        others = {one.asked.name for one in place.installed} - _LEAVE_NUMPY - _BRING_NUMPY
        edits = beside(place, torch.installed, "numpy<2")
        evidence = f"{evidence}; {bringer.asked.name} brings numpy"
        # A package whose limits are not known, or a file that could not be read, may hold numpy back.
        level = Level.WARNING if others or _has_unread_file(place) else Level.PROBLEM
        yield NUMPY.found(place, torch.installed.asked, why, evidence, "add numpy<2", edits, level=level)


def _newest_allowed(torch: Installed) -> Version | None:
    """The newest release that a range with an upper bound allows: `torch<2.3`, `torch~=2.2.0`, `==2.2.*`."""
    specifier = torch.asked.specifier
    is_bounded = any(one.operator in ("<", "<=", "~=", "==") for one in specifier)
    allowed = [row.torch for row in matrix().torch if specifier.contains(row.torch)]
    return max(allowed) if is_bounded and allowed else None


def _numpy_constraint(place: Place) -> Asked | None:
    """numpy in a constraints file that a command names."""
    for by in place.pip:
        for path in by.values("constraint"):
            file = place.file_named(place.path_in_context(by, path))
            for asked in file.asked if file is not None else ():
                if asked.name == "numpy" and asked.is_meant_for(place.python):
                    return asked
    return None


def _holds_back(place: Place) -> bool:
    """A constraints file keeps numpy below 2, whatever the requirement allows."""
    constraint = _numpy_constraint(place)
    return constraint is not None and _stays_below_2(constraint)


def _numpy_beside_base(place: Place) -> Iterator[Finding]:
    """The torch of the base is older than NumPy 2, and a command replaces the NumPy that came with it."""
    base, numpy = place.base, place.find("numpy")
    is_old = base.torch is not None and Version("1.13") <= base.torch < _KNOWS_NUMPY_2
    if not is_old or numpy is None or numpy not in place.own or numpy.asked.requirement is None:
        return
    if "torch" in place.removed or place.has_conditional or _is_constrained(place):
        return
    keeps = any(numpy.asked.specifier.contains(one) for one in ("1.21.6", "1.23.5", "1.24.4", "1.26.4"))
    is_upgraded = bool(numpy.by.flags & {"-U", "--upgrade"})
    if _stays_below_2(numpy.asked) or (keeps and not is_upgraded):
        return
    new = below_2(numpy.asked) if keeps else numpy.asked.with_range("<2")
    yield NUMPY.found(
        place,
        numpy.asked,
        "NumPy 2 would be installed: `A module that was compiled using NumPy 1.x cannot be run`",
        f"{base.reference} has torch {base.torch}, which was compiled with NumPy 1",
        f"write {new}",
        respelled(place, numpy.asked, new),
        asks=True,
    )


def _has_unread_file(place: Place) -> bool:
    return any(
        place.file_named(place.path_in_context(by, path)) is None
        for by in place.pip
        for path in by.values("requirement")
    )


def _has_numpy(place: Place) -> bool:
    """One that fits torch is there before pip begins, and stays: by conda, or in a framework's image."""
    return place.has_conda or place.base.family in ("pytorch", "ngc", "dlc")


def below_2(numpy: Asked) -> str:
    """The range that is asked for, as far as NumPy 1."""
    kept = [str(one) for one in numpy.specifier if one.operator in (">=", ">", "!=")]
    return numpy.with_range(",".join([*sorted(kept), "<2"]))


def _stays_below_2(numpy: Asked) -> bool:
    if numpy.pin is not None:
        return numpy.pin.major < 2
    newest_known = (
        "2.0.0",
        "2.0.2",
        "2.1.0",
        "2.1.3",
        "2.2.0",
        "2.2.6",
        "2.3.0",
        "2.3.5",
        "2.4.0",
        "2.4.6",
        "2.99.0",
    )
    return not any(numpy.specifier.contains(one) for one in newest_known)


def _is_constrained(place: Place) -> bool:
    """A constraints file may hold numpy back, whether we can read it or not."""
    if not all(one.by.is_pip for one in place.installed):
        return True  # a lock file holds the versions
    files = [file for by in place.pip for file in place.files_of(by)]
    said = any(
        by.values("constraint", "constraints") or place.environment(by).keys() & _CONSTRAINTS
        for by in place.pip
    )
    return said or any(option.name == "constraint" for file in files for option in file.options)


def build_without_index(place: Place) -> Iterator[Finding]:
    seen: set[tuple[str, int]] = set()
    for one in place.own:
        pin = one.asked.pin
        build = None if pin is None else pin.local
        if build is None or not _BUILD.match(build) or _may_have(place, one, build):
            continue
        key = (one.asked.path, id(one.by.command))
        if key in seen:
            continue  # one index serves the whole file or command
        seen.add(key)
        address = f"{catalog().index}/{build}"
        yield NO_INDEX.found(
            place,
            one.asked,
            f"{one.asked.text} is not on PyPI: `No matching distribution found`",
            f"no index with /{build} is named by the command, the file or a variable",
            f"add --extra-index-url {address}",
            index_added(place, one, address),
        )


def _may_have(place: Place, one: Installed, build: str) -> bool:
    """PyTorch's index for this build, or an address that only the user can judge."""
    if one.by.values("torch-backend") or "UV_TORCH_BACKEND" in place.environment(one.by):
        return True
    if re.search(r"ppc64le|s390x|aarch64|arm64", f"{place.docker.path} {place.stage.base}"):
        return True  # another processor, with an index of its own
    if not one.by.is_pip or any(word == "config" for word in place.words if "pip" in " ".join(place.words)):
        return True  # pip config set, or the settings of another tool
    own = [address for address in place.indexes(one) if not _is_other_build(address, build)]
    copies = any(step.word in ("COPY", "ADD") and "pip.conf" in " ".join(step.values) for step in place.steps)
    mounted = any("pip.conf" in flag or "pip-conf" in flag for flag in one.by.instruction.flags)
    return bool(own) or copies or mounted


def _is_other_build(address: str, build: str) -> bool:
    found = re.search(r"/whl/(cu\d{3}|cpu|rocm[\d.]+)(?:/(?:torch_stable\.html)?)?$", address)
    return found is not None and found[1] != build


def wrong_build(place: Place) -> Iterator[Finding]:
    torch = place.torch
    if torch is None or torch.installed not in place.own or not place.is_last:
        return
    if place.kind is Kind.GPU and torch.build == "cpu":
        if place.target.kind is Kind.GPU or not _has_other_gpu_user(place):
            yield _without_cuda(place)
    elif place.kind is Kind.CPU and torch.build is None and place.target.platform == "linux/amd64":
        address = f"{catalog().index}/cpu"
        if place.indexes(torch.installed) or place.base.family in ("pytorch", "ngc", "dlc"):
            return  # an index of the user's own may have the smaller build; a framework's torch stays
        yield KIND.found(
            place,
            torch.installed.asked,
            "PyPI's torch brings CUDA, which a machine without GPUs never uses: gigabytes in the image",
            f"target cpu; {torch.installed.asked.text} without an index for cpu",
            f"add --extra-index-url {address}: the same torch without CUDA, some 2 to 4 GB less",
            index_added(place, torch.installed, address),
            level=Level.WARNING,
        )
    elif place.kind is Kind.CPU and torch.build is not None and torch.build.startswith("cu"):
        yield KIND.found(
            place,
            torch.installed.asked,
            f"torch for {torch.build} on a machine without GPUs: gigabytes that are never used",
            f"target cpu; {torch.installed.asked.text}",
            "take the build for cpu",
            _pin_switched(place, torch.installed, torch.build, "cpu"),
            asks=True,
            level=Level.WARNING,
        )


def _has_other_gpu_user(place: Place) -> bool:
    """The base's CUDA is for another framework, and torch is only for its data."""
    return any(
        re.search(
            r"tensorflow|jax|onnxruntime-gpu|ctranslate2|faster-whisper|cupy|paddle|tensorrt|vllm",
            one.asked.name,
        )
        for one in place.installed
    )


def _without_cuda(place: Place) -> Finding:
    torch = place.torch
    assert torch is not None, "asked for by wrong_build, which has looked"
    cuda = None if torch.row is None else torch.row.cuda
    build = None if cuda is None else f"cu{cuda.major}{cuda.minor}"
    is_pinned = torch.pin is not None and torch.pin.local == "cpu"
    if build is None:
        edits: tuple[Edit, ...] = ()  # for which CUDA an unknown torch is built is not known either
    elif is_pinned:
        edits = _pin_switched(place, torch.installed, "cpu", build)
    else:
        edits = index_switched(place, torch.installed, "/whl/cpu", f"/whl/{build}")
    return KIND.found(
        place,
        torch.installed.asked,
        "this torch has no CUDA, and the image shall run on GPUs: `torch.cuda.is_available()` is False",
        f"{torch.installed.asked.text} from {', '.join(place.indexes(torch.installed)) or 'its pin'}; "
        f"target gpu ({place.base.reference})",
        f"take the build {build or 'for the CUDA of your hosts, such as cu128'}",
        edits,
        asks=is_pinned,
    )


def _pin_switched(place: Place, one: Installed, old: str, new: str) -> tuple[Edit, ...]:
    edits = respelled(place, one.asked, one.asked.text.replace(f"+{old}", f"+{new}"))
    if f"+{old}" not in one.asked.text:
        return index_switched(place, one, f"/whl/{old}", f"/whl/{new}")
    switched = index_switched(place, one, f"/whl/{old}", f"/whl/{new}")
    same = {(edit.path, edit.first) for edit in edits}
    return () if any((edit.path, edit.first) in same for edit in switched) else edits + switched


RULES = (trio, numpy_abi, build_without_index, wrong_build)

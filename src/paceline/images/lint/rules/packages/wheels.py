"""Rules about torch, its sisters and numpy, and about the build of torch that is found (2, 4 to 6)."""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.bases import catalog
from paceline.images.lint.dependency_files import PackageSpec
from paceline.images.lint.edits import index_added, index_switched, requirement_added, respelled
from paceline.images.lint.matrix import TorchRow, matrix, wheels
from paceline.images.lint.project import Edit, Finding, Kind, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

TRIO = Pattern(
    number=2,
    id="torch-trio",
    what="torchvision or torchaudio is pinned to a release that was made for another torch.",
    fix="the sister's pin is changed to the one made for the torch you pinned",
)
NUMPY = Pattern(
    number=4,
    id="numpy-abi",
    what="torch before 2.3 was compiled with NumPy 1, and NumPy 2 would be installed.",
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
    what="A torch without CUDA for a target with GPUs, or with CUDA for one without.",
    fix="the other index; with --agree if the build is part of your pin",
)
PATTERNS = (TRIO, NUMPY, NO_INDEX, KIND)
_KNOWS_NUMPY_2 = Version("2.3.0")
# Packages that install numpy as a dependency.
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


def trio(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    if torch is None or torch.pin is None:
        return
    if torch.row is None:
        yield from _older_trio(view, torch.pin)
        return
    for name in ("torchvision", "torchaudio"):
        sister = view.find(name)
        version = getattr(torch.row, name)
        if sister is None or sister.spec.pin is None or version is None or not _is_bound(torch.row, name):
            continue
        pin = sister.spec.pin
        if not _is_for_another(Version(pin.base_version), version, name) or sister not in view.own:
            continue
        new = sister.spec.with_range(f"=={version}" + (f"+{pin.local}" if pin.local else ""))
        yield TRIO.finding(
            view,
            sister.spec,
            f"{name} {pin} was made for another torch than {torch.pin}: pip finds no solution, or the import "
            "fails",
            f"torch {torch.pin.public} goes with {name} {version} (wheel metadata of {matrix().dated})",
            f"pin {new}",
            respelled(view, sister.spec, new),
        )


def _older_trio(view: StageView, torch: Version) -> Iterator[Finding]:
    """For releases older than the matrix, compatible minors are known; a person decides the patch."""
    minors = wheels().older_sisters.get(f"{torch.major}.{torch.minor}")
    for name, minor in zip(("torchvision", "torchaudio"), minors or (), strict=False):
        sister = view.find(name)
        pin = None if sister is None else sister.spec.pin
        if sister is None or pin is None or sister not in view.own or f"{pin.major}.{pin.minor}" == minor:
            continue
        yield TRIO.finding(
            view,
            sister.spec,
            f"{name} {pin} was made for another torch than {torch}: pip rejects it, or the import fails",
            f"torch {torch.major}.{torch.minor} goes with {name} {minor}",
            f"pin {name} {minor}",
        )


def _is_bound(row: TorchRow, name: str) -> bool:
    """torchaudio no longer declares its torch once its version numbers differ from torch's."""
    version = getattr(row, name)
    return name != "torchaudio" or version.release[:2] == row.torch.release[:2] or row.torch.major < 2


def _is_for_another(pin: Version, expected: Version, name: str) -> bool:
    """Another minor, or a patch release that is known to belong to another torch; the rest is not known."""
    known = [getattr(row, name) for row in matrix().torch]
    return pin != expected and (pin in known or pin.release[:2] != expected.release[:2])


def numpy_abi(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    if torch is None:
        yield from _numpy_beside_base(view)
    if torch is None or torch.installed not in view.own:
        return
    newest = torch.pin or _newest_allowed(torch.installed)
    if newest is None or newest >= _KNOWS_NUMPY_2:
        return
    if view.python is not None and Version(view.python) < Version("3.9"):
        return  # NumPy 2 has no wheels for it
    numpy = view.find("numpy")
    bringer = next((package for package in view.installed if package.spec.name in _BRING_NUMPY), None)
    evidence = f"torch {newest} was compiled with NumPy 1, and its metadata sets no limit"
    why = "NumPy 2 would be installed: `A module that was compiled using NumPy 1.x cannot be run`"
    if numpy is not None and numpy.spec.requirement is not None:
        if _stays_below_2(numpy.spec) or _holds_back(view):
            return
        new = below_2(numpy.spec)
        edits = respelled(view, numpy.spec, new)
        # A version that was chosen, and a torch that may be newer, are left to the user.
        asks = torch.pin is None or numpy.spec.pin is not None
        yield NUMPY.finding(view, numpy.spec, why, evidence, f"write {new}", edits, asks=asks)
        return
    constraint = _numpy_constraint(view)
    if constraint is not None and bringer is not None and not _stays_below_2(constraint):
        evidence = f"{evidence}; {constraint.path} has {constraint.text}"
        yield NUMPY.finding(view, constraint, why, evidence, f"write {below_2(constraint)}")
    elif torch.pin is not None and bringer is not None and not _is_constrained(view) and not _has_numpy(view):
        unknown = {package.spec.name for package in view.installed} - _LEAVE_NUMPY - _BRING_NUMPY
        edits = requirement_added(view, torch.installed, "numpy<2")
        evidence = f"{evidence}; {bringer.spec.name} brings numpy"
        # A package whose limits are not known, or a file that could not be read, may hold numpy back.
        level = Level.WARNING if unknown or _has_unread_file(view) else Level.PROBLEM
        yield NUMPY.finding(view, torch.installed.spec, why, evidence, "add numpy<2", edits, level=level)


def _newest_allowed(torch: Installed) -> Version | None:
    """The newest release that a range with an upper bound allows: `torch<2.3`, `torch~=2.2.0`, `==2.2.*`."""
    specifier = torch.spec.specifier
    is_bounded = any(clause.operator in ("<", "<=", "~=", "==") for clause in specifier)
    allowed = [row.torch for row in matrix().torch if specifier.contains(row.torch)]
    return max(allowed) if is_bounded and allowed else None


def _numpy_constraint(view: StageView) -> PackageSpec | None:
    """numpy in a constraints file that a command names."""
    for by in view.pip:
        for path in by.values("constraint"):
            file = view.file_named(view.path_in_context(by, path))
            for spec in file.specs if file is not None else ():
                if spec.name == "numpy" and spec.is_meant_for(view.python):
                    return spec
    return None


def _holds_back(view: StageView) -> bool:
    """Whether a constraints file keeps numpy below 2, regardless of the requirement."""
    constraint = _numpy_constraint(view)
    return constraint is not None and _stays_below_2(constraint)


def _numpy_beside_base(view: StageView) -> Iterator[Finding]:
    """The torch of the base is older than NumPy 2, and a command replaces the NumPy that came with it."""
    base = view.base
    numpy = view.find("numpy")
    is_old = base.torch is not None and Version("1.13") <= base.torch < _KNOWS_NUMPY_2
    if not is_old or numpy is None or numpy not in view.own or numpy.spec.requirement is None:
        return
    if "torch" in view.removed or view.has_conditional or _is_constrained(view):
        return
    keeps = any(
        numpy.spec.specifier.contains(version) for version in ("1.21.6", "1.23.5", "1.24.4", "1.26.4")
    )
    is_upgraded = bool(numpy.by.flags & {"-U", "--upgrade"})
    if _stays_below_2(numpy.spec) or (keeps and not is_upgraded):
        return
    new = below_2(numpy.spec) if keeps else numpy.spec.with_range("<2")
    yield NUMPY.finding(
        view,
        numpy.spec,
        "NumPy 2 would be installed: `A module that was compiled using NumPy 1.x cannot be run`",
        f"{base.reference} has torch {base.torch}, which was compiled with NumPy 1",
        f"write {new}",
        respelled(view, numpy.spec, new),
        asks=True,
    )


def _has_unread_file(view: StageView) -> bool:
    return any(
        view.file_named(view.path_in_context(by, path)) is None
        for by in view.pip
        for path in by.values("requirement")
    )


def _has_numpy(view: StageView) -> bool:
    """Whether a NumPy that fits torch exists before pip runs, and stays: by conda, or in the base image."""
    return view.has_conda or view.base.family in ("pytorch", "ngc", "dlc")


def below_2(numpy: PackageSpec) -> str:
    """The requested range, limited to NumPy 1."""
    kept = [str(clause) for clause in numpy.specifier if clause.operator in (">=", ">", "!=")]
    return numpy.with_range(",".join([*sorted(kept), "<2"]))


def _stays_below_2(numpy: PackageSpec) -> bool:
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
    return not any(numpy.specifier.contains(version) for version in newest_known)


def _is_constrained(view: StageView) -> bool:
    """A constraints file may hold numpy back, whether we can read it or not."""
    if not all(package.by.is_pip for package in view.installed):
        return True  # a lock file holds the versions
    files = [file for by in view.pip for file in view.files_of(by)]
    is_constrained = any(
        by.values("constraint", "constraints") or view.environment(by).keys() & _CONSTRAINTS
        for by in view.pip
    )
    return is_constrained or any(option.name == "constraint" for file in files for option in file.options)


def build_without_index(view: StageView) -> Iterator[Finding]:
    seen: set[tuple[str, int]] = set()
    for package in view.own:
        pin = package.spec.pin
        build = None if pin is None else pin.local
        if build is None or not _BUILD.match(build) or _may_have(view, package, build):
            continue
        key = (package.spec.path, id(package.by.command))
        if key in seen:
            continue  # one index serves the whole file or command
        seen.add(key)
        address = f"{catalog().index}/{build}"
        yield NO_INDEX.finding(
            view,
            package.spec,
            f"{package.spec.text} is not on PyPI: `No matching distribution found`",
            f"no index with /{build} is named by the command, the file or a variable",
            f"add --extra-index-url {address}",
            index_added(view, package, address),
        )


def _may_have(view: StageView, package: Installed, build: str) -> bool:
    """PyTorch's index for this build, or an address that only the user can judge."""
    if package.by.values("torch-backend") or "UV_TORCH_BACKEND" in view.environment(package.by):
        return True
    if re.search(r"ppc64le|s390x|aarch64|arm64", f"{view.docker.path} {view.stage.base}"):
        return True  # another architecture, with its own index
    if not package.by.is_pip or any(word == "config" for word in view.words if "pip" in " ".join(view.words)):
        return True  # pip config set, or the settings of another tool
    own = [address for address in view.indexes(package) if not _is_other_build(address, build)]
    copies = any(step.word in ("COPY", "ADD") and "pip.conf" in " ".join(step.values) for step in view.steps)
    mounted = any("pip.conf" in flag or "pip-conf" in flag for flag in package.by.instruction.flags)
    return bool(own) or copies or mounted


def _is_other_build(address: str, build: str) -> bool:
    match = re.search(r"/whl/(cu\d{3}|cpu|rocm[\d.]+)(?:/(?:torch_stable\.html)?)?$", address)
    return match is not None and match[1] != build


def wrong_build(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    if torch is None or torch.installed not in view.own or not view.is_last:
        return
    if view.kind is Kind.GPU and torch.build == "cpu":
        if view.target.kind is Kind.GPU or not _has_other_gpu_user(view):
            yield _without_cuda(view)
    elif view.kind is Kind.CPU and torch.build is None and view.target.platform == "linux/amd64":
        address = f"{catalog().index}/cpu"
        if view.indexes(torch.installed) or view.base.family in ("pytorch", "ngc", "dlc"):
            return  # a user's index may have the smaller build; a framework's torch stays
        yield KIND.finding(
            view,
            torch.installed.spec,
            "PyPI's torch includes CUDA, which a target without GPUs does not use: gigabytes in the image",
            f"target cpu; {torch.installed.spec.text} without an index for cpu",
            f"add --extra-index-url {address}: the same torch without CUDA, some 2 to 4 GB less",
            index_added(view, torch.installed, address),
            level=Level.WARNING,
        )
    elif view.kind is Kind.CPU and torch.build is not None and torch.build.startswith("cu"):
        yield KIND.finding(
            view,
            torch.installed.spec,
            f"torch for {torch.build} for a target without GPUs: gigabytes that are not used",
            f"target cpu; {torch.installed.spec.text}",
            "use the build for cpu",
            _pin_switched(view, torch.installed, torch.build, "cpu"),
            asks=True,
            level=Level.WARNING,
        )


def _has_other_gpu_user(view: StageView) -> bool:
    """The base's CUDA is for another framework, and torch is only for its data."""
    return any(
        re.search(
            r"tensorflow|jax|onnxruntime-gpu|ctranslate2|faster-whisper|cupy|paddle|tensorrt|vllm",
            package.spec.name,
        )
        for package in view.installed
    )


def _without_cuda(view: StageView) -> Finding:
    torch = view.torch
    assert torch is not None, "asked for by wrong_build, which has looked"
    cuda = None if torch.row is None else torch.row.cuda
    build = None if cuda is None else f"cu{cuda.major}{cuda.minor}"
    is_pinned = torch.pin is not None and torch.pin.local == "cpu"
    if build is None:
        edits: tuple[Edit, ...] = ()  # the CUDA of an unknown torch is unknown too
    elif is_pinned:
        edits = _pin_switched(view, torch.installed, "cpu", build)
    else:
        edits = index_switched(view, torch.installed, "/whl/cpu", f"/whl/{build}")
    return KIND.finding(
        view,
        torch.installed.spec,
        "this torch has no CUDA, but the target has GPUs: `torch.cuda.is_available()` is False",
        f"{torch.installed.spec.text} from {', '.join(view.indexes(torch.installed)) or 'its pin'}; "
        f"target gpu ({view.base.reference})",
        f"use the build {build or 'for the CUDA of your hosts, such as cu128'}",
        edits,
        asks=is_pinned,
    )


def _pin_switched(view: StageView, package: Installed, old: str, new: str) -> tuple[Edit, ...]:
    edits = respelled(view, package.spec, package.spec.text.replace(f"+{old}", f"+{new}"))
    if f"+{old}" not in package.spec.text:
        return index_switched(view, package, f"/whl/{old}", f"/whl/{new}")
    switched = index_switched(view, package, f"/whl/{old}", f"/whl/{new}")
    same = {(edit.path, edit.first) for edit in edits}
    return () if any((edit.path, edit.first) in same for edit in switched) else edits + switched


RULES = (trio, numpy_abi, build_without_index, wrong_build)

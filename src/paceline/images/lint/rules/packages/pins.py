"""Rules about requirements that exclude each other or the Python of the image (42)."""

import re
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from paceline.images.lint.dependency_files import PackageSpec
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.matrix import UNKNOWN, build_from_index, matrix, wheels
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.packages.missing_wheels import NO_WHEEL
from paceline.images.lint.rules.packages.torch_pins import BOUND, UNPINNED
from paceline.images.lint.rules.packages.wheels import TRIO
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

CONTRADICTION = Pattern(
    number=42,
    id="pins-contradict",
    what="Two requirements of one command exclude each other, or a constraint excludes a requirement.",
    fix="only reported: one of them",
)
HASHES = Pattern(
    number=42,
    id="hashes-incomplete",
    what="Some requirements have a hash and others none: pip then requires one for each.",
    fix="only reported: hashes for all, or for none",
)
NO_SOURCE = Pattern(
    number=42,
    id="no-index-at-all",
    what="`--no-index` without `--find-links`: pip has no source of packages.",
    fix="only reported: `--find-links` with the folder of wheels",
)
PATTERNS = (CONTRADICTION, HASHES, NO_SOURCE)
# They accept one release of torch: without a version, the newest one replaces the torch that is pinned.
_BIND = ("xformers", "vllm", "torchtext", "fbgemm-gpu", "sglang", "torchcodec")


class _Needs(NamedTuple):
    """`releases` of a package need `other` in a range, by the metadata of their wheels."""

    name: str
    releases: str
    other: str
    range: str


_NEEDS = (
    _Needs("numba", ">=0.56,<0.57", "numpy", "<1.24"),
    _Needs("numba", ">=0.57,<0.58", "numpy", "<1.25"),
    _Needs("numba", ">=0.58,<0.60", "numpy", "<1.27"),
    _Needs("numba", ">=0.60,<0.61", "numpy", "<2.1"),
    _Needs("scipy", ">=1.10,<1.11", "numpy", "<1.27"),
    _Needs("scipy", ">=1.11,<1.12", "numpy", "<1.28"),
    _Needs("scipy", ">=1.12,<1.13", "numpy", "<1.29"),
    _Needs("pandas", ">=2.1.2,<2.2", "numpy", "<2"),
    _Needs("tensorflow", ">=2.12,<2.18", "numpy", "<2"),
    _Needs("tensorflow", ">=2.18,<2.19", "numpy", "<2.1"),
    _Needs("peft", ">=0.14,<0.18", "torch", ">=1.13"),
    _Needs("accelerate", ">=1.0,<1.6", "torch", ">=1.10"),
    _Needs("accelerate", ">=1.6", "torch", ">=2.0"),
    _Needs("lightning", ">=2.2,<2.4", "torch", ">=1.13"),
    _Needs("lightning", ">=2.4", "torch", ">=2.1"),
    _Needs("pytorch-lightning", ">=2.2,<2.4", "torch", ">=1.13"),
    _Needs("pytorch-lightning", ">=2.4", "torch", ">=2.1"),
    _Needs("datasets", ">=2.20,<2.21", "fsspec", "<=2024.5.0"),
    _Needs("datasets", ">=2.21,<3.1", "fsspec", "<=2024.6.1"),
    _Needs("hydra-core", ">=1.2,<1.4", "omegaconf", ">=2.2,<2.4"),
)
# transformers refuses an older torch when a model is imported: it then behaves as if there were none.
_TORCH_OF_TRANSFORMERS = (("4.48", "2.0"), ("4.52", "2.1"), ("5.0", "2.2"))


def contradictions(view: StageView) -> Iterator[Finding]:
    for by in view.commands_of_pip:
        if not by.is_pip:
            continue
        specs = [spec for spec in view.specs_by(by) if spec.requirement is not None and not spec.is_url]
        if by.values("constraint"):
            specs += list(_constraints(view, by))
        first: dict[str, PackageSpec] = {}
        for spec in specs:
            other = first.setdefault(spec.name, spec)
            if other is not spec and _exclude(spec, other):
                yield CONTRADICTION.finding(
                    view,
                    spec,
                    f"`{spec.text}` and `{other.text}` exclude each other: `ResolutionImpossible`",
                    f"{other.path}:{other.line}; {spec.path}:{spec.line}",
                    "keep one of them",
                )
                break


def _constraints(view: StageView, by: PipInstall) -> Iterator[PackageSpec]:
    for path in by.values("constraint"):
        file = view.file_named(view.path_in_context(by, path))
        yield from (
            spec for spec in (file.specs if file is not None else ()) if spec.is_meant_for(view.python)
        )


def _exclude(spec: PackageSpec, other: PackageSpec) -> bool:
    """Whether no release fits both, by a pin or by the bounds of the two ranges."""
    for a, b in ((spec, other), (other, spec)):
        if a.pin is not None and len(b.specifier) > 0:
            return not b.specifier.contains(a.pin, prereleases=True) and not (
                b.pin is not None and b.pin.public == a.pin.public
            )
    both = spec.specifier & other.specifier
    edges = [
        Version(re.sub(r"\.\*$", "", s.version)) for s in both if re.match(r"^\d[\d.]*(?:\.\*)?$", s.version)
    ]
    if len(edges) < 2 or len(edges) != len(list(both)):
        return False
    near = [
        v
        for e in edges
        for v in (e, Version(f"{e}.1"), Version(f"{e}.post1"), Version("0.0.1"), Version("9999"))
    ]
    below = [
        Version(f"{e.major - 1}.9999")
        if e.minor == 0 and e.major
        else Version(f"{e.major}.{max(e.minor - 1, 0)}.9999")
        for e in edges
    ]
    return not any(both.contains(v, prereleases=True) for v in (*near, *below))


def neighbours(view: StageView) -> Iterator[Finding]:
    """Pins that the metadata of another pin excludes."""
    for row in _NEEDS:
        package = view.find(row.name)
        other = view.find(row.other)
        pins = (None, None) if package is None or other is None else (package.spec.pin, other.spec.pin)
        if package is None or other is None or pins[0] is None or pins[1] is None or package not in view.own:
            continue
        if package.by.flags & {"--no-deps"} or other.by.flags & {"--no-deps"}:
            continue
        if SpecifierSet(row.releases).contains(pins[0]) and not SpecifierSet(row.range).contains(
            Version(pins[1].public)
        ):
            together = package.by is other.by
            yield CONTRADICTION.finding(
                view,
                package.spec,
                f"{row.name} {pins[0]} needs {row.other}{row.range}, and {row.other} {pins[1]} is pinned: "
                + ("pip finds no solution" if together else "the later command breaks the earlier one"),
                f"{package.spec.text}; {other.spec.text}",
                f"pin {row.other}{row.range}, or another {row.name}",
            )
            return
    yield from _too_old_for_transformers(view)


def _too_old_for_transformers(view: StageView) -> Iterator[Finding]:
    main = view.find("transformers")
    torch = view.torch
    pin = None if main is None else main.spec.pin
    version = torch.pin if torch is not None else view.base.torch
    if main is None or pin is None or version is None or main not in view.own:
        return
    minimum = next((t for first, t in reversed(_TORCH_OF_TRANSFORMERS) if pin >= Version(first)), None)
    if minimum is not None and Version(version.public) < Version(minimum):
        yield CONTRADICTION.finding(
            view,
            main.spec,
            f"transformers {pin} disables PyTorch below {minimum}, but torch {version} is installed: "
            "`requires the PyTorch library`",
            f"{main.spec.text}; torch {version}",
            f"pin torch {minimum} or later, or an older transformers",
        )


def hashes(view: StageView) -> Iterator[Finding]:
    for by in view.commands_of_pip:
        specs = [
            spec for file in view.files_of(by) for spec in file.specs if file.path.endswith((".txt", ".in"))
        ]
        bare = next((spec for spec in specs if not spec.has_hash), None)
        if (
            bare is None
            or by.tool != "pip"
            or not (any(spec.has_hash for spec in specs) or "--require-hashes" in by.flags)
        ):
            continue
        yield HASHES.finding(
            view,
            bare,
            f"{bare.text} has no hash, and another requirement has one: `In --require-hashes mode, all "
            "requirements "
            "must have their versions pinned`",
            f"{bare.path}:{bare.line}",
            "add its hash (pip-compile --generate-hashes), or leave out all hashes",
        )


def no_index_at_all(view: StageView) -> Iterator[Finding]:
    for by in view.commands_of_pip:
        variables = view.environment(by).keys()
        options = {option.name for file in view.files_of(by) for option in file.options}
        is_local = all(spec.is_url for spec in by.specs) and not by.values("requirement")
        if "--no-index" not in by.flags or by.values("find-links") or "find-links" in options or is_local:
            continue
        if not variables & {"PIP_FIND_LINKS", "UV_FIND_LINKS"}:
            yield NO_SOURCE.finding(
                view,
                by.instruction,
                "--no-index disables every index, and no folder of wheels is given: `No matching "
                "distribution found`",
                " ".join(by.command.texts[:8]),
                "add --find-links with the folder of wheels, or leave --no-index out",
            )


def requires_python(view: StageView) -> Iterator[Finding]:
    """`requires-python` of the project against the Python of the image; uv would fetch another one."""
    if view.python is None:
        return
    for by in view.commands_of_pip:
        if by.is_uv and not by.is_pip:
            continue
        for file in view.files_of(by):
            required = _requires(file.path, file.text)
            try:
                fits = not required or SpecifierSet(required).contains(
                    f"{view.python}.99" if ">" in required else view.python
                )
            except InvalidSpecifier:
                continue
            if not fits and file.path.rpartition("/")[2] in ("pyproject.toml", "setup.py", "setup.cfg"):
                yield NO_WHEEL.finding(
                    view,
                    by.instruction,
                    f"the project needs Python {required}, and the image has {view.python}: `requires a "
                    "different Python`",
                    f"{file.path}: {required}; FROM {view.base.reference}",
                    f"use a base whose Python satisfies {required}",
                )
                return


def _requires(path: str, text: str) -> str:
    if path.endswith("pyproject.toml"):
        try:
            required = tomllib.loads(text).get("project", {}).get("requires-python", "")
        except tomllib.TOMLDecodeError:
            return ""
        return required if isinstance(required, str) else ""
    match = re.search(r"python_requires\s*=\s*[\"']?([<>=!~][^\"'\n]*)", text)
    return match[1].strip() if match else ""


def binds_unpinned(view: StageView) -> Iterator[Finding]:
    """xformers without a version behind a pinned torch: the newest one brings its own torch."""
    torch = view.torch
    pin = torch.pin if torch is not None else view.base.torch
    if pin is None or (view.has_conda and torch is None) or pin.release >= matrix().newest.torch.release:
        return
    for name in _BIND:
        package = view.find(name)
        if (
            package is None
            or package not in view.own
            or package.spec.specifier
            or package.spec.is_url
            or not package.by.is_pip
        ):
            continue
        if (
            package.by.flags & {"--no-deps"}
            or package.by.values("constraint")
            or "PIP_CONSTRAINT" in view.environment(package.by)
        ):
            continue
        if torch is not None and (
            torch.installed.by is package.by or not _is_behind(view, package, torch.installed)
        ):
            continue
        if view.base.family in ("ngc", "dlc") and torch is None:
            continue
        yield UNPINNED.finding(
            view,
            package.spec,
            f"the newest {name} needs its own torch: pip replaces torch {pin}",
            f"{package.spec.text} without a version; torch {pin}",
            f"pin the {name} made for torch {pin}",
        )


def _is_behind(view: StageView, package: Installed, other: Installed) -> bool:
    return view.installed.index(package) > view.installed.index(other)


def bound_by_image(view: StageView) -> Iterator[Finding]:
    """The torch of the image, replaced by what a pinned package accepts alone."""
    base = view.base
    if (
        base.torch is None
        or base.family != "pytorch"
        or view.find("torch") is not None
        or "torch" in view.removed
    ):
        return
    for package in view.own:
        pin = package.spec.pin
        if pin is None or package.spec.is_url or package.by.flags & {"--no-deps"} or view.indexes(package):
            continue
        needs = wheels().bound_to_torch.get(package.spec.name, {}).get(Version(pin.public))
        row = matrix().row(base.torch)
        bound = (
            getattr(row, package.spec.name, None)
            if package.spec.name in ("torchvision", "torchaudio")
            else None
        )
        if needs is not None and needs != base.torch:
            yield BOUND.finding(
                view,
                package.spec,
                f"{package.spec.name} {pin.public} needs torch {needs}: pip replaces the image's "
                f"{base.torch}",
                f"{package.spec.text}; FROM {base.reference}",
                f"pin the {package.spec.name} made for torch {base.torch}",
            )
        elif bound is not None and bound.release[:2] != pin.release[:2]:
            yield TRIO.finding(
                view,
                package.spec,
                f"{package.spec.name} {pin} was made for another torch than the {base.torch} of the image",
                f"{package.spec.text}; FROM {base.reference}",
                f"pin {package.spec.name}=={bound}",
                level=Level.PROBLEM,
            )


def mixed_builds(view: StageView) -> Iterator[Finding]:
    """torch and its sisters from pages for different CUDAs."""
    torch = view.torch
    if torch is None or torch.cuda is None or torch.build in (None, UNKNOWN):
        return
    for name in ("torchvision", "torchaudio"):
        sister = view.find(name)
        build = None if sister is None else build_from_index((), view.indexes(sister))
        match = re.fullmatch(r"cu(\d\d)\d", build or "")
        if sister is None or match is None or sister not in view.own or int(match[1]) == torch.cuda.major:
            continue
        yield TRIO.finding(
            view,
            sister.spec,
            f"{name} is built for {build}, and torch for {torch.build}: "
            "`compiled with different CUDA major versions`",
            f"{sister.spec.text}; {torch.installed.spec.text}",
            f"use {name} from {torch.build} too",
        )


RULES = (
    mixed_builds,
    contradictions,
    neighbours,
    hashes,
    no_index_at_all,
    requires_python,
    binds_unpinned,
    bound_by_image,
)

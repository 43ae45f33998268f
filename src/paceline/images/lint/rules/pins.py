"""Rules about requirements that exclude each other or the Python of the image (42)."""

import re
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from paceline.images.lint.dependency_files import Asked
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.matrix import UNKNOWN, build_from_index, matrix, wheels
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.releases import BOUND, NO_WHEEL, UNPINNED
from paceline.images.lint.rules.wheels import TRIO
from paceline.images.lint.view import Installed, Place

CONTRADICTION = Pattern(
    number=42,
    id="pins-contradict",
    what="Two requirements of one command exclude each other, or a constraint excludes a requirement.",
    fix="only reported: one of them",
)
HASHES = Pattern(
    number=42,
    id="hashes-incomplete",
    what="Some requirements have a hash and others none: pip then asks for one of each.",
    fix="only reported: hashes for all, or for none",
)
NO_SOURCE = Pattern(
    number=42,
    id="no-index-at-all",
    what="`--no-index` without `--find-links`: pip has no place to take packages from.",
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


def contradictions(place: Place) -> Iterator[Finding]:
    for by in place.commands_of_pip:
        if not by.is_pip:
            continue
        asked = [one for one in place.asked_by(by) if one.requirement is not None and not one.is_url]
        if by.values("constraint"):
            asked += list(_constraints(place, by))
        first: dict[str, Asked] = {}
        for one in asked:
            other = first.setdefault(one.name, one)
            if other is not one and _exclude(one, other):
                yield CONTRADICTION.found(
                    place,
                    one,
                    f"`{one.text}` and `{other.text}` exclude each other: `ResolutionImpossible`",
                    f"{other.path}:{other.line}; {one.path}:{one.line}",
                    "keep one of them",
                )
                break


def _constraints(place: Place, by: PipInstall) -> Iterator[Asked]:
    for path in by.values("constraint"):
        file = place.file_named(place.path_in_context(by, path))
        yield from (one for one in (file.asked if file is not None else ()) if one.is_meant_for(place.python))


def _exclude(one: Asked, other: Asked) -> bool:
    """No release fits both: told by a pin, or by the edges of the two ranges."""
    for a, b in ((one, other), (other, one)):
        if a.pin is not None and len(b.specifier) > 0:
            return not b.specifier.contains(a.pin, prereleases=True) and not (
                b.pin is not None and b.pin.public == a.pin.public
            )
    both = one.specifier & other.specifier
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


def neighbours(place: Place) -> Iterator[Finding]:
    """Pins that the metadata of another pin excludes."""
    for row in _NEEDS:
        one, other = place.find(row.name), place.find(row.other)
        pins = (None, None) if one is None or other is None else (one.asked.pin, other.asked.pin)
        if one is None or other is None or pins[0] is None or pins[1] is None or one not in place.own:
            continue
        if one.by.flags & {"--no-deps"} or other.by.flags & {"--no-deps"}:
            continue
        if SpecifierSet(row.releases).contains(pins[0]) and not SpecifierSet(row.range).contains(
            Version(pins[1].public)
        ):
            together = one.by is other.by
            yield CONTRADICTION.found(
                place,
                one.asked,
                f"{row.name} {pins[0]} needs {row.other}{row.range}, and {row.other} {pins[1]} is pinned: "
                + ("pip finds no solution" if together else "the later command breaks the earlier one"),
                f"{one.asked.text}; {other.asked.text}",
                f"pin {row.other}{row.range}, or another {row.name}",
            )
            return
    yield from _too_old_for_transformers(place)


def _too_old_for_transformers(place: Place) -> Iterator[Finding]:
    main, torch = place.find("transformers"), place.torch
    pin = None if main is None else main.asked.pin
    there = torch.pin if torch is not None else place.base.torch
    if main is None or pin is None or there is None or main not in place.own:
        return
    least = next((t for first, t in reversed(_TORCH_OF_TRANSFORMERS) if pin >= Version(first)), None)
    if least is not None and Version(there.public) < Version(least):
        yield CONTRADICTION.found(
            place,
            main.asked,
            f"transformers {pin} switches PyTorch off below {least}, and torch {there} is installed: "
            "`requires the PyTorch library`",
            f"{main.asked.text}; torch {there}",
            f"pin torch {least} or later, or an older transformers",
        )


def hashes(place: Place) -> Iterator[Finding]:
    for by in place.commands_of_pip:
        asked = [
            one for file in place.files_of(by) for one in file.asked if file.path.endswith((".txt", ".in"))
        ]
        bare = next((one for one in asked if not one.has_hash), None)
        if (
            bare is None
            or by.tool != "pip"
            or not (any(one.has_hash for one in asked) or "--require-hashes" in by.flags)
        ):
            continue
        yield HASHES.found(
            place,
            bare,
            f"{bare.text} has no hash, and another requirement has one: `In --require-hashes mode, all "
            "requirements "
            "must have their versions pinned`",
            f"{bare.path}:{bare.line}",
            "add its hash (pip-compile --generate-hashes), or leave out all hashes",
        )


def no_index_at_all(place: Place) -> Iterator[Finding]:
    for by in place.commands_of_pip:
        variables = place.environment(by).keys()
        options = {option.name for file in place.files_of(by) for option in file.options}
        is_local = all(one.is_url for one in by.asked) and not by.values("requirement")
        if "--no-index" not in by.flags or by.values("find-links") or "find-links" in options or is_local:
            continue
        if not variables & {"PIP_FIND_LINKS", "UV_FIND_LINKS"}:
            yield NO_SOURCE.found(
                place,
                by.instruction,
                "--no-index switches every index off, and no folder of wheels is named: `No matching "
                "distribution found`",
                " ".join(by.command.texts[:8]),
                "add --find-links with the folder of wheels, or leave --no-index out",
            )


def requires_python(place: Place) -> Iterator[Finding]:
    """`requires-python` of the project against the Python of the image; uv would fetch another one."""
    if place.python is None:
        return
    for by in place.commands_of_pip:
        if by.is_uv and not by.is_pip:
            continue
        for file in place.files_of(by):
            said = _requires(file.path, file.text)
            try:
                fits = not said or SpecifierSet(said).contains(
                    f"{place.python}.99" if ">" in said else place.python
                )
            except InvalidSpecifier:
                continue
            if not fits and file.path.rpartition("/")[2] in ("pyproject.toml", "setup.py", "setup.cfg"):
                yield NO_WHEEL.found(
                    place,
                    by.instruction,
                    f"the project needs Python {said}, and the image has {place.python}: `requires a "
                    "different Python`",
                    f"{file.path}: {said}; FROM {place.base.reference}",
                    f"use a base whose Python fits {said}",
                )
                return


def _requires(path: str, text: str) -> str:
    if path.endswith("pyproject.toml"):
        try:
            said = tomllib.loads(text).get("project", {}).get("requires-python", "")
        except tomllib.TOMLDecodeError:
            return ""
        return said if isinstance(said, str) else ""
    found = re.search(r"python_requires\s*=\s*[\"']?([<>=!~][^\"'\n]*)", text)
    return found[1].strip() if found else ""


def binds_unpinned(place: Place) -> Iterator[Finding]:
    """xformers without a version behind a pinned torch: the newest one brings its own torch."""
    torch = place.torch
    pin = torch.pin if torch is not None else place.base.torch
    if pin is None or (place.has_conda and torch is None) or pin.release >= matrix().newest.torch.release:
        return
    for name in _BIND:
        one = place.find(name)
        if (
            one is None
            or one not in place.own
            or one.asked.specifier
            or one.asked.is_url
            or not one.by.is_pip
        ):
            continue
        if (
            one.by.flags & {"--no-deps"}
            or one.by.values("constraint")
            or "PIP_CONSTRAINT" in place.environment(one.by)
        ):
            continue
        if torch is not None and (
            torch.installed.by is one.by or not _is_behind(place, one, torch.installed)
        ):
            continue
        if place.base.family in ("ngc", "dlc") and torch is None:
            continue
        yield UNPINNED.found(
            place,
            one.asked,
            f"the newest {name} needs its own torch: pip puts it in the place of torch {pin}",
            f"{one.asked.text} without a version; torch {pin}",
            f"pin the {name} that was made for torch {pin}",
        )


def _is_behind(place: Place, one: Installed, other: Installed) -> bool:
    return place.installed.index(one) > place.installed.index(other)


def bound_by_image(place: Place) -> Iterator[Finding]:
    """The torch of the image, replaced by what a pinned package accepts alone."""
    base = place.base
    if (
        base.torch is None
        or base.family != "pytorch"
        or place.find("torch") is not None
        or "torch" in place.removed
    ):
        return
    for one in place.own:
        pin = one.asked.pin
        if pin is None or one.asked.is_url or one.by.flags & {"--no-deps"} or place.indexes(one):
            continue
        needs = wheels().bound_to_torch.get(one.asked.name, {}).get(Version(pin.public))
        row = matrix().row(base.torch)
        made = getattr(row, one.asked.name, None) if one.asked.name in ("torchvision", "torchaudio") else None
        if needs is not None and needs != base.torch:
            yield BOUND.found(
                place,
                one.asked,
                f"{one.asked.name} {pin.public} needs torch {needs}: pip puts it in the place of the "
                f"image's {base.torch}",
                f"{one.asked.text}; FROM {base.reference}",
                f"pin the {one.asked.name} that was made for torch {base.torch}",
            )
        elif made is not None and made.release[:2] != pin.release[:2]:
            yield TRIO.found(
                place,
                one.asked,
                f"{one.asked.name} {pin} was made for another torch than the {base.torch} of the image",
                f"{one.asked.text}; FROM {base.reference}",
                f"pin {one.asked.name}=={made}",
                level=Level.PROBLEM,
            )


def mixed_builds(place: Place) -> Iterator[Finding]:
    """torch and its sisters from pages for different CUDAs."""
    torch = place.torch
    if torch is None or torch.cuda is None or torch.build in (None, UNKNOWN):
        return
    for name in ("torchvision", "torchaudio"):
        sister = place.find(name)
        build = None if sister is None else build_from_index((), place.indexes(sister))
        found = re.fullmatch(r"cu(\d\d)\d", build or "")
        if sister is None or found is None or sister not in place.own or int(found[1]) == torch.cuda.major:
            continue
        yield TRIO.found(
            place,
            sister.asked,
            f"{name} is built for {build}, and torch for {torch.build}: "
            "`compiled with different CUDA major versions`",
            f"{sister.asked.text}; {torch.installed.asked.text}",
            f"take {name} from {torch.build} too",
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

"""How is what a log shows mended in the project? One function for each kind of signature.

Each answers with the place to point at and the edits, or None where this stage is not the one.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline.images.bases import catalog
from paceline.images.changing import another_base, beside, index_added, respelled, system_packages_added
from paceline.images.choosing import nearest_cuda_tag
from paceline.images.dockerfile import Instruction
from paceline.images.project import Edit, Finding
from paceline.images.requirements import Asked
from paceline.images.rules import bases, build_steps, extensions, libraries, releases, stack, wheels
from paceline.images.view import Installed, Place

Mending = tuple[Asked | Instruction, tuple[Edit, ...]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A signature found in a log, and the stage that is looked at."""

    place: Place
    match: re.Match[str]
    log: str


def no_edit(_seen: Seen) -> Mending | None:
    return None


def venv(seen: Seen) -> Mending | None:
    place = seen.place
    mine = {id(step) for step in place.stage.instructions}
    for by in place.pip:
        if id(by.instruction) in mine and not by.is_uv:
            return by.instruction, build_steps.venv_edits(place, by)
    return None


def _collected(log: str, end: int) -> str:
    """The package that pip was busy with when the line was written."""
    names = re.findall(r"Collecting ([A-Za-z0-9._-]+)", log[:end])
    return re.sub(r"[-_.]+", "-", names[-1]).lower() if names else ""


def isolated(seen: Seen) -> Mending | None:
    place = seen.place
    named = _collected(seen.log, seen.match.start())
    for one in place.own:
        if one.asked.name == named or (not named and one.asked.name in extensions.IMPORT_TORCH):
            return one.asked, extensions.apart(place, one)
    return None


def git(seen: Seen) -> Mending | None:
    place = seen.place
    one = next((one for one in place.own if one.asked.is_git), None)
    return _with_packages(place, one, ["git"])


def compiler(seen: Seen) -> Mending | None:
    place = seen.place
    names = [text for text in seen.match.groups() if text]
    named = re.sub(r"[-_.]+", "-", names[0]).lower() if names else _collected(seen.log, seen.match.start())
    one = next((one for one in place.own if one.asked.name == named), None)
    if one is None and place.own:
        one = place.own[-1]  # something that it brings
    known = list(build_steps.ARCHIVES.get(named, ()))
    more = [] if place.base.family == "python" else ["python3-dev"]
    return _with_packages(place, one, known + more if known else ["gcc", "g++", *more])


def _with_packages(place: Place, one: Installed | None, names: list[str]) -> Mending | None:
    if one is None:
        return None
    return one.asked, system_packages_added(place, one.by.instruction, names)


# Package of Debian 12 that a library comes from; the loader's own libraries are not for apt to add.
_PACKAGES = {
    "libGL.so.1": "libgl1",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgomp.so.1": "libgomp1",
    "libsndfile.so.1": "libsndfile1",
    "libxcb.so.1": "libxcb1",
    "libSM.so.6": "libsm6",
    "libXext.so.6": "libxext6",
    "libXrender.so.1": "libxrender1",
    "libportaudio.so.2": "libportaudio2",
    "libmagic.so.1": "libmagic1",
    "libpq.so.5": "libpq5",
    "libnuma.so.1": "libnuma1",
    "libibverbs.so.1": "libibverbs1",
}


def library(seen: Seen) -> Mending | None:
    place = seen.place
    if seen.match[1] == "libGL.so.1":
        for one in place.own:
            new = libraries.headless(one.asked)
            if new is not None:
                return one.asked, respelled(place, one.asked, new)
    package = _PACKAGES.get(seen.match[1])
    if package is None or not place.pip:
        return None
    first = place.pip[0].instruction
    return first, system_packages_added(place, first, [package])


def index(seen: Seen) -> Mending | None:
    place = seen.place
    for one in place.own:
        pin = one.asked.pin
        if pin is not None and pin.local == seen.match[2] and one.asked.name == seen.match[1].lower():
            address = f"{catalog().index}/{seen.match[2]}"
            named = any(seen.match[2] in index for index in place.indexes(one))
            return one.asked, () if named else index_added(place, one, address)
    return None


def sister(seen: Seen) -> Mending | None:
    place = seen.place
    sister, torch = place.find(seen.match[1].lower()), place.torch
    made = None if torch is None or torch.row is None else getattr(torch.row, seen.match[1].lower(), None)
    if sister is None:
        return None
    new = sister.asked.with_range(f"=={made}")
    return sister.asked, () if made is None else respelled(place, sister.asked, new)


def neighbour(seen: Seen) -> Mending | None:
    """`transformers 4.30.2 depends on tokenizers<0.14,>=0.11`: the pinned neighbour takes that range."""
    place = seen.place
    one = place.find(seen.match[3].lower())
    if one is None or one.asked.pin is None or one.asked.name in ("torch", "numpy"):
        return None if one is None else (one.asked, ())
    said = re.sub(r"\s*\band\b\s*", ",", seen.match[4]).strip("() \r")
    return one.asked, respelled(place, one.asked, one.asked.with_range(stack.lower_bound_first(said)))


def old_numpy(seen: Seen) -> Mending | None:
    place = seen.place
    numpy, torch = place.find("numpy"), place.find("torch")
    if numpy is not None:
        edits = respelled(place, numpy.asked, wheels.below_2(numpy.asked)) if numpy.asked.pin is None else ()
        return numpy.asked, edits
    one = torch or (place.own[-1] if place.own else None)
    return None if one is None else (one.asked, beside(place, one, "numpy<2"))


def devel(seen: Seen) -> Mending | None:
    place = seen.place
    base = place.base
    if base.family == "pytorch" and base.flavour == "runtime":
        return place.stage.origin, another_base(place, base.reference.replace("-runtime", "-devel"))
    if base.family != "cuda" or base.cuda is None or base.flavour == "devel":
        return None
    tag = nearest_cuda_tag(base, base.cuda.major, base.cuda, flavour="devel")
    return place.stage.origin, another_base(place, f"{base.name}:{tag}") if tag else ()


def other_tag(seen: Seen) -> Mending | None:
    place = seen.place
    base = place.base
    if base.family != "cuda" or base.tag in catalog().cuda_tags or (base.tag or "?") not in seen.log:
        return None
    known = next(bases.ended(place), None)
    if known is not None and known.edits:
        return place.stage.origin, known.edits
    tag = nearest_cuda_tag(base, base.cuda.major if base.cuda is not None else 12, base.cuda)
    return place.stage.origin, another_base(place, f"{base.name}:{tag}") if tag else ()


def other_python(seen: Seen) -> Mending | None:
    place = seen.place
    one = place.find(seen.match[1].lower())
    if one is None:
        return None
    if one.asked.name == "torch":
        found = next(iter(releases.python_without_wheel(place)), None)
        return one.asked, () if found is None else found.edits
    return one.asked, ()


def as_rule(rule: Callable[[Place], Iterator[Finding]]) -> Callable[[Seen], Mending | None]:
    """What the rule for the same pattern would change."""

    def mended(seen: Seen) -> Mending | None:
        found = next(rule(seen.place), None)
        return None if found is None else (seen.place.stage.origin, found.edits)

    return mended

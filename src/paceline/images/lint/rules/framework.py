"""The rule about requirements that replace the torch a base image was made around (7)."""

from collections.abc import Iterator

from paceline.images.lint.edits import another_base, dropped, torch_tag
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

REPLACED = Pattern(
    number=7,
    id="torch-replaced",
    what="The requirements replace the torch of a base image that was made around its own.",
    fix="the base with the torch that is pinned; on NVIDIA's and Amazon's images you are asked",
    level=Level.WARNING,
)
PATTERNS = (REPLACED,)


def torch_replaced(place: Place) -> Iterator[Finding]:
    base, torch = place.base, place.torch
    if base.family not in ("pytorch", "ngc", "dlc") or torch is None or torch.installed not in place.own:
        return
    asked, by = torch.installed
    if "torch" in place.removed or not by.is_pip:
        return  # the base's own is taken away on purpose
    upgrades = bool(by.flags & {"-U", "--upgrade"})
    differs = torch.pin is not None and (base.torch is None or torch.pin.base_version != str(base.torch))
    if base.family == "pytorch" and base.torch is None:
        return  # what is in it is not known: nothing is concluded
    if not differs and not (upgrades and torch.pin is None):
        return
    is_plain = base.family == "pytorch" and torch.pin is not None and torch.pin.local is None
    tag = torch_tag(base, torch.pin) if is_plain and torch.pin is not None else None
    reference = f"{base.name}:{tag}"
    has = f"torch {base.torch}" if base.torch is not None else "a torch of its own build"
    yield REPLACED.found(
        place,
        asked,
        f"{base.reference} has {has}, and pip puts another over it: both are in the image, and what was "
        "built for the first one breaks",
        f"{asked.text} on {base.reference}",
        f"use {reference}" if tag else "leave torch out of the requirements, or use a base without torch",
        another_base(place, reference) if tag else dropped(place, torch.installed),
        asks=tag is None,
        level=Level.PROBLEM if base.family == "ngc" else Level.WARNING,
    )


RULES = (torch_replaced,)

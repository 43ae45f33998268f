"""Rules about pins of torch and the packages bound to it: replaced, unpinned, contradicting (7, 23, 24)."""

from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.edits import another_base, dropped, respelled, torch_tag
from paceline.images.lint.matrix import matrix, wheels
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.packages.releases import is_judged
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

REPLACED = Pattern(
    number=7,
    id="torch-replaced",
    what="The requirements replace the torch of a base image that is built for its own torch.",
    fix="the base with the pinned torch; for NVIDIA's and Amazon's images with --agree",
    level=Level.WARNING,
)
UNPINNED = Pattern(
    number=23,
    id="sister-unpinned",
    what="torchvision without a version is installed after a pinned torch: it replaces that torch.",
    fix="the sister is pinned to the release made for that torch",
)
BOUND = Pattern(
    number=24,
    id="bound-to-another-torch",
    what="A package that accepts one torch only (xformers, vllm, triton) is pinned with another.",
    fix="only reported: which torch it accepts",
)
PATTERNS = (
    REPLACED,
    UNPINNED,
    BOUND,
)


def torch_replaced(view: StageView) -> Iterator[Finding]:
    base = view.base
    torch = view.torch
    if base.family not in ("pytorch", "ngc", "dlc") or torch is None or torch.installed not in view.own:
        return
    spec, by = torch.installed
    if "torch" in view.removed or not by.is_pip:
        return  # the base's own is taken away on purpose
    upgrades = bool(by.flags & {"-U", "--upgrade"})
    differs = torch.pin is not None and (base.torch is None or torch.pin.base_version != str(base.torch))
    if base.family == "pytorch" and base.torch is None:
        return  # its content is unknown: nothing is concluded
    if not differs and not (upgrades and torch.pin is None):
        return
    is_plain = base.family == "pytorch" and torch.pin is not None and torch.pin.local is None
    tag = torch_tag(base, torch.pin) if is_plain and torch.pin is not None else None
    reference = f"{base.name}:{tag}"
    has = f"torch {base.torch}" if base.torch is not None else "a torch of its own build"
    yield REPLACED.finding(
        view,
        spec,
        f"{base.reference} has {has}, and pip installs another: both are in the image, and packages built "
        "for the first one break",
        f"{spec.text} on {base.reference}",
        f"use {reference}" if tag else "leave torch out of the requirements, or use a base without torch",
        another_base(view, reference) if tag else dropped(view, torch.installed),
        asks=tag is None,
        level=Level.PROBLEM if base.family == "ngc" else Level.WARNING,
    )


def bound_to_another_torch(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    if torch is None or torch.pin is None or torch.pin.is_prerelease:
        return
    torch_version = Version(torch.pin.base_version)
    for package in view.own:
        name = package.spec.name
        pin = package.spec.pin
        if pin is None or not is_judged(view, package) or package.by.flags & {"--no-deps"}:
            continue
        if name == "triton":
            needs = wheels().triton_of_torch.get(torch_version)
            differs = needs is not None and needs != Version(pin.base_version) and torch.build is None
            need = f"torch {torch_version} needs triton {needs}"
        else:
            needs = wheels().bound_to_torch.get(name, {}).get(Version(pin.public))
            differs = needs is not None and needs != torch_version
            need = f"{name} {pin.public} needs torch {needs}"
        if not differs:
            continue
        together = package.by is torch.installed.by
        yield BOUND.finding(
            view,
            package.spec,
            f"{need}, and torch {torch.pin} is pinned: pip finds no solution"
            if together
            else f"{need}, and torch {torch.pin} is pinned: the later command replaces it",
            f"{package.spec.text} ({package.spec.path}:{package.spec.line}); {torch.installed.spec.text}",
            f"pin matching versions: {need}",
        )


def sister_unpinned(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    if torch is None or torch.pin is None or view.has_conda or not torch.installed.by.is_pip:
        return
    for name in ("torchvision", "torchaudio"):
        sister = view.find(name)
        version = None if torch.row is None else getattr(torch.row, name)
        if sister is None or sister not in view.own or sister.spec.is_url or sister.spec.specifier:
            continue
        if _is_held(view, sister) or torch.pin.release >= matrix().newest.torch.release:
            continue
        is_apart = sister.by is not torch.installed.by
        later = view.installed.index(sister) > view.installed.index(torch.installed)
        if is_apart and not later:
            continue  # torch is installed after it and decides; pip reports the conflict
        binds = name == "torchvision" or (
            version is not None and version.release[:2] == torch.pin.release[:2]
        )
        new = sister.spec.with_range(f"=={version}") if version is not None else ""
        level = Level.PROBLEM if is_apart and name == "torchvision" else Level.WARNING
        if not binds:
            continue
        why = (
            f"the newest {name} needs a newer torch: pip replaces torch {torch.pin}"
            if is_apart
            else f"which {name} goes with torch {torch.pin} depends on the index at build time"
        )
        yield UNPINNED.finding(
            view,
            sister.spec,
            why,
            f"{sister.spec.text} without a version, torch=={torch.pin}",
            f"pin {new}" if new else f"pin {name} to the release made for torch {torch.pin}",
            respelled(view, sister.spec, new) if new and is_apart and torch.build is None else (),
            level=level,
        )


def _is_held(view: StageView, package: Installed) -> bool:
    """Constraints, or an installation without dependencies, keep torch as it is."""
    names = {"PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE", "PIP_NO_DEPS"}
    constraints = package.by.values("constraint", "constraints", "override", "overrides")
    return bool(
        constraints or package.by.flags & {"--no-deps"} or view.environment(package.by).keys() & names
    )


# `torch_replaced` is listed separately in rules/__init__.py: it precedes the rules about releases.
RULES = (bound_to_another_torch, sister_unpinned)

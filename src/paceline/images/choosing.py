"""The nearest image of the curated list: same CUDA major, then flavour, system, and minor."""

import re
from datetime import date

from packaging.version import Version

from paceline.images.bases import Base, catalog, read_base
from paceline.images.view import Place


def nearest_cuda_tag(base: Base, major: int, wheel: Version | None = None, **wanted: str) -> str | None:
    """The tag of nvidia/cuda with this major that differs least from the given base."""
    flavour = wanted.get("flavour", base.flavour or "runtime")
    cudnn = wanted.get("cudnn", base.cudnn)
    system = wanted.get("system", base.system)

    def distance(tag: str) -> tuple[object, ...]:
        one = read_base(f"nvidia/cuda:{tag}")
        assert one.cuda is not None, f"{tag} of the curated list names a CUDA"
        minor = 0 if wheel is None else abs(one.cuda.minor - wheel.minor)
        same = one.flavour != flavour, bool(one.cudnn) != bool(cudnn), one.system != system
        return (*same, minor, -one.cuda.minor, one.system)

    maker = re.match(r"[a-z]*", base.system)
    of_maker = f"-{maker[0]}" if maker else ""  # commands for dnf mean nothing where apt is
    same = [tag for tag in catalog().cuda_tags if int(tag.partition(".")[0]) == major and of_maker in tag]
    return min(same, key=distance) if same else None


def with_python(place: Place, other: str, known: tuple[str, ...]) -> str | None:
    """The base with another Python: that tag of python, or CUDA on a supported system with that Python."""
    base = place.base
    if place.has_own_python:
        return None
    if base.family == "python" and base.tag is not None:
        tag = re.sub(r"^(?:latest(?=-|$)|3(?:\.\d+){0,2}(?:[a-z]+\d+)?)", other, base.tag)
        return f"{base.reference.rpartition(':')[0]}:{tag}" if tag != base.tag else None
    if base.family == "cuda" and base.cuda is not None:
        supported = [s for s, ends in catalog().systems.items() if ends >= place.target.today]
        for system in sorted(supported, reverse=True):
            near = nearest_cuda_tag(base, base.cuda.major, base.cuda, system=system)
            if catalog().system_pythons.get(system) in known and near is not None and near.endswith(system):
                return f"{base.name}:{near}"
    return None


def torch_tag(base: Base, torch: Version) -> str | None:
    """The tag of pytorch/pytorch with this torch, in the flavour that is used now."""
    known = [tag for tag in catalog().torch_tags if tag.startswith(f"{torch.base_version}-")]
    return f"{known[0]}-{base.flavour or 'runtime'}" if known else None


def supported_python(place: Place, today: date) -> str | None:
    """The oldest Python that is looked after, and that the pinned torch has wheels for."""
    pythons = [version for version, ends in catalog().pythons.items() if ends >= today]
    torch = place.torch
    if torch is not None and torch.row is not None:
        pythons = [version for version in pythons if version in torch.row.pythons]
    return min(pythons, key=Version) if pythons else None

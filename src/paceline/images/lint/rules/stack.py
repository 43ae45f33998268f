"""Rules about packages that must fit each other: Hugging Face's, and extensions built for one torch (17)."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from paceline.images.lint.dependency_files import conda_spec
from paceline.images.lint.dockerfile import substituted
from paceline.images.lint.edits import respelled
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.matrix import matrix
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

SKEW = Pattern(
    number=17,
    id="hugging-face-skew",
    what="transformers is pinned beside a tokenizers or huggingface-hub that it refuses.",
    fix="the neighbour's pin becomes the range that the pinned transformers asks for",
)
OTHER_TORCH = Pattern(
    number=17,
    id="built-for-another-torch",
    what="An extension comes from a page of wheels for another torch or CUDA than the image has.",
    fix="only reported: the page for the torch and the CUDA that are installed",
)
PATTERNS = (SKEW, OTHER_TORCH)
# Pages of extensions and the names of their wheels: each has one build for each torch and CUDA.
_PAGES = re.compile(
    r"data\.pyg\.org|pytorch-geometric\.com|openmmlab\.com|data\.dgl\.ai|shi-labs\.com/natten|whl\.natten\.org"
    r"|fbaipublicfiles\.com/(?:detectron2|pytorch3d)|nvidia-kaolin|flash[_-]attn[^/]*\.whl|pyg\.s3"
)
_TORCH = re.compile(r"(?:^|[^a-z])(?:py)?torch[-_=]?(\d+)\.(\d+)", re.I)
_SHORT_TORCH = re.compile(r"(?:pyt|torch)([12])(1\d|\d)\d(?=cu|/|_|\b)|(?<![a-z])pt([12])(1\d|\d)cu")
_CUDA = re.compile(r"(?:^|[^a-z])cu(?:da)?-?(\d{1,2})(\d)(?!\d|\.\d)|torch[\d.]+cu(\d{2})(\d)", re.I)


def hugging_face_skew(place: Place) -> Iterator[Finding]:
    main = place.find("transformers")
    if main is None or main.asked.pin is None or main not in place.own:
        return
    stack = matrix().stack(main.asked.pin)
    for name, said in ({} if stack is None else stack.needs).items():
        neighbour = place.find(name)
        pin = None if neighbour is None else neighbour.asked.pin
        if neighbour is None or pin is None or SpecifierSet(said).contains(pin, prereleases=True):
            continue
        new = neighbour.asked.with_range(lower_bound_first(said))
        yield SKEW.found(
            place,
            neighbour.asked,
            f"transformers {main.asked.pin} refuses {name} {pin}: pip finds no solution",
            f"transformers {main.asked.pin} needs {name}{said} (wheel metadata of {matrix().dated})",
            f"write {new}",
            respelled(place, neighbour.asked, new),
        )


def lower_bound_first(said: str) -> str:
    """`<2,>=1` as people write it: `>=1,<2`."""
    return ",".join(
        sorted((part.strip() for part in said.split(",")), key=lambda p: (not p.startswith(">"), p))
    )


class _Build(NamedTuple):
    """The torch and the CUDA of a build, as far as they are known."""

    torch: tuple[int, int] | None
    cuda: tuple[int, int] | None
    source: str


def built_for_another_torch(place: Place) -> Iterator[Finding]:
    for by in place.commands_of_pip:
        if not by.is_pip:
            continue
        there = _torch_at(place, by)
        for address in _pages_of(place, by):
            wanted = _build_named(address)
            why = "" if there is None else _contradiction(wanted, there)
            if there is None or not why:
                continue
            yield OTHER_TORCH.found(
                place,
                by.instruction,
                f"the extension is built for {why}: `undefined symbol`, or it refuses to load",
                f"{address}; {there.source}",
                "take the page, or the wheel, for the torch and the CUDA that are installed",
            )
            break


def _pages_of(place: Place, by: PipInstall) -> list[str]:
    values = place.environment(by)
    options = [o.value for f in place.files_of(by) for o in f.options if o.name == "find-links"]
    wheels = [asked.text for asked in place.asked_by(by) if asked.is_url and asked.text.endswith(".whl")]
    said = [*by.values("find-links"), *options, values.get("PIP_FIND_LINKS", ""), *wheels]
    return [one for one in said if _PAGES.search(one) and "$" not in one]


def _build_named(address: str) -> _Build:
    text = re.sub(r"%2B", "+", address, flags=re.I)
    long, short, cuda = _TORCH.search(text), _SHORT_TORCH.search(text), _CUDA.search(text)
    torch = None if long is None else (int(long[1]), int(long[2]))
    if torch is None and short is not None:
        torch = (int(short[1] or short[3]), int(short[2] or short[4]))
    major, minor = (cuda[1] or cuda[3], cuda[2] or cuda[4]) if cuda is not None else ("", "")
    return _Build(
        torch,
        None if cuda is None else (int(major), int(minor)),
        address,
    )


def _contradiction(wanted: _Build, there: _Build) -> str:
    if wanted.torch is not None and there.torch is not None and wanted.torch != there.torch:
        return f"torch {_shown(wanted.torch)}, and torch {_shown(there.torch)} is installed"
    if wanted.cuda is not None and there.cuda is not None and wanted.cuda != there.cuda:
        # Wheels named for flash-attn fit every minor version of their CUDA.
        if wanted.source.endswith(".whl") and wanted.cuda[0] == there.cuda[0]:
            return ""
        return f"CUDA {_shown(wanted.cuda)}, and the torch that is installed for CUDA {_shown(there.cuda)}"
    return ""


def _shown(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _torch_at(place: Place, by: PipInstall) -> _Build | None:
    """The torch that is there when a command runs; None where a file or a tool may have brought another."""
    before = [one for one in place.installed if one.by.instruction.first <= by.instruction.first]
    mine = [one for one in before if one.asked.name == "torch"]
    if mine:
        if place.torch is None or place.torch.installed is not mine[-1] or mine[-1].by.is_conditional:
            return None
        pin, cuda = place.torch.pin, place.torch.cuda
        torch = None if pin is None else (pin.major, pin.minor)
        return _Build(torch, _pair(cuda), mine[-1].asked.text)
    if place.has_conditional or any(not one.by.is_pip for one in before):
        return None
    by_conda = _conda_torch(place, by)
    if by_conda is not None:
        return by_conda
    base = place.base
    if base.torch is None or "torch" in place.removed or base.family not in ("pytorch", "dlc"):
        return None
    return _Build((base.torch.major, base.torch.minor), _pair(base.cuda), f"FROM {base.reference}")


def _pair(version: Version | None) -> tuple[int, int] | None:
    return None if version is None else (version.major, version.minor)


def _conda_torch(place: Place, by: PipInstall) -> _Build | None:
    """`conda install pytorch==1.8.0 cudatoolkit=11.1`: without versions where it names none."""
    for step in reversed(place.steps):
        if step.first > by.instruction.first:
            continue
        values = place.docker.variables(place.stage, step.first)
        for command in step.commands:
            words = [substituted(word, values) for word in command.texts]
            if not re.search(r"(?:conda|mamba)$", words[0]) or not {"install", "create"} & set(words[1:3]):
                continue
            specs = dict(conda_spec(word) for word in words)
            if "pytorch" not in specs:
                continue
            torch = re.match(r"^==?\s*(\d+)\.(\d+)", specs["pytorch"])
            cuda = re.match(r"^==?\s*(\d+)\.(\d+)", specs.get("pytorch-cuda", specs.get("cudatoolkit", "")))
            return _Build(
                None if torch is None else (int(torch[1]), int(torch[2])),
                None if cuda is None else (int(cuda[1]), int(cuda[2])),
                " ".join(command.texts[:8]),
            )
    return None


RULES = (hugging_face_skew, built_for_another_torch)

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
from paceline.images.lint.view import StageView

SKEW = Pattern(
    number=17,
    id="hugging-face-skew",
    what="transformers is pinned with an incompatible tokenizers or huggingface-hub.",
    fix="the other pin becomes the range that the pinned transformers requires",
)
OTHER_TORCH = Pattern(
    number=17,
    id="built-for-another-torch",
    what="An extension comes from a page of wheels for another torch or CUDA than the image has.",
    fix="only reported: the page for the installed torch and CUDA",
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


def hugging_face_skew(view: StageView) -> Iterator[Finding]:
    main = view.find("transformers")
    if main is None or main.spec.pin is None or main not in view.own:
        return
    stack = matrix().stack(main.spec.pin)
    for name, needed in ({} if stack is None else stack.needs).items():
        neighbour = view.find(name)
        pin = None if neighbour is None else neighbour.spec.pin
        if neighbour is None or pin is None or SpecifierSet(needed).contains(pin, prereleases=True):
            continue
        new = neighbour.spec.with_range(lower_bound_first(needed))
        yield SKEW.finding(
            view,
            neighbour.spec,
            f"transformers {main.spec.pin} conflicts with {name} {pin}: pip finds no solution",
            f"transformers {main.spec.pin} needs {name}{needed} (wheel metadata of {matrix().dated})",
            f"write {new}",
            respelled(view, neighbour.spec, new),
        )


def lower_bound_first(spec_range: str) -> str:
    """`<2,>=1` as people write it: `>=1,<2`."""
    return ",".join(
        sorted((part.strip() for part in spec_range.split(",")), key=lambda p: (not p.startswith(">"), p))
    )


class _Build(NamedTuple):
    """The torch and the CUDA of a build, as far as they are known."""

    torch: tuple[int, int] | None
    cuda: tuple[int, int] | None
    source: str


def built_for_another_torch(view: StageView) -> Iterator[Finding]:
    for by in view.commands_of_pip:
        if not by.is_pip:
            continue
        installed = _torch_at(view, by)
        for address in _pages_of(view, by):
            built_for = _build_named(address)
            why = "" if installed is None else _contradiction(built_for, installed)
            if installed is None or not why:
                continue
            yield OTHER_TORCH.finding(
                view,
                by.instruction,
                f"the extension is built for {why}: `undefined symbol`, or it fails to load",
                f"{address}; {installed.source}",
                "use the page, or the wheel, for the installed torch and CUDA",
            )
            break


def _pages_of(view: StageView, by: PipInstall) -> list[str]:
    values = view.environment(by)
    options = [o.value for f in view.files_of(by) for o in f.options if o.name == "find-links"]
    wheels = [spec.text for spec in view.specs_by(by) if spec.is_url and spec.text.endswith(".whl")]
    addresses = [*by.values("find-links"), *options, values.get("PIP_FIND_LINKS", ""), *wheels]
    return [address for address in addresses if _PAGES.search(address) and "$" not in address]


def _build_named(address: str) -> _Build:
    text = re.sub(r"%2B", "+", address, flags=re.I)
    long = _TORCH.search(text)
    short = _SHORT_TORCH.search(text)
    cuda = _CUDA.search(text)
    torch = None if long is None else (int(long[1]), int(long[2]))
    if torch is None and short is not None:
        torch = (int(short[1] or short[3]), int(short[2] or short[4]))
    major, minor = (cuda[1] or cuda[3], cuda[2] or cuda[4]) if cuda is not None else ("", "")
    return _Build(
        torch,
        None if cuda is None else (int(major), int(minor)),
        address,
    )


def _contradiction(built_for: _Build, installed: _Build) -> str:
    if built_for.torch is not None and installed.torch is not None and built_for.torch != installed.torch:
        return f"torch {_shown(built_for.torch)}, and torch {_shown(installed.torch)} is installed"
    if built_for.cuda is not None and installed.cuda is not None and built_for.cuda != installed.cuda:
        # Wheels named for flash-attn fit every minor version of their CUDA.
        if built_for.source.endswith(".whl") and built_for.cuda[0] == installed.cuda[0]:
            return ""
        cuda = _shown(installed.cuda)
        return f"CUDA {_shown(built_for.cuda)}, and the torch that is installed for CUDA {cuda}"
    return ""


def _shown(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _torch_at(view: StageView, by: PipInstall) -> _Build | None:
    """The torch installed when a command runs; None if a file or a tool may have installed another."""
    before = [package for package in view.installed if package.by.instruction.first <= by.instruction.first]
    torches = [command for command in before if command.spec.name == "torch"]
    if torches:
        if view.torch is None or view.torch.installed is not torches[-1] or torches[-1].by.is_conditional:
            return None
        pin = view.torch.pin
        cuda = view.torch.cuda
        torch = None if pin is None else (pin.major, pin.minor)
        return _Build(torch, _pair(cuda), torches[-1].spec.text)
    if view.has_conditional or any(not command.by.is_pip for command in before):
        return None
    by_conda = _conda_torch(view, by)
    if by_conda is not None:
        return by_conda
    base = view.base
    if base.torch is None or "torch" in view.removed or base.family not in ("pytorch", "dlc"):
        return None
    return _Build((base.torch.major, base.torch.minor), _pair(base.cuda), f"FROM {base.reference}")


def _pair(version: Version | None) -> tuple[int, int] | None:
    return None if version is None else (version.major, version.minor)


def _conda_torch(view: StageView, by: PipInstall) -> _Build | None:
    """`conda install pytorch==1.8.0 cudatoolkit=11.1`: without versions where it names none."""
    for step in reversed(view.steps):
        if step.first > by.instruction.first:
            continue
        values = view.docker.variables(view.stage, step.first)
        for command in step.commands:
            argv = [substituted(word, values) for word in command.texts]
            if not re.search(r"(?:conda|mamba)$", argv[0]) or not {"install", "create"} & set(argv[1:3]):
                continue
            specs = dict(conda_spec(word) for word in argv)
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

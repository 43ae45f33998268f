"""Rules about packages that no conda channel has: CUDA builds and releases after a channel's end (40).

The channel `pytorch` ended with release 2.5.1, and its package pytorch-cuda with CUDA 12.4. Later releases of
`pytorch` exist on conda-forge and in Anaconda's defaults alone; cudatoolkit ended with CUDA 11.8 everywhere.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import yaml
from packaging.version import Version

from paceline.images.lint.dependency_files import RequirementFile, conda_spec
from paceline.images.lint.dockerfile import Instruction, substituted
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Finding, line_at
from paceline.images.lint.rules.container.conda import NO_ENVIRONMENT
from paceline.images.lint.rules.packages.wheels import NUMPY
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

PATTERNS: tuple[Pattern, ...] = ()
_CUDA_OF_PYTORCH = frozenset({"11.6", "11.7", "11.8", "12.1", "12.4"})
# The last releases of the channel `pytorch`.
_LAST = {"pytorch": "2.5.1", "torchvision": "0.20.1", "torchaudio": "2.5.1", "pytorch-mutex": "1.0"}
_OTHER_SOURCES = frozenset({"conda-forge", "defaults", "anaconda", "main", "pkgs/main"})
_TAKES_VALUE = frozenset({"-n", "--name", "-p", "--prefix", "-f", "--file", "-c", "--channel"})


@dataclass(frozen=True, slots=True)
class _CondaInstall:
    """Conda packages of one command or environment file."""

    step: Instruction
    specs: tuple[str, ...]  # as written: `pytorch::pytorch=2.5.1`
    channels: tuple[str, ...]
    file: RequirementFile | None = None

    @property
    def versions(self) -> dict[str, str]:
        return dict(conda_spec(spec) for spec in self.specs)


def package_of_no_channel(view: StageView) -> Iterator[Finding]:
    for install in _conda_installs(view):
        for spec in install.specs:
            why, advice = _why_missing(spec, install)
            if why:
                finding = NO_ENVIRONMENT.finding(
                    view, install.step, f"{why}, `PackagesNotFoundError`", _shown(spec, install), advice
                )
                yield _placed(finding, install, spec)
                break


def numpy_of_conda(view: StageView) -> Iterator[Finding]:
    """NumPy 2 of conda with a torch that was compiled with NumPy 1, of conda or of pip."""
    for install in _conda_installs(view):
        versions = install.versions
        numpy = _lower_bound(versions.get("numpy", ""))
        torch = _lower_bound(versions.get("pytorch", ""))
        pip = view.torch.pin if view.torch is not None else None
        old = torch if versions.get("pytorch", "").startswith("=") else pip
        if numpy is None or numpy.major < 2 or old is None or old >= Version("2.3"):
            continue
        spec = next(spec_text for spec_text in install.specs if conda_spec(spec_text)[0] == "numpy")
        finding = NUMPY.finding(
            view,
            install.step,
            "NumPy 2 would be installed: `A module that was compiled using NumPy 1.x cannot be run`",
            f"torch {old} was compiled with NumPy 1; {spec}",
            "write numpy<2",
        )
        yield _placed(finding, install, spec)


def _placed(finding: Finding, install: _CondaInstall, spec: str) -> Finding:
    if install.file is None:
        return finding
    at = install.file.text.find(spec)
    return replace(finding, path=install.file.path, line=line_at(install.file.text, max(at, 0)))


def _shown(spec: str, install: _CondaInstall) -> str:
    return f"{spec}; channels: {', '.join(install.channels) or 'defaults'}"


def _why_missing(spec: str, install: _CondaInstall) -> tuple[str, str]:
    """Problem and advice; two empty strings if some channel may have it."""
    name, version = conda_spec(spec)
    lowest = _lower_bound(version)
    if lowest is None:
        return "", ""
    number = f"{lowest.major}.{lowest.minor}"
    if name == "cudatoolkit" and lowest.major >= 12:
        return (
            f"no channel has {spec}: cudatoolkit ends with 11.8",
            "ask for cuda-toolkit, or for pytorch-cuda of the channel pytorch",
        )
    is_exact = re.match(r"^==?\s*\d", version) is not None
    if name == "pytorch-cuda" and (
        (is_exact and lowest.minor and number not in _CUDA_OF_PYTORCH) or lowest > Version("12.4")
    ):
        return (
            f"no channel has {spec}: pytorch-cuda exists for CUDA {', '.join(sorted(_CUDA_OF_PYTORCH))}",
            "install torch with pip, or pytorch-gpu from conda-forge",
        )
    if name in _LAST and lowest > Version(_LAST[name]) and _is_of_pytorch(spec, install):
        return (
            f"the channel pytorch has no {spec}: it ended with {name} {_LAST[name]}",
            "install torch with pip, or pytorch-gpu from conda-forge",
        )
    return "", ""


def _is_of_pytorch(spec: str, install: _CondaInstall) -> bool:
    """Whether the package is from the channel `pytorch`: explicitly, or because no other channel has it."""
    if "::" in spec:
        return spec.strip().startswith("pytorch::")
    if "pytorch" not in install.channels:
        return False
    return "pytorch-cuda" in install.versions or not _OTHER_SOURCES & set(install.channels)


def _lower_bound(version: str) -> Version | None:
    """The lowest release that a range of conda's allows; None without a lower bound, or with a choice."""
    if "|" in version:
        return None
    bounds = re.findall(r"(?:^|,)\s*(?:>=|==|~=|=|>)\s*(\d+(?:\.\d+)*)", version)
    return max(map(Version, bounds)) if bounds else None


def _conda_installs(view: StageView) -> Iterator[_CondaInstall]:
    configured = re.findall(
        r"config (?:\S+ )*?(?:--add|--append|--prepend) channels (\S+)", " ".join(view.words)
    )
    for step in view.stage.instructions:
        values = view.docker.variables(view.stage, step.first)
        conditional = conditional_commands(step)
        for command in step.commands:
            argv = [substituted(word, values) for word in command.texts]
            if not re.search(r"(?:conda|mamba)$", argv[0]) or id(command) in conditional:
                continue
            if not {"install", "create", "update"} & set(argv[1:3]):
                continue
            channels = [*_values(argv, "-c", "--channel"), *configured]
            packages = [
                word
                for at, word in enumerate(argv[1:], 1)
                if not word.startswith("-") and argv[at - 1] not in _TAKES_VALUE
            ]
            yield _CondaInstall(step, tuple(packages), tuple(channels))
            named = _values(argv, "-f", "--file")
            if "env" in argv[1:2] and not named:
                named = ["environment.yml"]
            for path in named:
                file = view.file_named(path)
                if file is not None:
                    yield _of_file(step, file, channels)


def _values(argv: list[str], *names: str) -> list[str]:
    behind = [argv[at + 1] for at, word in enumerate(argv[:-1]) if word in names]
    return behind + [
        word.partition("=")[2] for word in argv if word.partition("=")[0] in names and "=" in word
    ]


def _of_file(step: Instruction, file: RequirementFile, channels: list[str]) -> _CondaInstall:
    try:
        content = yaml.safe_load(file.text)
    except yaml.YAMLError:
        content = None
    table = content if isinstance(content, dict) else {}
    listed = [str(channel) for channel in table.get("channels") or ()]
    specs = [item for item in table.get("dependencies") or () if isinstance(item, str)]
    return _CondaInstall(step, tuple(specs), (*listed, *channels), file)


RULES = (package_of_no_channel, numpy_of_conda)

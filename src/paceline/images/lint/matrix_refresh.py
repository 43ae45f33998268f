"""The compatibility tables of images, made again from the package index: `image matrix --refresh`.

The index is the one that pip and uv are configured for. uv reports which Pythons have a wheel (its hint names
them all) and the dependencies of a version; pip reports the requirements of a pure wheel; the index pages of
PEP 503 name the files of each package. Nothing is installed.
"""

import json
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from paceline.core.errors import TrainingError
from paceline.core.redaction import redact
from paceline.images.lint.external_tools import uv_command, uv_environment
from paceline.images.lint.matrix import (
    IndexFile,
    Matrix,
    Stack,
    TorchRow,
    Wheels,
    releases_of,
    to_json,
    wheels_to_json,
)

_OLDEST = Version("1.13.0")
_OLDEST_TRANSFORMERS = Version("4.30")
_LIMIT_S = 180
_NO_SUCH_PYTHON = "3.99"  # no wheel is for it, so that uv names all those that there are
_TAG = re.compile(r"`cp(3)(\d+)`")


def refresh(today: date, known: Matrix, *, only_new: bool, notify: Callable[[str], None]) -> Matrix:
    """A new matrix from the configured index; with `only_new`, rows that are known already are kept."""
    kept = {row.torch: row for row in known.torch} if only_new else {}
    versions = _versions("torch", _OLDEST, ("3.10", "3.12", "3.13"))
    if not versions:
        raise TrainingError(
            "the package index has no torch", "check that `pip index versions torch` works, and try again"
        )
    rows = []
    for version in versions:
        rows.append(kept.get(version) or _torch_row(version))
        notify(f"torch {version}: CUDA {rows[-1].cuda or 'none'}, Python {' '.join(rows[-1].pythons)}")
    stacks = {stack.transformers: stack for stack in known.stacks} if only_new else {}
    refreshed = []
    for version in _newest_of_each_minor(_versions("transformers", _OLDEST_TRANSFORMERS, ("3.11",))):
        refreshed.append(stacks.get(version) or _stack(version))
        notify(f"transformers {version}: {', '.join(f'{n}{s}' for n, s in refreshed[-1].needs.items())}")
    return Matrix(dated=today, torch=tuple(rows), stacks=tuple(refreshed))


def write_matrix(matrix: Matrix, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(to_json(matrix), indent=1) + "\n", "utf-8")


def write_wheels(wheels: Wheels, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(wheels_to_json(wheels), indent=1) + "\n", "utf-8")


def refresh_wheels(
    today: date, known: Wheels, matrix: Matrix, *, torch_index: str, notify: Callable[[str], None]
) -> Wheels:
    """The table of wheels, for the packages that it names, from the files that the index lists now.

    The CUDA builds come from `torch_index`, PyTorch's own. If that does not respond, the known ones stay.
    """
    address = _index_address()
    packages = {}
    for name in known.packages:
        packages[name] = releases_of(_index_files(address, name)) or known.packages[name]
        notify(f"{name}: {len(packages[name])} releases")
    bound = {
        name: {**rows, **_bounds(name, [v for v in packages.get(name, ()) if v > max(rows)])}
        for name, rows in known.bound_to_torch.items()
    }
    triton = dict(known.triton_of_torch)
    for row in matrix.torch:
        if row.torch > max(triton):
            solved = _solved([f"torch=={row.torch}"], row.pythons[len(row.pythons) // 2])
            triton |= {row.torch: Version(solved["triton"])} if "triton" in solved else {}
    try:
        builds = _cuda_builds(_index_files(torch_index, "torch"))
    except TrainingError as error:
        notify(f"the CUDA builds of torch are not updated: {error}")
        builds = {}
    return replace(
        known,
        dated=today,
        packages=packages,
        bound_to_torch=bound,
        triton_of_torch=triton,
        cuda_builds={**known.cuda_builds, **builds},
    )


def _cuda_builds(files: Iterable[IndexFile]) -> dict[str, tuple[str, ...]]:
    """`torch-2.6.0+cu126-cp312-…` means that torch 2.6 has a build for CUDA 12.6."""
    by_minor: dict[str, set[str]] = {}
    for file in files:
        read = re.match(r"torch-(\d+\.\d+)[\d.]*(?:\+|%2B)cu(\d+)-cp3", file.name)
        if read is not None and "linux" in file.name:
            by_minor.setdefault(read[1], set()).add(read[2])
    return {minor: tuple(sorted(builds, key=int)) for minor, builds in by_minor.items()}


def _bounds(name: str, releases: Iterable[Version]) -> dict[Version, Version]:
    """The torch that each release pins in its metadata; a release without a pin is left out."""
    bounds = {}
    for version in releases:
        requirements = [
            requirement for requirement in _requirements(name, version) if requirement.name == "torch"
        ]
        pins = [
            spec.version
            for requirement in requirements
            for spec in requirement.specifier
            if spec.operator == "=="
        ]
        if len(pins) == 1 and "*" not in pins[0]:
            bounds[version] = Version(pins[0])
    return bounds


def _index_address() -> str:
    done = _run([sys.executable, "-m", "pip", "config", "list"])
    match = re.search(r"^(?::env:|global|install)\.index-url='(.*)'$", done.stdout, re.M)
    return match[1].rstrip("/") if match else "https://pypi.org/simple"


class _Page(HTMLParser):
    """The links of an index page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[IndexFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        path = (attributes.get("href") or "").partition("#")[0]
        if tag == "a" and path:
            name = urllib.parse.unquote(path.rpartition("/")[2])
            self.files.append(IndexFile(name, attributes.get("data-requires-python") or ""))


def _index_files(address: str, name: str) -> list[IndexFile]:
    url = f"{address}/{name}/"
    try:
        with urllib.request.urlopen(url, timeout=_LIMIT_S) as response:
            text = response.read().decode("utf-8")
    except OSError as error:
        raise TrainingError(
            f"{redact(url)} does not respond: {error}", "check the index that pip uses"
        ) from error
    page = _Page()
    page.feed(text)
    return page.files


def _versions(package: str, oldest: Version, pythons: Iterable[str]) -> list[Version]:
    versions: set[Version] = set()
    for python in pythons:
        command = [sys.executable, "-m", "pip", "index", "versions", package, "--python-version", python]
        match = _run([*command, "--only-binary", ":all:"]).stdout
        listed = re.search(r"Available versions: (.*)", match)
        for text in listed[1].split(", ") if listed else []:
            try:
                version = Version(text)
            except InvalidVersion:
                continue
            if version.local is None and not version.is_prerelease and version >= oldest:
                versions.add(version)
    return sorted(versions)


def _newest_of_each_minor(versions: Iterable[Version]) -> list[Version]:
    return list({(version.major, version.minor): version for version in versions}.values())


def _torch_row(version: Version) -> TorchRow:
    refused = _compile([f"torch=={version}"], _NO_SUCH_PYTHON, "--no-deps").stderr
    pythons = sorted({(int(a), int(b)) for a, b in _TAG.findall(refused.partition("ABI tags:")[2])})
    if not pythons:
        raise TrainingError(f"uv reports no Python versions for torch {version}", refused.strip()[-300:])
    # One in the middle: the related wheels for the newest Python often follow a release later.
    major, minor = pythons[len(pythons) // 2]
    python = f"{major}.{minor}"
    itself = f"torch=={version}"
    vision = "torchvision>=0.14"
    audio = "torchaudio<=0.13.99" if version.major < 2 else f"torchaudio<={version.major}.{version.minor}.99"
    # A sister may be late: then without her.
    solved = next(filter(None, (_solved([itself, *s], python) for s in ([vision, audio], [vision], []))), {})
    return TorchRow(
        torch=version,
        pythons=tuple(f"{a}.{b}" for a, b in pythons),
        cuda=_part(solved, "nvidia-cuda-runtime"),
        cudnn=_part(solved, "nvidia-cudnn"),
        nccl=_part(solved, "nvidia-nccl"),
        torchvision=_part(solved, "torchvision"),
        torchaudio=_part(solved, "torchaudio"),
    )


def _part(solved: dict[str, str], name: str) -> Version | None:
    """Before CUDA 13 the packages carry its major in their names: nvidia-nccl-cu12."""
    matching = [v for n, v in solved.items() if n == name or re.fullmatch(rf"{name}-cu\d+", n)]
    return Version(matching[0]) if matching else None


def _solved(requirements: list[str], python: str) -> dict[str, str]:
    done = _compile(requirements, python)
    if done.returncode != 0:
        return {}
    pairs = [line.partition("==") for line in done.stdout.splitlines() if "==" in line]
    return {name.strip(): version.split(";")[0].strip() for name, _, version in pairs}


def _compile(requirements: list[str], python: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        *uv_command(),
        "pip",
        "compile",
        "-",
        "--python-version",
        python,
        "--no-header",
        "--no-annotate",
    ]
    platform = ["--python-platform", "x86_64-manylinux_2_28", "--only-binary", ":all:"]
    return _run([*command, *platform, *flags], "\n".join(requirements))


def _stack(version: Version) -> Stack:
    requirements = {
        requirement.name: requirement
        for requirement in _requirements("transformers", version)
        if requirement.marker is None
    }
    names = ("tokenizers", "huggingface-hub")
    return Stack(
        transformers=version, needs={n: str(requirements[n].specifier) for n in names if n in requirements}
    )


def _requirements(name: str, version: Version) -> list[Requirement]:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
    ]
    done = _run([*command, "--report", "-", f"{name}=={version}"])
    if done.returncode != 0:
        raise TrainingError(f"pip cannot read {name} {version}", done.stderr.strip()[-300:])
    return [
        Requirement(line)
        for line in json.loads(done.stdout)["install"][0]["metadata"].get("requires_dist", ())
    ]


def _run(command: list[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env=uv_environment(),
        cwd=tempfile.gettempdir(),  # constraints of a project in the current folder do not apply
    )

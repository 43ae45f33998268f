"""What does the log of a failed build, or of a failed import, say is wrong? One row for each signature.

The log knows what happened; the project says where it can be mended. A signature whose cause cannot be
found in the project gives a finding without edits, so that the reason is told at least.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.images import log_mending
from paceline.images.dockerfile import Instruction
from paceline.images.log_mending import Mending, Seen
from paceline.images.project import Edit, Finding, Level
from paceline.images.requirements import Asked
from paceline.images.rules import (
    bases,
    build_steps,
    cuda,
    extensions,
    hygiene,
    libraries,
    releases,
    stack,
    wheels,
)
from paceline.images.rules.pattern import Pattern
from paceline.images.view import Place
from paceline.redaction import redact


@dataclass(frozen=True, slots=True)
class Signature:
    pattern: Pattern
    regex: re.Pattern[str]
    cause: str  # what it means, in one sentence; `{0}`, `{1}`: what the log names
    mended: Callable[[Seen], Mending | None]


def findings_of(log: str, there: list[Place]) -> tuple[Finding, ...]:
    """One finding for each signature that the log shows, the earliest line of the table first."""
    found = []
    for one in SIGNATURES:
        match = one.regex.search(log)
        if match is not None:
            found.append(_finding(one, match, log, there))
    return tuple(found)


def _finding(one: Signature, match: re.Match[str], log: str, there: list[Place]) -> Finding:
    start, end = log.rfind("\n", 0, match.start()) + 1, log.find("\n", match.end())
    line = log[start : len(log) if end < 0 else end].strip().splitlines()[0][:300]
    why = one.cause.format(*match.groups(default=""))
    at: Asked | Instruction = there[-1].stage.origin
    edits: tuple[Edit, ...] = ()
    place = there[-1]
    for place in map(_as_debian, reversed(there)):
        answer = one.mended(Seen(place, match, log))
        if answer is not None:
            at, edits = answer
            break
    found = one.pattern.found(place, at, why, f"the log says: {line}", one.pattern.fix, edits)
    level = Level.PROBLEM if edits or one.pattern.level is Level.PROBLEM else one.pattern.level
    return replace(found, log_line=redact(line), level=level)


def _as_debian(place: Place) -> Place:
    """A base that the list does not know most often is one of Debian's family."""
    if place.base.system or place.base.family:
        return place
    return replace(place, base=replace(place.base, system="debian", is_slim=True))


def _row(pattern: Pattern, regex: str, cause: str, mended: Callable[[Seen], Mending | None]) -> Signature:
    return Signature(pattern, re.compile(regex, re.M), cause, mended)


SIGNATURES: tuple[Signature, ...] = (
    _row(
        build_steps.MANAGED,
        r"error: externally-managed-environment",
        "the Python of the system refuses pip (PEP 668)",
        log_mending.venv,
    ),
    _row(
        build_steps.TOOLS,
        r"Cannot find command 'git'|git: (?:command )?not found|No such file or directory: 'git'",
        "a package is cloned by git, and there is none",
        log_mending.git,
    ),
    _row(
        extensions.ISOLATED,
        r"No module named '?torch'?(?!\w|\.)",
        "torch is imported while a package is built, and pip builds it where none is",
        log_mending.isolated,
    ),
    _row(
        extensions.NO_COMPILER,
        r"nvcc was not found|nvcc: not found|CUDA_HOME environment variable is not set|No such file.*/nvcc'",
        "a package is compiled with nvcc, and there is none",
        log_mending.devel,
    ),
    _row(
        cuda.MAJOR,
        r"detected CUDA version \(([\d.]+)\) mismatches the version that was used to compile\s+"
        r"PyTorch \(([\d.]+)\)",
        "the base has CUDA {0}, and torch was built with CUDA {1}",
        log_mending.as_rule(cuda.cuda_major),
    ),
    _row(
        wheels.NO_INDEX,
        r"(?:No matching distribution found for|satisfies the requirement) "
        r"([A-Za-z_-]+)==[\d.]+\+(cu\d+|cpu|rocm[\d.]+)",
        "{0} for {1} is not on PyPI",
        log_mending.index,
    ),
    _row(
        wheels.TRIO,
        r"(torchvision|torchaudio)(?:==| )[\d.]+(?:\+\w+)? depends on torch==",
        "{0} was made for another torch than the one that is pinned",
        log_mending.sister,
    ),
    _row(
        stack.SKEW,
        r"\b((?!torch)[A-Za-z0-9._-]+?)(?:==| )(\d[\w.+]*) depends on (tokenizers|huggingface[-_]hub|"
        r"transformers|accelerate|peft|safetensors|fsspec|datasets)\s?"
        r"((?:[<>=!~]=?\s*[\w.*]+(?:\s*,\s*|\s+and\s+(?=[<>=!~]))?)+)",
        "{0} {1} refuses the {2} that is pinned",
        log_mending.neighbour,
    ),
    _row(
        releases.NO_WHEEL,
        r"Could not find a version that satisfies the requirement "
        r"([A-Za-z0-9._-]+)==(?![\d.]+\+)[^\n]*\(from versions: ",
        "the pinned {0} has no wheel for this Python",
        log_mending.other_python,
    ),
    _row(
        wheels.NUMPY,
        r"compiled using NumPy 1\.x|numpy\.dtype size changed|_ARRAY_API not found",
        "something compiled with NumPy 1 meets NumPy 2",
        log_mending.old_numpy,
    ),
    _row(
        build_steps.TOOLS,
        r"Failed (?:building wheel|to build) (?:for )?'?([A-Za-z0-9._-]+)|"
        r"unable to execute '?(?:x86_64-linux-gnu-)?g?cc|"
        r"error: command '(?:\S*gcc|cc|g\+\+|c\+\+)' failed: No such file|gcc: (?:command )?not found",
        "a package is compiled when it is installed, and there is no compiler",
        log_mending.compiler,
    ),
    _row(
        libraries.MISSING,
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "{0} is missing in the image",
        log_mending.library,
    ),
    _row(
        bases.ENDED,
        r"manifest unknown|manifest for \S+ not found|: not found: manifest",
        "the base image does not exist, or no longer",
        log_mending.other_tag,
    ),
    _row(
        bases.PLATFORM,
        r"exec format error|Exec format error",
        "the image is for another processor",
        log_mending.as_rule(bases.wrong_platform),
    ),
    _row(
        bases.LIBC,
        r"version `GLIBC_2\.\d+' not found|Error loading shared library ld-linux",
        "the base's C library is too old for the wheels",
        log_mending.as_rule(bases.old_libc),
    ),
    _row(
        cuda.ARCH,
        r"no kernel image is available for execution|is not compatible with the current PyTorch installation",
        "this torch has no code for the GPU",
        log_mending.no_edit,
    ),
    _row(
        cuda.DRIVER,
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "the host's driver is too old for this CUDA",
        log_mending.no_edit,
    ),
    _row(
        hygiene.SHM,
        r"insufficient shared memory|Bus error.*shm|unable to (?:open|write to) (?:shared memory|file) "
        r".*/(?:torch_|dev/shm)",
        "/dev/shm is too small for the data loaders",
        log_mending.no_edit,
    ),
)
# Failures of the surroundings: no change of the project mends them.
OUTSIDE: tuple[tuple[str, str], ...] = (
    (
        r"no such host|Temporary failure in name resolution|Name or service not known",
        "the registry or the index cannot be reached from here: network, proxy or DNS",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate signed by unknown authority",
        "a certificate is not trusted in the build: give your authority's to it",
    ),
    (
        r"toomanyrequests|429 Too Many Requests",
        "the registry or the mirror limits you: wait, or use a mirror of yours",
    ),
    (r"No space left on device", "the disk of the builder is full"),
    (
        r"(?i)cache export is not supported for the docker driver",
        "this builder cannot keep layers (--cache): docker buildx create --use --driver docker-container",
    ),
    (
        r"unauthorized: authentication required|no basic auth credentials",
        "the registry wants credentials: log in",
    ),
)


def outside_cause(log: str) -> str | None:
    """Why a build failed for reasons that no Dockerfile can mend; None: it does not look so."""
    return next((cause for regex, cause in OUTSIDE if re.search(regex, log)), None)

"""What does the log of a failed build, or of a failed import, say is wrong? One row for each signature.

The log knows what happened; the project says where it can be mended. A signature whose cause cannot be
found in the project gives a finding without edits, so that the reason is told at least.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from paceline.core.redaction import redact
from paceline.images.lint.bases import catalog
from paceline.images.lint.dependency_files import Asked
from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.edits import (
    another_base,
    beside,
    index_added,
    nearest_cuda_tag,
    respelled,
    system_packages_added,
)
from paceline.images.lint.project import Edit, Finding, Level
from paceline.images.lint.rules import (
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
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, Place

# Each answers with the place to point at and the edits, or None where this stage is not the one.

LogFix = tuple[Asked | Instruction, tuple[Edit, ...]]


@dataclass(frozen=True, slots=True)
class LogMatch:
    """A signature found in a log, and the stage that is looked at."""

    place: Place
    match: re.Match[str]
    log: str


def no_edit(_seen: LogMatch) -> LogFix | None:
    return None


def fix_venv(seen: LogMatch) -> LogFix | None:
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


def fix_isolated(seen: LogMatch) -> LogFix | None:
    place = seen.place
    named = _collected(seen.log, seen.match.start())
    for one in place.own:
        if one.asked.name == named or (not named and one.asked.name in extensions.IMPORT_TORCH):
            return one.asked, extensions.apart(place, one)
    return None


def fix_git(seen: LogMatch) -> LogFix | None:
    place = seen.place
    one = next((one for one in place.own if one.asked.is_git), None)
    return _with_packages(place, one, ["git"])


def fix_compiler(seen: LogMatch) -> LogFix | None:
    place = seen.place
    names = [text for text in seen.match.groups() if text]
    named = re.sub(r"[-_.]+", "-", names[0]).lower() if names else _collected(seen.log, seen.match.start())
    one = next((one for one in place.own if one.asked.name == named), None)
    if one is None and place.own:
        one = place.own[-1]  # something that it brings
    known = list(build_steps.ARCHIVES.get(named, ()))
    more = [] if place.base.family == "python" else ["python3-dev"]
    return _with_packages(place, one, known + more if known else ["gcc", "g++", *more])


def _with_packages(place: Place, one: Installed | None, names: list[str]) -> LogFix | None:
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


def fix_library(seen: LogMatch) -> LogFix | None:
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


def index(seen: LogMatch) -> LogFix | None:
    place = seen.place
    for one in place.own:
        pin = one.asked.pin
        if pin is not None and pin.local == seen.match[2] and one.asked.name == seen.match[1].lower():
            address = f"{catalog().index}/{seen.match[2]}"
            named = any(seen.match[2] in index for index in place.indexes(one))
            return one.asked, () if named else index_added(place, one, address)
    return None


def sister(seen: LogMatch) -> LogFix | None:
    place = seen.place
    sister, torch = place.find(seen.match[1].lower()), place.torch
    made = None if torch is None or torch.row is None else getattr(torch.row, seen.match[1].lower(), None)
    if sister is None:
        return None
    new = sister.asked.with_range(f"=={made}")
    return sister.asked, () if made is None else respelled(place, sister.asked, new)


def fix_dependency(seen: LogMatch) -> LogFix | None:
    """`transformers 4.30.2 depends on tokenizers<0.14,>=0.11`: the pinned neighbour takes that range."""
    place = seen.place
    one = place.find(seen.match[3].lower())
    if one is None or one.asked.pin is None or one.asked.name in ("torch", "numpy"):
        return None if one is None else (one.asked, ())
    said = re.sub(r"\s*\band\b\s*", ",", seen.match[4]).strip("() \r")
    return one.asked, respelled(place, one.asked, one.asked.with_range(stack.lower_bound_first(said)))


def fix_numpy(seen: LogMatch) -> LogFix | None:
    place = seen.place
    numpy, torch = place.find("numpy"), place.find("torch")
    if numpy is not None:
        edits = respelled(place, numpy.asked, wheels.below_2(numpy.asked)) if numpy.asked.pin is None else ()
        return numpy.asked, edits
    one = torch or (place.own[-1] if place.own else None)
    return None if one is None else (one.asked, beside(place, one, "numpy<2"))


def fix_devel(seen: LogMatch) -> LogFix | None:
    place = seen.place
    base = place.base
    if base.family == "pytorch" and base.flavour == "runtime":
        return place.stage.origin, another_base(place, base.reference.replace("-runtime", "-devel"))
    if base.family != "cuda" or base.cuda is None or base.flavour == "devel":
        return None
    tag = nearest_cuda_tag(base, base.cuda.major, base.cuda, flavour="devel")
    return place.stage.origin, another_base(place, f"{base.name}:{tag}") if tag else ()


def fix_tag(seen: LogMatch) -> LogFix | None:
    place = seen.place
    base = place.base
    if base.family != "cuda" or base.tag in catalog().cuda_tags or (base.tag or "?") not in seen.log:
        return None
    known = next(bases.ended(place), None)
    if known is not None and known.edits:
        return place.stage.origin, known.edits
    tag = nearest_cuda_tag(base, base.cuda.major if base.cuda is not None else 12, base.cuda)
    return place.stage.origin, another_base(place, f"{base.name}:{tag}") if tag else ()


def fix_python(seen: LogMatch) -> LogFix | None:
    place = seen.place
    one = place.find(seen.match[1].lower())
    if one is None:
        return None
    if one.asked.name == "torch":
        found = next(iter(releases.python_without_wheel(place)), None)
        return one.asked, () if found is None else found.edits
    return one.asked, ()


def fix_like_rule(rule: Callable[[Place], Iterator[Finding]]) -> Callable[[LogMatch], LogFix | None]:
    """What the rule for the same pattern would change."""

    def mended(seen: LogMatch) -> LogFix | None:
        found = next(rule(seen.place), None)
        return None if found is None else (seen.place.stage.origin, found.edits)

    return mended


@dataclass(frozen=True, slots=True)
class Signature:
    pattern: Pattern
    regex: re.Pattern[str]
    cause: str  # what it means, in one sentence; `{0}`, `{1}`: what the log names
    mended: Callable[[LogMatch], LogFix | None]


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
        answer = one.mended(LogMatch(place, match, log))
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


def _row(pattern: Pattern, regex: str, cause: str, mended: Callable[[LogMatch], LogFix | None]) -> Signature:
    return Signature(pattern, re.compile(regex, re.M), cause, mended)


SIGNATURES: tuple[Signature, ...] = (
    _row(
        build_steps.MANAGED,
        r"error: externally-managed-environment",
        "the Python of the system refuses pip (PEP 668)",
        fix_venv,
    ),
    _row(
        build_steps.TOOLS,
        r"Cannot find command 'git'|git: (?:command )?not found|No such file or directory: 'git'",
        "a package is cloned by git, and there is none",
        fix_git,
    ),
    _row(
        extensions.ISOLATED,
        r"No module named '?torch'?(?!\w|\.)",
        "torch is imported while a package is built, and pip builds it where none is",
        fix_isolated,
    ),
    _row(
        extensions.NO_COMPILER,
        r"nvcc was not found|nvcc: not found|CUDA_HOME environment variable is not set|No such file.*/nvcc'",
        "a package is compiled with nvcc, and there is none",
        fix_devel,
    ),
    _row(
        cuda.MAJOR,
        r"detected CUDA version \(([\d.]+)\) mismatches the version that was used to compile\s+"
        r"PyTorch \(([\d.]+)\)",
        "the base has CUDA {0}, and torch was built with CUDA {1}",
        fix_like_rule(cuda.cuda_major),
    ),
    _row(
        wheels.NO_INDEX,
        r"(?:No matching distribution found for|satisfies the requirement) "
        r"([A-Za-z_-]+)==[\d.]+\+(cu\d+|cpu|rocm[\d.]+)",
        "{0} for {1} is not on PyPI",
        index,
    ),
    _row(
        wheels.TRIO,
        r"(torchvision|torchaudio)(?:==| )[\d.]+(?:\+\w+)? depends on torch==",
        "{0} was made for another torch than the one that is pinned",
        sister,
    ),
    _row(
        stack.SKEW,
        r"\b((?!torch)[A-Za-z0-9._-]+?)(?:==| )(\d[\w.+]*) depends on (tokenizers|huggingface[-_]hub|"
        r"transformers|accelerate|peft|safetensors|fsspec|datasets)\s?"
        r"((?:[<>=!~]=?\s*[\w.*]+(?:\s*,\s*|\s+and\s+(?=[<>=!~]))?)+)",
        "{0} {1} refuses the {2} that is pinned",
        fix_dependency,
    ),
    _row(
        releases.NO_WHEEL,
        r"Could not find a version that satisfies the requirement "
        r"([A-Za-z0-9._-]+)==(?![\d.]+\+)[^\n]*\(from versions: ",
        "the pinned {0} has no wheel for this Python",
        fix_python,
    ),
    _row(
        wheels.NUMPY,
        r"compiled using NumPy 1\.x|numpy\.dtype size changed|_ARRAY_API not found",
        "something compiled with NumPy 1 meets NumPy 2",
        fix_numpy,
    ),
    _row(
        build_steps.TOOLS,
        r"Failed (?:building wheel|to build) (?:for )?'?([A-Za-z0-9._-]+)|"
        r"unable to execute '?(?:x86_64-linux-gnu-)?g?cc|"
        r"error: command '(?:\S*gcc|cc|g\+\+|c\+\+)' failed: No such file|gcc: (?:command )?not found",
        "a package is compiled when it is installed, and there is no compiler",
        fix_compiler,
    ),
    _row(
        libraries.MISSING,
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "{0} is missing in the image",
        fix_library,
    ),
    _row(
        bases.ENDED,
        r"manifest unknown|manifest for \S+ not found|: not found: manifest",
        "the base image does not exist, or no longer",
        fix_tag,
    ),
    _row(
        bases.PLATFORM,
        r"exec format error|Exec format error",
        "the image is for another processor",
        fix_like_rule(bases.wrong_platform),
    ),
    _row(
        bases.LIBC,
        r"version `GLIBC_2\.\d+' not found|Error loading shared library ld-linux",
        "the base's C library is too old for the wheels",
        fix_like_rule(bases.old_libc),
    ),
    _row(
        cuda.ARCH,
        r"no kernel image is available for execution|is not compatible with the current PyTorch installation",
        "this torch has no code for the GPU",
        no_edit,
    ),
    _row(
        cuda.DRIVER,
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "the host's driver is too old for this CUDA",
        no_edit,
    ),
    _row(
        hygiene.SHM,
        r"insufficient shared memory|Bus error.*shm|unable to (?:open|write to) (?:shared memory|file) "
        r".*/(?:torch_|dev/shm)",
        "/dev/shm is too small for the data loaders",
        no_edit,
    ),
)
# Failures of the surroundings: no change of the project mends them.
EXTERNAL_CAUSES: tuple[tuple[str, str], ...] = (
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


def external_cause(log: str) -> str | None:
    """Why a build failed for reasons that no Dockerfile can mend; None: it does not look so."""
    return next((cause for regex, cause in EXTERNAL_CAUSES if re.search(regex, log)), None)

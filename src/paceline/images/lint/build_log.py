"""Findings from the log of a failed build or import: a table of signatures, and a fix for each.

The log shows what failed; the project shows where it can be fixed. A signature whose cause is not found in
the project gives a finding without edits, so that the reason is reported at least.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from paceline.core.redaction import redact
from paceline.images.lint.bases import catalog
from paceline.images.lint.dependency_files import PackageSpec
from paceline.images.lint.dockerfile import Instruction
from paceline.images.lint.edits import (
    another_base,
    index_added,
    nearest_cuda_tag,
    requirement_added,
    respelled,
    system_packages_added,
)
from paceline.images.lint.project import Edit, Finding, Level
from paceline.images.lint.rules import bases, build_steps, cuda, hygiene
from paceline.images.lint.rules.packages import (
    build_isolation,
    libraries,
    missing_wheels,
    nvcc,
    stack,
    wheels,
)
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

# Each answers with the place to point at and the edits, or None where this stage is not the one.

LogFix = tuple[PackageSpec | Instruction, tuple[Edit, ...]]


@dataclass(frozen=True, slots=True)
class LogMatch:
    """A signature found in a log, and the stage that is inspected."""

    view: StageView
    match: re.Match[str]
    log: str


def no_edit(_seen: LogMatch) -> LogFix | None:
    return None


def fix_venv(seen: LogMatch) -> LogFix | None:
    view = seen.view
    own_steps = {id(step) for step in view.stage.instructions}
    for by in view.pip:
        if id(by.instruction) in own_steps and not by.is_uv:
            return by.instruction, build_steps.venv_edits(view, by)
    return None


def _collected(log: str, end: int) -> str:
    """The package that pip was busy with when the line was written."""
    names = re.findall(r"Collecting ([A-Za-z0-9._-]+)", log[:end])
    return re.sub(r"[-_.]+", "-", names[-1]).lower() if names else ""


def fix_isolated(seen: LogMatch) -> LogFix | None:
    view = seen.view
    named = _collected(seen.log, seen.match.start())
    for package in view.own:
        if package.spec.name == named or (not named and package.spec.name in nvcc.IMPORT_TORCH):
            return package.spec, build_isolation.separate_step(view, package)
    return None


def fix_git(seen: LogMatch) -> LogFix | None:
    view = seen.view
    package = next((package for package in view.own if package.spec.is_git), None)
    return _with_packages(view, package, ["git"])


def fix_compiler(seen: LogMatch) -> LogFix | None:
    view = seen.view
    names = [text for text in seen.match.groups() if text]
    named = re.sub(r"[-_.]+", "-", names[0]).lower() if names else _collected(seen.log, seen.match.start())
    package = next((package for package in view.own if package.spec.name == named), None)
    if package is None and view.own:
        package = view.own[-1]  # something that it brings
    known = list(build_steps.ARCHIVES.get(named, ()))
    more = [] if view.base.family == "python" else ["python3-dev"]
    return _with_packages(view, package, known + more if known else ["gcc", "g++", *more])


def _with_packages(view: StageView, package: Installed | None, names: list[str]) -> LogFix | None:
    if package is None:
        return None
    return package.spec, system_packages_added(view, package.by.instruction, names)


# Package of Debian 12 that provides a library; the loader's own libraries are not for apt to add.
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
    view = seen.view
    if seen.match[1] == "libGL.so.1":
        for other_package in view.own:
            new = libraries.headless(other_package.spec)
            if new is not None:
                return other_package.spec, respelled(view, other_package.spec, new)
    package = _PACKAGES.get(seen.match[1])
    if package is None or not view.pip:
        return None
    first = view.pip[0].instruction
    return first, system_packages_added(view, first, [package])


def index(seen: LogMatch) -> LogFix | None:
    view = seen.view
    for package in view.own:
        pin = package.spec.pin
        if pin is not None and pin.local == seen.match[2] and package.spec.name == seen.match[1].lower():
            address = f"{catalog().index}/{seen.match[2]}"
            named = any(seen.match[2] in index for index in view.indexes(package))
            return package.spec, () if named else index_added(view, package, address)
    return None


def sister(seen: LogMatch) -> LogFix | None:
    view = seen.view
    sister = view.find(seen.match[1].lower())
    torch = view.torch
    version = None if torch is None or torch.row is None else getattr(torch.row, seen.match[1].lower(), None)
    if sister is None:
        return None
    new = sister.spec.with_range(f"=={version}")
    return sister.spec, () if version is None else respelled(view, sister.spec, new)


def fix_dependency(seen: LogMatch) -> LogFix | None:
    """`transformers 4.30.2 depends on tokenizers<0.14,>=0.11`: the pinned neighbour takes that range."""
    view = seen.view
    package = view.find(seen.match[3].lower())
    if package is None or package.spec.pin is None or package.spec.name in ("torch", "numpy"):
        return None if package is None else (package.spec, ())
    spec_range = re.sub(r"\s*\band\b\s*", ",", seen.match[4]).strip("() \r")
    return package.spec, respelled(
        view, package.spec, package.spec.with_range(stack.lower_bound_first(spec_range))
    )


def fix_numpy(seen: LogMatch) -> LogFix | None:
    view = seen.view
    numpy = view.find("numpy")
    torch = view.find("torch")
    if numpy is not None:
        edits = respelled(view, numpy.spec, wheels.below_2(numpy.spec)) if numpy.spec.pin is None else ()
        return numpy.spec, edits
    package = torch or (view.own[-1] if view.own else None)
    return None if package is None else (package.spec, requirement_added(view, package, "numpy<2"))


def fix_devel(seen: LogMatch) -> LogFix | None:
    view = seen.view
    base = view.base
    if base.family == "pytorch" and base.flavour == "runtime":
        return view.stage.origin, another_base(view, base.reference.replace("-runtime", "-devel"))
    if base.family != "cuda" or base.cuda is None or base.flavour == "devel":
        return None
    tag = nearest_cuda_tag(base, base.cuda.major, base.cuda, flavour="devel")
    return view.stage.origin, another_base(view, f"{base.name}:{tag}") if tag else ()


def fix_tag(seen: LogMatch) -> LogFix | None:
    view = seen.view
    base = view.base
    if base.family != "cuda" or base.tag in catalog().cuda_tags or (base.tag or "?") not in seen.log:
        return None
    known = next(bases.ended(view), None)
    if known is not None and known.edits:
        return view.stage.origin, known.edits
    tag = nearest_cuda_tag(base, base.cuda.major if base.cuda is not None else 12, base.cuda)
    return view.stage.origin, another_base(view, f"{base.name}:{tag}") if tag else ()


def fix_python(seen: LogMatch) -> LogFix | None:
    view = seen.view
    package = view.find(seen.match[1].lower())
    if package is None:
        return None
    if package.spec.name == "torch":
        finding = next(iter(missing_wheels.python_without_wheel(view)), None)
        return package.spec, () if finding is None else finding.edits
    return package.spec, ()


def fix_like_rule(rule: Callable[[StageView], Iterator[Finding]]) -> Callable[[LogMatch], LogFix | None]:
    """The fix of the rule for the same pattern."""

    def fix(seen: LogMatch) -> LogFix | None:
        finding = next(rule(seen.view), None)
        return None if finding is None else (seen.view.stage.origin, finding.edits)

    return fix


@dataclass(frozen=True, slots=True)
class Signature:
    pattern: Pattern
    regex: re.Pattern[str]
    cause: str  # explanation in one sentence; `{0}`, `{1}`: groups of the log match
    fix: Callable[[LogMatch], LogFix | None]


def findings_of(log: str, views: list[StageView]) -> tuple[Finding, ...]:
    """One finding for each signature that the log shows, the earliest line of the table first."""
    findings = []
    for signature in SIGNATURES:
        match = signature.regex.search(log)
        if match is not None:
            findings.append(_finding(signature, match, log, views))
    return tuple(findings)


def _finding(signature: Signature, match: re.Match[str], log: str, views: list[StageView]) -> Finding:
    start = log.rfind("\n", 0, match.start()) + 1
    end = log.find("\n", match.end())
    line = log[start : len(log) if end < 0 else end].strip().splitlines()[0][:300]
    why = signature.cause.format(*match.groups(default=""))
    at: PackageSpec | Instruction = views[-1].stage.origin
    edits: tuple[Edit, ...] = ()
    view = views[-1]
    for view in map(_as_debian, reversed(views)):
        answer = signature.fix(LogMatch(view, match, log))
        if answer is not None:
            at, edits = answer
            break
    finding = signature.pattern.finding(view, at, why, f"build log: {line}", signature.pattern.fix, edits)
    level = Level.PROBLEM if edits or signature.pattern.level is Level.PROBLEM else signature.pattern.level
    return replace(finding, log_line=redact(line), level=level)


def _as_debian(view: StageView) -> StageView:
    """A base that the list does not know most often is one of Debian's family."""
    if view.base.system or view.base.family:
        return view
    return replace(view, base=replace(view.base, system="debian", is_slim=True))


def _row(pattern: Pattern, regex: str, cause: str, fix: Callable[[LogMatch], LogFix | None]) -> Signature:
    return Signature(pattern, re.compile(regex, re.M), cause, fix)


SIGNATURES: tuple[Signature, ...] = (
    _row(
        build_steps.MANAGED,
        r"error: externally-managed-environment",
        "the system's Python rejects pip (PEP 668)",
        fix_venv,
    ),
    _row(
        build_steps.TOOLS,
        r"Cannot find command 'git'|git: (?:command )?not found|No such file or directory: 'git'",
        "a package is cloned with git, which is not installed",
        fix_git,
    ),
    _row(
        build_isolation.ISOLATED,
        r"No module named '?torch'?(?!\w|\.)",
        "a package imports torch during its build, but pip's build environment has none",
        fix_isolated,
    ),
    _row(
        nvcc.NO_COMPILER,
        r"nvcc was not found|nvcc: not found|CUDA_HOME environment variable is not set|No such file.*/nvcc'",
        "a package is compiled with nvcc, which is not installed",
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
        "{0} {1} conflicts with the pinned {2}",
        fix_dependency,
    ),
    _row(
        missing_wheels.NO_WHEEL,
        r"Could not find a version that satisfies the requirement "
        r"([A-Za-z0-9._-]+)==(?![\d.]+\+)[^\n]*\(from versions: ",
        "the pinned {0} has no wheel for this Python",
        fix_python,
    ),
    _row(
        wheels.NUMPY,
        r"compiled using NumPy 1\.x|numpy\.dtype size changed|_ARRAY_API not found",
        "a package compiled with NumPy 1 runs with NumPy 2",
        fix_numpy,
    ),
    _row(
        build_steps.TOOLS,
        r"Failed (?:building wheel|to build) (?:for )?'?([A-Za-z0-9._-]+)|"
        r"unable to execute '?(?:x86_64-linux-gnu-)?g?cc|"
        r"error: command '(?:\S*gcc|cc|g\+\+|c\+\+)' failed: No such file|gcc: (?:command )?not found",
        "a package is compiled during installation, and there is no compiler",
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
        "the base image does not exist, or was deleted",
        fix_tag,
    ),
    _row(
        bases.PLATFORM,
        r"exec format error|Exec format error",
        "the image is built for another CPU architecture",
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
# Failures of the environment: no change of the project fixes them.
EXTERNAL_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"no such host|Temporary failure in name resolution|Name or service not known",
        "the registry or the index is unreachable: check network, proxy and DNS",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate signed by unknown authority",
        "a certificate is not trusted in the build: add the certificate of your authority",
    ),
    (
        r"toomanyrequests|429 Too Many Requests",
        "the registry or the mirror limits requests: wait, or use another mirror",
    ),
    (r"No space left on device", "the disk of the builder is full"),
    (
        r"(?i)cache export is not supported for the docker driver",
        "this builder does not support layer caches (--cache): docker buildx create --use --driver "
        "docker-container",
    ),
    (
        r"unauthorized: authentication required|no basic auth credentials",
        "the registry requires credentials: log in",
    ),
)


def external_cause(log: str) -> str | None:
    """Why a build failed for reasons that no Dockerfile can fix; None: no such reason is known."""
    return next((cause for regex, cause in EXTERNAL_CAUSES if re.search(regex, log)), None)

"""Rules about what pip needs before it can install: an environment, git, a compiler (10, 12)."""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.edits import above, is_root_at, system_packages_added
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.matrix import MINORS, wheels
from paceline.images.lint.project import Change, Edit, Finding, edits_of, insertion
from paceline.images.lint.rules.packages.build_isolation import has_newest_pip
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, StageView

MANAGED = Pattern(
    number=10,
    id="externally-managed",
    what="The system's Python rejects pip (PEP 668: Debian 12, Ubuntu 24.04 and later).",
    fix="a virtual environment in /opt/venv, first on PATH; never `--break-system-packages`",
)
TOOLS = Pattern(
    number=12,
    id="no-build-tools",
    what="A package comes from git or must be compiled, and the base has neither git nor a compiler.",
    fix="the missing system packages, installed before pip",
)
OLD_SETUP = Pattern(
    number=12,
    id="setup-too-old",
    what="The build of an old release fails with current setuptools or pip: pkg_resources, metadata.",
    fix="only reported: a newer release, or a constraint for the build",
)
PATTERNS = (MANAGED, TOOLS, OLD_SETUP)
# Their setup.py imports pkg_resources, which setuptools 82 removed in February 2026: (first, last) release.
_PKG_RESOURCES = {"openai-whisper": (Version("20230306"), Version("20240930"))}
# Their metadata has specifiers such as `>=1.9.*`, which pip refuses from 24.1 on: (first, last) release.
_BAD_METADATA = {
    "pytorch-lightning": (Version("1.5.0"), Version("1.8.6")),
    "omegaconf": (Version("2.0.0"), Version("2.0.6")),
    "fairseq": (Version("0.12.0"), Version("0.12.2")),  # it needs such an omegaconf
}
_CLIP = re.compile(r"github\.com/openai/CLIP(?:\.git@|/archive/)[0-9a-f]{7}", re.I)
_CONSTRAINED = frozenset(
    {"PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_BUILD_CONSTRAINT", "PIP_NO_BUILD_ISOLATION"}
)
_MANAGED = re.compile(r"^(debian1[2-9]|ubuntu2[4-9]\.\d\d|ubuntu23\.04|ubuntu23\.10)$")
# Packages with source archives only on PyPI, and the requirements for compiling them.
ARCHIVES = {
    "psycopg2": ("gcc", "libpq-dev"),
    "mysqlclient": ("gcc", "pkg-config", "default-libmysqlclient-dev"),
    "pyaudio": ("gcc", "portaudio19-dev"),
    "python-ldap": ("gcc", "libldap2-dev", "libsasl2-dev"),
    "fasttext": ("g++",),
    "hnswlib": ("g++",),
    "annoy": ("g++",),
    "pesq": ("gcc",),
    "pycrypto": ("gcc",),
    "crcmod": ("gcc",),
    "kenlm": ("g++", "cmake", "make"),
    "dlib": ("g++", "cmake", "make"),
    "webrtcvad": ("gcc",),
    "uwsgi": ("gcc",),
    "mpi4py": ("gcc", "libopenmpi-dev"),
    "pycairo": ("gcc", "pkg-config", "libcairo2-dev"),
    "dbus-python": ("gcc", "pkg-config", "libdbus-1-dev", "libglib2.0-dev"),
    "pyicu": ("g++", "pkg-config", "libicu-dev"),
    "pyworld": ("g++",),
    "insightface": ("g++",),
    "cython-bbox": ("gcc",),
    "lap": ("g++",),
    "llama-cpp-python": ("g++",),
    "horovod": ("g++", "cmake", "make"),
}
_COMPILERS = frozenset({"gcc", "g++", "build-essential", "clang"})
VENV = "/opt/venv"


def externally_managed(view: StageView) -> Iterator[Finding]:
    base = view.base
    if base.family not in ("debian", "ubuntu", "cuda") or not _MANAGED.match(base.system):
        return
    if view.has_own_python or _is_let_in(view):
        return
    own_steps = {id(step) for step in view.stage.instructions}
    for by in view.pip:
        into_system = not by.is_uv or bool(by.flags & {"--system"}) or "UV_SYSTEM_PYTHON" in view.variables
        if id(by.instruction) in own_steps and into_system and not _is_elsewhere(view, by):
            yield MANAGED.finding(
                view,
                by.instruction,
                f"the Python of {base.system} is externally managed, and pip refuses to change it: "
                "`error: externally-managed-environment`",
                f"{' '.join(by.command.texts[:4])} … on {base.reference}",
                f"create a virtual environment in {VENV} first",
                venv_edits(view, by),
            )
            return  # the environment serves all that follow


def _is_let_in(view: StageView) -> bool:
    values = view.variables
    script = " ".join(word for step in view.steps for c in step.commands for word in c.texts)
    is_allowed = "PIP_BREAK_SYSTEM_PACKAGES" in values or "EXTERNALLY-MANAGED" in script
    return is_allowed or "break-system-packages true" in script


def _is_elsewhere(view: StageView, by: PipInstall) -> bool:
    """Whether it installs into a venv or a folder, or with the flag that allows it."""
    if by.flags & {"--break-system-packages"} or by.values("target", "prefix", "root"):
        return True
    if "PIP_BREAK_SYSTEM_PACKAGES" in view.environment(by):
        return True
    program = by.program[0].text
    if "/" in program and not program.startswith(("/usr/bin/", "/bin/")):
        return True
    before = [step for step in view.steps if step.first <= by.instruction.first]
    argv = {word for step in before for command in step.commands for word in command.texts}
    makes = bool(argv & {"venv", "virtualenv"}) or any(word.endswith("/activate") for word in argv)
    path = view.docker.variables(view.stage, by.instruction.first).get("PATH", "")
    return makes or re.search(r"venv|env/bin|/opt/[^:]*bin", path) is not None


def venv_edits(view: StageView, by: PipInstall) -> tuple[Edit, ...]:
    """`python3 -m venv` before the first pip, and its programs first on PATH from there on."""
    step = by.instruction
    program = " ".join(word.text for word in by.program)
    if not is_root_at(view, step) or "/" in program or step.is_json or by.is_uv:
        return ()
    changes = _apt_change(view, step.first)
    mixed = [install for install in view.system if install.instruction is step]
    lines = [f"RUN python3 -m venv {VENV}", f"ENV PATH={VENV}/bin:$PATH"]
    if not mixed:
        return (*edits_of(view.dockerfile, changes), insertion(view.dockerfile, above(view, step), lines))
    first = by.program[0]
    changes.append(Change(first.start, by.program[-1].end, f"python3 -m venv {VENV} && {VENV}/bin/pip"))
    siblings = [o for o in view.pip if o.instruction is step and o is not by]
    changes += [Change(o.program[0].start, o.program[-1].end, f"{VENV}/bin/pip") for o in siblings]
    behind = insertion(view.dockerfile, step.last + 1, lines[1:])
    return (*edits_of(view.dockerfile, changes), behind)


def _apt_change(view: StageView, line: int) -> list[Change]:
    """Add Debian's venv, which is a separate package."""
    lists = [
        install for install in view.system if install.tool == "apt" and install.instruction.first <= line
    ]
    if "python3-venv" in view.system_packages or not lists:
        return []
    for install in lists:
        for word in install.packages:
            if word.text in ("python3-pip", "python3"):
                return [Change(word.end, word.end, " python3-venv")]
    return [Change(lists[-1].end, lists[-1].end, " python3-venv")]


def no_build_tools(view: StageView) -> Iterator[Finding]:
    is_cuda = view.base.family == "cuda"  # its devel images have a compiler and no git
    if not (view.base.is_slim or is_cuda) or view.has_conda or not view.are_packages_known:
        return
    for package in view.own:
        missing, why = _missing(view, package)
        if not view.base.is_slim and missing != ["git"]:
            continue
        if missing:
            yield TOOLS.finding(
                view,
                package.spec,
                why,
                f"{package.spec.text} on {view.base.reference}, system packages: "
                f"{', '.join(sorted(view.system_packages)) or 'none'}",
                f"install {' '.join(missing)} before pip",
                system_packages_added(view, package.by.instruction, missing),
            )
            return  # the next one is found when this one is fixed: both change the same line


def setup_too_old(view: StageView) -> Iterator[Finding]:
    for package in view.own:
        is_open = "--no-build-isolation" in package.by.flags or bool(
            package.by.values("build-constraint", "constraint")
        )
        if not package.by.is_pip or is_open or _CONSTRAINED & view.environment(package.by).keys():
            continue
        name = package.spec.name
        pin = package.spec.pin
        is_newest = has_newest_pip(view, package)
        why = ""
        if (_is_among(_PKG_RESOURCES, name, pin) and not package.spec.is_url) or (
            _CLIP.search(package.spec.text) and is_newest
        ):
            why = "imports pkg_resources during its build, which setuptools no longer has"
        elif _is_among(_BAD_METADATA, name, pin) and is_newest and not package.by.is_uv:
            why = "has metadata that pip rejects from 24.1 on: `invalid metadata`"
        if why:
            yield OLD_SETUP.finding(
                view,
                package.spec,
                f"{package.spec.text} {why}",
                f"{' '.join(package.by.command.texts[:5])} on {view.base.reference}",
                "use a newer release; or PIP_CONSTRAINT with setuptools<81, and for old metadata pip<24.1",
            )


def _is_among(releases: dict[str, tuple[Version, Version]], name: str, pin: Version | None) -> bool:
    if pin is None or name not in releases:
        return False
    first, last = releases[name]
    return first <= pin <= last


def _missing(view: StageView, package: Installed) -> tuple[list[str], str]:
    installed = view.system_packages
    if package.spec.is_git and not installed & {"git", "git-lfs", "git-core", "git-all"}:
        return ["git"], f"pip clones {package.spec.name or package.spec.text}, but git is not installed"
    needs = (
        list(ARCHIVES.get(package.spec.name, ()))
        if not package.spec.is_url and not view.has_own_python
        else []
    )
    has_mpi = package.spec.name == "mpi4py" and any("mpi" in package for package in installed)
    if _has_wheel(view, package) or has_mpi:
        needs = []
    if package.by.values("find-links") or view.base.family == "pytorch":
        needs = []
    if installed & _COMPILERS:
        needs = [name for name in needs if name not in ("gcc", "g++")]
    missing = [name for name in needs if name not in installed]
    if missing and view.base.family != "python" and "python3-dev" not in installed:
        missing.append("python3-dev")
    return missing, f"{package.spec.name} is compiled during installation: `Failed building wheel`"


def _has_wheel(view: StageView, package: Installed) -> bool:
    """Whether the release that pip selects has a wheel for this Python; True if unknown."""
    known = wheels().packages.get(package.spec.name)
    if known is None:
        return False
    matching = [version for version in known if package.spec.specifier.contains(version)]
    pythons = [view.python] if view.python is not None else [f"3.{minor}" for minor in MINORS]
    libc = "musl" if view.base.system == "alpine" else ""
    return not matching or any(
        wheels().has_wheel(package.spec.name, max(matching), p, libc=libc) for p in pythons
    )


RULES = (externally_managed, no_build_tools, setup_too_old)

"""Rules about what pip needs before it can install: an environment, git, a compiler (10, 12)."""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.edits import above, is_root_at, system_packages_added
from paceline.images.lint.installs import PipInstall
from paceline.images.lint.matrix import MINORS, wheels
from paceline.images.lint.project import Change, Edit, Finding, edits_of, insertion
from paceline.images.lint.rules.extensions import has_newest_pip
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Installed, Place

MANAGED = Pattern(
    number=10,
    id="externally-managed",
    what="The system's Python refuses pip (PEP 668: Debian 12, Ubuntu 24.04 and later).",
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
    what="The build of an old release fails with the setuptools or pip of today: pkg_resources, metadata.",
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
# Only archives on PyPI: what compiling one takes.
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


def externally_managed(place: Place) -> Iterator[Finding]:
    base = place.base
    if base.family not in ("debian", "ubuntu", "cuda") or not _MANAGED.match(base.system):
        return
    if place.has_own_python or _is_let_in(place):
        return
    mine = {id(step) for step in place.stage.instructions}
    for by in place.pip:
        into_system = not by.is_uv or bool(by.flags & {"--system"}) or "UV_SYSTEM_PYTHON" in place.variables
        if id(by.instruction) in mine and into_system and not _is_elsewhere(place, by):
            yield MANAGED.found(
                place,
                by.instruction,
                f"the Python of {base.system} belongs to the system, and pip refuses to change it: "
                "`error: externally-managed-environment`",
                f"{' '.join(by.command.texts[:4])} … on {base.reference}",
                f"make a virtual environment in {VENV} first",
                venv_edits(place, by),
            )
            return  # the environment serves all that follow


def _is_let_in(place: Place) -> bool:
    values = place.variables
    words = " ".join(word for step in place.steps for c in step.commands for word in c.texts)
    said = "PIP_BREAK_SYSTEM_PACKAGES" in values or "EXTERNALLY-MANAGED" in words
    return said or "break-system-packages true" in words


def _is_elsewhere(place: Place, by: PipInstall) -> bool:
    """Into a venv, a folder, or with the flag that says it is meant."""
    if by.flags & {"--break-system-packages"} or by.values("target", "prefix", "root"):
        return True
    if "PIP_BREAK_SYSTEM_PACKAGES" in place.environment(by):
        return True
    program = by.program[0].text
    if "/" in program and not program.startswith(("/usr/bin/", "/bin/")):
        return True
    before = [step for step in place.steps if step.first <= by.instruction.first]
    words = {word for step in before for command in step.commands for word in command.texts}
    makes = bool(words & {"venv", "virtualenv"}) or any(word.endswith("/activate") for word in words)
    path = place.docker.variables(place.stage, by.instruction.first).get("PATH", "")
    return makes or re.search(r"venv|env/bin|/opt/[^:]*bin", path) is not None


def venv_edits(place: Place, by: PipInstall) -> tuple[Edit, ...]:
    """`python3 -m venv` before the first pip, and its programs first on PATH from there on."""
    step = by.instruction
    program = " ".join(word.text for word in by.program)
    if not is_root_at(place, step) or "/" in program or step.is_json or by.is_uv:
        return ()
    changes = _apt_change(place, step.first)
    mixed = [one for one in place.system if one.instruction is step]
    lines = [f"RUN python3 -m venv {VENV}", f"ENV PATH={VENV}/bin:$PATH"]
    if not mixed:
        return (*edits_of(place.dockerfile, changes), insertion(place.dockerfile, above(place, step), lines))
    first = by.program[0]
    changes.append(Change(first.start, by.program[-1].end, f"python3 -m venv {VENV} && {VENV}/bin/pip"))
    others = [o for o in place.pip if o.instruction is step and o is not by]
    changes += [Change(o.program[0].start, o.program[-1].end, f"{VENV}/bin/pip") for o in others]
    behind = insertion(place.dockerfile, step.last + 1, lines[1:])
    return (*edits_of(place.dockerfile, changes), behind)


def _apt_change(place: Place, line: int) -> list[Change]:
    """Debian's venv is a package of its own."""
    lists = [one for one in place.system if one.tool == "apt" and one.instruction.first <= line]
    if "python3-venv" in place.system_packages or not lists:
        return []
    for one in lists:
        for word in one.packages:
            if word.text in ("python3-pip", "python3"):
                return [Change(word.end, word.end, " python3-venv")]
    return [Change(lists[-1].end, lists[-1].end, " python3-venv")]


def no_build_tools(place: Place) -> Iterator[Finding]:
    is_cuda = place.base.family == "cuda"  # its devel images have a compiler and no git
    if not (place.base.is_slim or is_cuda) or place.has_conda or not place.are_packages_known:
        return
    for one in place.own:
        missing, why = _missing(place, one)
        if not place.base.is_slim and missing != ["git"]:
            continue
        if missing:
            yield TOOLS.found(
                place,
                one.asked,
                why,
                f"{one.asked.text} on {place.base.reference}, system packages: "
                f"{', '.join(sorted(place.system_packages)) or 'none'}",
                f"install {' '.join(missing)} before pip",
                system_packages_added(place, one.by.instruction, missing),
            )
            return  # the next one is found when this one is mended: both want the same line


def setup_too_old(place: Place) -> Iterator[Finding]:
    for one in place.own:
        is_open = "--no-build-isolation" in one.by.flags or bool(
            one.by.values("build-constraint", "constraint")
        )
        if not one.by.is_pip or is_open or _CONSTRAINED & place.environment(one.by).keys():
            continue
        name, pin = one.asked.name, one.asked.pin
        is_newest = has_newest_pip(place, one)
        why = ""
        if (_is_among(_PKG_RESOURCES, name, pin) and not one.asked.is_url) or (
            _CLIP.search(one.asked.text) and is_newest
        ):
            why = "imports pkg_resources while it is built, which setuptools has no more"
        elif _is_among(_BAD_METADATA, name, pin) and is_newest and not one.by.is_uv:
            why = "has metadata that pip refuses from 24.1 on: `invalid metadata`"
        if why:
            yield OLD_SETUP.found(
                place,
                one.asked,
                f"{one.asked.text} {why}",
                f"{' '.join(one.by.command.texts[:5])} on {place.base.reference}",
                "take a newer release; or PIP_CONSTRAINT with setuptools<81, and for old metadata pip<24.1",
            )


def _is_among(releases: dict[str, tuple[Version, Version]], name: str, pin: Version | None) -> bool:
    if pin is None or name not in releases:
        return False
    first, last = releases[name]
    return first <= pin <= last


def _missing(place: Place, one: Installed) -> tuple[list[str], str]:
    there = place.system_packages
    if one.asked.is_git and not there & {"git", "git-lfs", "git-core", "git-all"}:
        return ["git"], f"pip clones {one.asked.name or one.asked.text}, and there is no git"
    needs = (
        list(ARCHIVES.get(one.asked.name, ())) if not one.asked.is_url and not place.has_own_python else []
    )
    has_mpi = one.asked.name == "mpi4py" and any("mpi" in package for package in there)
    if _has_wheel(place, one) or has_mpi:
        needs = []
    if one.by.values("find-links") or place.base.family == "pytorch":
        needs = []
    if there & _COMPILERS:
        needs = [name for name in needs if name not in ("gcc", "g++")]
    missing = [name for name in needs if name not in there]
    if missing and place.base.family != "python" and "python3-dev" not in there:
        missing.append("python3-dev")
    return missing, f"{one.asked.name} is compiled when it is installed: `Failed building wheel`"


def _has_wheel(place: Place, one: Installed) -> bool:
    """The release that pip takes has a wheel for this Python, or the table cannot tell."""
    known = wheels().packages.get(one.asked.name)
    if known is None:
        return False
    matching = [version for version in known if one.asked.specifier.contains(version)]
    pythons = [place.python] if place.python is not None else [f"3.{minor}" for minor in MINORS]
    libc = "musl" if place.base.system == "alpine" else ""
    return not matching or any(
        wheels().has_wheel(one.asked.name, max(matching), p, libc=libc) for p in pythons
    )


RULES = (externally_managed, no_build_tools, setup_too_old)

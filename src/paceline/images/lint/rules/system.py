"""Rules about programs that come from the system: apt's packages, pip's own installer, conda (28, 30, 34).

Each rule needs the whole chain of a stage to be known: a script of the user's own, or a base that the list
does not know, may have done what seems to be missing.
"""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.bases import PackageGone, catalog
from paceline.images.lint.dockerfile import Command, Instruction, Word
from paceline.images.lint.edits import is_root_at
from paceline.images.lint.installs import conditional_commands, system_installs
from paceline.images.lint.project import Change, Edit, Finding, Level, edits_of, offset_of
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

APT = Pattern(
    number=28,
    id="apt-fails",
    what="apt-get without package lists, without `-y`, or not as root.",
    fix="`apt-get update` in the same RUN, `-y`, `USER root`",
)
GONE = Pattern(
    number=28,
    id="system-package-gone",
    what="A system package does not exist in this release of Debian or Ubuntu (any more).",
    fix="the package that took its place",
)
GET_PIP = Pattern(
    number=30,
    id="get-pip-refuses",
    what="get-pip.py of the day refuses an old Python: it ends with an error.",
    fix="the get-pip.py for that Python: `https://bootstrap.pypa.io/pip/3.8/get-pip.py`",
)
OLD_PIP = Pattern(
    number=30,
    id="old-system-pip",
    what="The system's own pip is too old for a package's wheels: it takes the archive, whose build fails.",
    fix="only reported: `python3 -m pip install --upgrade pip` before it",
)
TERMS = Pattern(
    number=34,
    id="conda-terms",
    what="conda asks for the terms of Anaconda's channels, and a build has no terminal to accept them.",
    fix="only reported: `conda tos accept`, or conda-forge alone with `--override-channels`",
)
PATTERNS = (APT, GONE, GET_PIP, OLD_PIP, TERMS)
_SYSTEMS = ("python", "debian", "ubuntu", "cuda")  # families whose official images are known well enough
_GET_PIP = re.compile(
    r"(?:https?://)?(?:bootstrap\.pypa\.io/+(?:pip/)?|raw\.githubusercontent\.com/pypa/get-pip/\S*?"
    r"|github\.com/pypa/get-pip/raw/\S*?)get-pip\.py(?:[?#]\S*)?$"
)
_PYTHON = re.compile(r"^(?:\S*/)?python(3(?:\.\d+)?|2(?:\.\d)?)?$")
# Systems whose pip knows wheels for manylinux1 alone, and the first release that has no such wheel.
_OLD_PIPS = frozenset({"ubuntu16.04", "ubuntu18.04", "debian9"})
_WITHOUT_MANYLINUX1 = {
    "opencv-python": Version("4.3"),
    "opencv-contrib-python": Version("4.3"),
    "opencv-python-headless": Version("4.3"),
    "opencv-contrib-python-headless": Version("4.3"),
    "tensorflow": Version("2.1"),
    "tensorflow-gpu": Version("2.1"),
    "tensorflow-cpu": Version("2.1"),
    "transformers": Version("3.0"),
    "onnxruntime": Version("1.3"),
    "onnxruntime-gpu": Version("1.3"),
    "pyarrow": Version("1.0"),
}
_LAST_WITH_PAGE = Version("3.8")  # of the Pythons that bootstrap.pypa.io is known to have an own page for


def apt_fails(place: Place) -> Iterator[Finding]:
    if place.base.family not in _SYSTEMS or not place.are_packages_known:
        return
    has_lists = False
    mine = {id(step) for step in place.stage.instructions}
    for step in place.steps:
        has_sources = any("sources.list" in value for value in step.values if step.word in ("COPY", "ADD"))
        has_lists = has_lists or has_sources or any("/var/lib/apt" in flag for flag in step.flags)
        maybe = conditional_commands(step)
        for command in step.commands:
            words = command.texts
            line = " ".join(words)
            if re.search(
                r"\bapt(-get)?\b.*\bupdate\b|add-apt-repository|apt-add-repository|aptitude update", line
            ):
                has_lists = True
                if (
                    id(step) in mine
                    and not is_root_at(place, step)
                    and "sudo" not in words
                    and "||" not in line
                ):
                    yield APT.found(
                        place,
                        step,
                        "apt-get runs as another user than root: `Permission denied`",
                        " ".join(words[:6]),
                        "run it before USER, or put `USER root` above it",
                    )
            elif _installs_by_apt(words) and id(command) not in maybe:
                yield from _apt_command(place, step, command, has_lists=has_lists, is_mine=id(step) in mine)
            elif words[0] == "rm" and "/var/lib/apt/lists" in line:
                has_lists = False
        if any("cache" in flag and "/var/lib/apt" in flag for flag in step.flags):
            has_lists = True


def _installs_by_apt(words: tuple[str, ...]) -> bool:
    tools = [at for at, word in enumerate(words) if word.rpartition("/")[2] in ("apt-get", "apt")]
    return bool(tools) and "install" in words[tools[0] :]


def _apt_command(
    place: Place, step: Instruction, command: Command, *, has_lists: bool, is_mine: bool
) -> Iterator[Finding]:
    words = command.texts
    packages = [word for word in words[words.index("install") + 1 :] if not word.startswith("-")]
    is_local = all(word.startswith((".", "/")) or word.endswith(".deb") for word in packages)
    if not is_mine or not packages or is_local:
        return
    shown = " ".join(words[:6])
    if not has_lists:
        at = next(word for word in command.words if word.text.rpartition("/")[2] in ("apt-get", "apt"))
        edit = edits_of(place.dockerfile, [Change(at.start, at.start, "apt-get update && ")])
        is_first = command.words[0] is at and not step.is_json
        yield APT.found(
            place,
            step,
            f"there are no package lists in {place.base.reference} at this point: `Unable to locate package`",
            shown,
            "run `apt-get update` before it, in the same RUN",
            edit if is_first else (),
        )
    if not is_root_at(place, step) and "sudo" not in words:
        yield APT.found(
            place,
            step,
            "apt-get runs as another user than root: `Permission denied`",
            shown,
            "run it before USER, or put `USER root` above it",
        )


_YES = re.compile(
    r"^-[a-z]*y[a-z]*$|^-[a-z]*qq[a-z]*$|^--yes$|^--assume-yes$|^-q=2$|Assume-Yes|^--force-yes$"
)


def apt_asks(place: Place) -> Iterator[Finding]:
    """Without -y apt-get asks, whatever the base is; only a configuration of apt may say yes for it."""
    said = " ".join(place.words)
    if re.search(r"Assume-Yes|apt\.conf", said) or any(
        "apt.conf" in value or value.startswith("/etc/apt")
        for step in place.steps
        if step.word in ("COPY", "ADD")
        for value in step.values
    ):
        return
    for step in place.stage.instructions:
        maybe = conditional_commands(step)
        before: Command | None = None
        for command in step.commands:
            words = command.texts
            is_answered = any(_YES.search(word) for word in words) or _is_piped(place, before, command)
            before = command
            if (
                not _installs_by_apt(words)
                or id(command) in maybe
                or is_answered
                or "$" in " ".join(words[:4])
            ):
                continue
            packages = [word for word in words[words.index("install") + 1 :] if not word.startswith("-")]
            is_dry = any(
                re.match(r"--(?:print-uris|download-only|simulate|dry-run)|-[a-z]*[sd]$", w) for w in words
            )
            if not packages or is_dry:
                continue
            install = command.words[words.index("install")]
            edit = edits_of(place.dockerfile, [Change(install.end, install.end, " -y")])
            yield APT.found(
                place,
                step,
                "apt-get asks for confirmation, and a build has no terminal to answer from: it aborts",
                " ".join(words[:6]),
                "add -y",
                edit if not step.is_json else (),
                level=Level.PROBLEM if place.base.family else Level.WARNING,
            )


def _is_piped(place: Place, before: Command | None, command: Command) -> bool:
    if before is None or not before.words or not command.words:
        return False
    between = place.dockerfile.text[before.words[-1].end : command.words[0].start]
    return "|" in between and "||" not in between


def system_package_gone(place: Place) -> Iterator[Finding]:
    system = place.base.apt_system(place.target.today)
    gone = catalog().packages_gone
    extra = any(
        re.search(r"add-apt-repository|sources\.list|ppa:|deb \[|apt-key|\.list$", w) for w in place.words
    )
    copied = any("sources.list" in v for s in place.steps if s.word in ("COPY", "ADD") for v in s.values)
    for step in place.stage.instructions:
        for one in system_installs(step):
            for word in one.packages if one.tool == "apt" else ():
                if word.text in _ONLY_ON_PYPI:
                    yield _from_pypi(place, step, word.text)
                    continue
                row = gone.get(word.text) or _python_gone(word.text, system)
                if row is None or system not in row.systems or (extra and row.is_elsewhere) or copied:
                    continue
                where = system or "every system"
                edits = edits_of(place.dockerfile, [Change(word.start, word.end, row.instead)])
                yield GONE.found(
                    place,
                    step,
                    f"there is no package {word.text} in {where}: `has no installation candidate`",
                    f"{word.text} on {place.base.reference}",
                    f"install {row.instead}" if row.instead else "leave it out, or use an older base",
                    edits if row.instead and not step.is_json else (),
                )


# Packages of PyPI; no release of Debian or Ubuntu has one of that name.
_ONLY_ON_PYPI = frozenset(
    [
        "nvidia-ml-py3",
        "nvidia-ml-py",
        "opencv-python",
        "torch",
        "torchvision",
        "tensorflow",
        "numpy",
        "pandas",
    ]
)


def _from_pypi(place: Place, step: Instruction, name: str) -> Finding:
    return GONE.found(
        place,
        step,
        f"{name} is a package of PyPI, and apt has none of that name: `Unable to locate package`",
        f"{name} on {place.base.reference}",
        f"install {name} with pip",
    )


def installer_gone(place: Place) -> Iterator[Finding]:
    """Mambaforge has ended: the newest release of its page has no installer of that name."""
    for step in place.stage.instructions:
        words = [*step.values, *(word for command in step.commands for word in command.texts)]
        address = next((word for word in words if "releases/latest/download/Mambaforge" in word), None)
        if address is not None:
            found = re.search(r"https?://\S*Mambaforge", address)
            yield GONE.found(
                place,
                step,
                "Mambaforge is no longer released: its latest download answers 404",
                found[0] if found is not None else "Mambaforge",
                "download Miniforge3 in its place: it has mamba too",
            )


def _python_gone(package: str, system: str) -> PackageGone | None:
    """Each release has the packages of one or two Pythons; distutils ended with 3.11."""
    without = re.fullmatch(r"python3\.(\d+)-distutils", package)
    if without is not None and int(without[1]) >= 12:
        return PackageGone(systems=(system,), instead="", is_elsewhere=False)
    if re.fullmatch(r"python[23]\.\d+\.\d+", package):
        return PackageGone(
            systems=(system,), instead="", is_elsewhere=False
        )  # packages name no patch release
    found = re.fullmatch(r"python(3\.\d+)(?:-(?:dev|venv|distutils|full|minimal))?", package)
    known = catalog().python_packages.get(system)
    if found is None or known is None or found[1] in known:
        return None
    return PackageGone(systems=(system,), instead="", is_elsewhere=True)


def get_pip_refuses(place: Place) -> Iterator[Finding]:
    """`python3.8 get-pip.py`, with the file of the newest pip."""
    address: Word | None = None
    for step in place.stage.instructions:
        if step.word == "ADD" and any(_GET_PIP.match(value) for value in step.values[:-1]):
            at = offset_of(place.docker.text, step.first)
            address = Word(step.values[0], at, at)
        for command in step.commands:
            fetched = next((word for word in command.words if _GET_PIP.match(word.text)), None)
            if fetched is not None or (address and any(_is_script_address(word) for word in command.texts)):
                address = fetched
            if address is None:
                continue
            program = next((found for word in command.texts if (found := _PYTHON.match(word))), None)
            is_run = any(word.endswith("get-pip.py") and "://" not in word for word in command.texts)
            if program is None or not (is_run or len(command.texts) <= 2 or "-" in command.texts):
                continue
            python = _version_of(place, program[1] or "")
            if python is not None and python < catalog().oldest_python_of_pip:
                yield _refused(place, step, command, python, _older_page(place, step, address.text, python))
            return


def _is_script_address(word: str) -> bool:
    return word.endswith("get-pip.py") and "://" in word


def _version_of(place: Place, said: str) -> Version | None:
    if "." in said:
        return Version(said)
    if said == "2":
        return Version("2.7")
    return Version(place.python) if place.python is not None else None


def _older_page(place: Place, step: Instruction, address: str, python: Version) -> tuple[Edit, ...]:
    words = [word for command in step.commands for word in command.words if word.text == address]
    if python > _LAST_WITH_PAGE or len(words) != 1 or step.is_json:
        return ()
    written = place.docker.text[words[0].start : words[0].end]
    new = written.replace(address, f"https://bootstrap.pypa.io/pip/{python}/get-pip.py")
    if new == written:
        return ()
    return edits_of(place.dockerfile, [Change(words[0].start, words[0].end, new)])


def _refused(
    place: Place, step: Instruction, command: Command, python: Version, edits: tuple[Edit, ...]
) -> Finding:
    least = catalog().oldest_python_of_pip
    return GET_PIP.found(
        place,
        step,
        f"get-pip.py installs the newest pip, which needs Python {least}: `does not work on Python {python}`",
        " ".join(command.texts[:6]),
        f"fetch https://bootstrap.pypa.io/pip/{python}/get-pip.py",
        edits,
    )


def old_system_pip(place: Place) -> Iterator[Finding]:
    """pip 9 of Ubuntu 18.04 and its like: wheels with later tags do not exist for it."""
    if place.base.system not in _OLD_PIPS or place.has_conda or not place.are_packages_known:
        return
    renewed = re.compile(r"get-pip|ensurepip|virtualenv|^venv$|pyenv|poetry|pipenv|^uv$")
    if "python3-pip" not in place.system_packages or any(renewed.search(word) for word in place.words):
        return
    if any(one.asked.name == "pip" for one in place.installed) or place.has_conditional:
        return
    for one in place.own:
        first = _WITHOUT_MANYLINUX1.get(one.asked.name)
        pin = one.asked.pin
        if first is None or (one.asked.specifier and pin is None) or (pin is not None and pin < first):
            continue
        yield OLD_PIP.found(
            place,
            one.asked,
            f"the pip of {place.base.system} does not know the tags of the wheels of {one.asked.name}: "
            "`No matching distribution found`, or a build from its archive that fails",
            f"{one.asked.text} with python3-pip of {place.base.reference}",
            "run `python3 -m pip install --upgrade pip` before it; for Python 3.6 pip 21.3.1 is the last",
        )
        return


def conda_terms(place: Place) -> Iterator[Finding]:
    """The newest Miniconda, used with Anaconda's own channels, which it has by default."""
    words = place.words
    tag = place.base.tag
    is_new_base = place.base.family == "conda" and (tag in (None, "latest") or _is_since_terms(tag or ""))
    installer = any(re.search(r"(?:Miniconda3|Anaconda3)-latest", word) for word in words)
    if not (is_new_base or installer) or place.base.digest is not None:
        return
    said = " ".join(words)
    values = {**place.variables, **{w.partition("=")[0]: "" for w in words if "=" in w}}
    settled = re.search(r"\btos\b|override-channels|condarc|nodefaults|default_channels|ls defaults", said)
    copied = any("condarc" in value for step in place.steps for value in step.values)
    if settled or copied or "CI" in values or any("AUTO_ACCEPT_TOS" in name for name in values):
        return
    if any("nodefaults" in one.text for one in place.files.values()):
        return
    for step in place.stage.instructions:
        maybe = conditional_commands(step)
        for command in step.commands:
            texts = command.texts
            at = next((n for n, word in enumerate(texts) if re.search(r"(?:^|/)conda$", word)), None)
            behind = () if at is None else texts[at + 1 : at + 3]
            asks = behind[:1] in (("create",), ("install",), ("update",)) or behind in (
                ("env", "create"),
                ("env", "update"),
            )
            if asks and id(command) not in maybe and "-h" not in texts:
                yield TERMS.found(
                    place,
                    step,
                    "conda's terms for Anaconda's channels are not accepted: `CondaToSNonInteractiveError`",
                    " ".join(texts[:6]),
                    "run `conda tos accept` before it, or use conda-forge alone: "
                    "`--override-channels -c conda-forge`, or a Miniforge base",
                    # What the ready-made image has settled is not known for every release.
                    level=Level.PROBLEM if installer else Level.WARNING,
                )
                return


def _is_since_terms(tag: str) -> bool:
    found = re.match(r"^(\d+\.\d+)", tag)
    return found is not None and Version(found[1]) >= Version("25.5")


RULES = (
    system_package_gone,
    installer_gone,
    apt_fails,
    apt_asks,
    get_pip_refuses,
    old_system_pip,
    conda_terms,
)

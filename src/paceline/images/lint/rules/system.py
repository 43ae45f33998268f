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
from paceline.images.lint.view import StageView

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
    fix="the package that replaces it",
)
GET_PIP = Pattern(
    number=30,
    id="get-pip-refuses",
    what="The current get-pip.py does not support an old Python and fails.",
    fix="the get-pip.py for that Python: `https://bootstrap.pypa.io/pip/3.8/get-pip.py`",
)
OLD_PIP = Pattern(
    number=30,
    id="old-system-pip",
    what="The system's own pip is too old for a package's wheels: it uses the source archive, whose build "
    "fails.",
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
# Systems whose pip supports only manylinux1 wheels, and the first release that has no such wheel.
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
_LAST_WITH_PAGE = Version("3.8")  # last Python with its own page on bootstrap.pypa.io


def apt_fails(view: StageView) -> Iterator[Finding]:
    if view.base.family not in _SYSTEMS or not view.are_packages_known:
        return
    has_lists = False
    own_steps = {id(step) for step in view.stage.instructions}
    for step in view.steps:
        has_sources = any("sources.list" in value for value in step.values if step.word in ("COPY", "ADD"))
        has_lists = has_lists or has_sources or any("/var/lib/apt" in flag for flag in step.flags)
        conditional = conditional_commands(step)
        for command in step.commands:
            argv = command.texts
            line = " ".join(argv)
            if re.search(
                r"\bapt(-get)?\b.*\bupdate\b|add-apt-repository|apt-add-repository|aptitude update", line
            ):
                has_lists = True
                if (
                    id(step) in own_steps
                    and not is_root_at(view, step)
                    and "sudo" not in argv
                    and "||" not in line
                ):
                    yield APT.finding(
                        view,
                        step,
                        "apt-get runs as another user than root: `Permission denied`",
                        " ".join(argv[:6]),
                        "run it before USER, or put `USER root` above it",
                    )
            elif _installs_by_apt(argv) and id(command) not in conditional:
                yield from _apt_command(
                    view, step, command, has_lists=has_lists, is_mine=id(step) in own_steps
                )
            elif argv[0] == "rm" and "/var/lib/apt/lists" in line:
                has_lists = False
        if any("cache" in flag and "/var/lib/apt" in flag for flag in step.flags):
            has_lists = True


def _installs_by_apt(argv: tuple[str, ...]) -> bool:
    tools = [at for at, word in enumerate(argv) if word.rpartition("/")[2] in ("apt-get", "apt")]
    return bool(tools) and "install" in argv[tools[0] :]


def _apt_command(
    view: StageView, step: Instruction, command: Command, *, has_lists: bool, is_mine: bool
) -> Iterator[Finding]:
    argv = command.texts
    packages = [word for word in argv[argv.index("install") + 1 :] if not word.startswith("-")]
    is_local = all(word.startswith((".", "/")) or word.endswith(".deb") for word in packages)
    if not is_mine or not packages or is_local:
        return
    shown = " ".join(argv[:6])
    if not has_lists:
        at = next(word for word in command.words if word.text.rpartition("/")[2] in ("apt-get", "apt"))
        edit = edits_of(view.dockerfile, [Change(at.start, at.start, "apt-get update && ")])
        is_first = command.words[0] is at and not step.is_json
        yield APT.finding(
            view,
            step,
            f"there are no package lists in {view.base.reference} at this point: `Unable to locate package`",
            shown,
            "run `apt-get update` before it, in the same RUN",
            edit if is_first else (),
        )
    if not is_root_at(view, step) and "sudo" not in argv:
        yield APT.finding(
            view,
            step,
            "apt-get runs as another user than root: `Permission denied`",
            shown,
            "run it before USER, or put `USER root` above it",
        )


_YES = re.compile(
    r"^-[a-z]*y[a-z]*$|^-[a-z]*qq[a-z]*$|^--yes$|^--assume-yes$|^-q=2$|Assume-Yes|^--force-yes$"
)


def apt_asks(view: StageView) -> Iterator[Finding]:
    """Without -y apt-get prompts on every base; only a configuration of apt may confirm for it."""
    script = " ".join(view.words)
    if re.search(r"Assume-Yes|apt\.conf", script) or any(
        "apt.conf" in value or value.startswith("/etc/apt")
        for step in view.steps
        if step.word in ("COPY", "ADD")
        for value in step.values
    ):
        return
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        before: Command | None = None
        for command in step.commands:
            argv = command.texts
            is_answered = any(_YES.search(word) for word in argv) or _is_piped(view, before, command)
            before = command
            if (
                not _installs_by_apt(argv)
                or id(command) in conditional
                or is_answered
                or "$" in " ".join(argv[:4])
            ):
                continue
            packages = [word for word in argv[argv.index("install") + 1 :] if not word.startswith("-")]
            is_dry = any(
                re.match(r"--(?:print-uris|download-only|simulate|dry-run)|-[a-z]*[sd]$", w) for w in argv
            )
            if not packages or is_dry:
                continue
            install = command.words[argv.index("install")]
            edit = edits_of(view.dockerfile, [Change(install.end, install.end, " -y")])
            yield APT.finding(
                view,
                step,
                "apt-get asks for confirmation, and a build has no terminal: it aborts",
                " ".join(argv[:6]),
                "add -y",
                edit if not step.is_json else (),
                level=Level.PROBLEM if view.base.family else Level.WARNING,
            )


def _is_piped(view: StageView, before: Command | None, command: Command) -> bool:
    if before is None or not before.words or not command.words:
        return False
    between = view.dockerfile.text[before.words[-1].end : command.words[0].start]
    return "|" in between and "||" not in between


def system_package_gone(view: StageView) -> Iterator[Finding]:
    system = view.base.apt_system(view.target.today)
    gone = catalog().packages_gone
    extra = any(
        re.search(r"add-apt-repository|sources\.list|ppa:|deb \[|apt-key|\.list$", w) for w in view.words
    )
    copied = any("sources.list" in v for s in view.steps if s.word in ("COPY", "ADD") for v in s.values)
    for step in view.stage.instructions:
        for install in system_installs(step):
            for word in install.packages if install.tool == "apt" else ():
                if word.text in _ONLY_ON_PYPI:
                    yield _from_pypi(view, step, word.text)
                    continue
                row = gone.get(word.text) or _python_gone(word.text, system)
                if row is None or system not in row.systems or (extra and row.is_elsewhere) or copied:
                    continue
                where = system or "every system"
                edits = edits_of(view.dockerfile, [Change(word.start, word.end, row.instead)])
                yield GONE.finding(
                    view,
                    step,
                    f"there is no package {word.text} in {where}: `has no installation candidate`",
                    f"{word.text} on {view.base.reference}",
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


def _from_pypi(view: StageView, step: Instruction, name: str) -> Finding:
    return GONE.finding(
        view,
        step,
        f"{name} is a package of PyPI, and apt has none of that name: `Unable to locate package`",
        f"{name} on {view.base.reference}",
        f"install {name} with pip",
    )


def installer_gone(view: StageView) -> Iterator[Finding]:
    """Mambaforge has ended: the newest release of its page has no installer of that name."""
    for step in view.stage.instructions:
        argv = [*step.values, *(word for command in step.commands for word in command.texts)]
        address = next((word for word in argv if "releases/latest/download/Mambaforge" in word), None)
        if address is not None:
            match = re.search(r"https?://\S*Mambaforge", address)
            yield GONE.finding(
                view,
                step,
                "Mambaforge is no longer released: its latest download returns 404",
                match[0] if match is not None else "Mambaforge",
                "download Miniforge3 instead: it includes mamba",
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
    match = re.fullmatch(r"python(3\.\d+)(?:-(?:dev|venv|distutils|full|minimal))?", package)
    known = catalog().python_packages.get(system)
    if match is None or known is None or match[1] in known:
        return None
    return PackageGone(systems=(system,), instead="", is_elsewhere=True)


def get_pip_refuses(view: StageView) -> Iterator[Finding]:
    """`python3.8 get-pip.py`, with the file of the newest pip."""
    address: Word | None = None
    for step in view.stage.instructions:
        if step.word == "ADD" and any(_GET_PIP.match(value) for value in step.values[:-1]):
            at = offset_of(view.docker.text, step.first)
            address = Word(step.values[0], at, at)
        for command in step.commands:
            fetched = next((word for word in command.words if _GET_PIP.match(word.text)), None)
            if fetched is not None or (address and any(_is_script_address(word) for word in command.texts)):
                address = fetched
            if address is None:
                continue
            program = next((match for word in command.texts if (match := _PYTHON.match(word))), None)
            is_run = any(word.endswith("get-pip.py") and "://" not in word for word in command.texts)
            if program is None or not (is_run or len(command.texts) <= 2 or "-" in command.texts):
                continue
            python = _version_of(view, program[1] or "")
            if python is not None and python < catalog().oldest_python_of_pip:
                yield _refused(view, step, command, python, _older_page(view, step, address.text, python))
            return


def _is_script_address(word: str) -> bool:
    return word.endswith("get-pip.py") and "://" in word


def _version_of(view: StageView, text: str) -> Version | None:
    if "." in text:
        return Version(text)
    if text == "2":
        return Version("2.7")
    return Version(view.python) if view.python is not None else None


def _older_page(view: StageView, step: Instruction, address: str, python: Version) -> tuple[Edit, ...]:
    matching = [word for command in step.commands for word in command.words if word.text == address]
    if python > _LAST_WITH_PAGE or len(matching) != 1 or step.is_json:
        return ()
    written = view.docker.text[matching[0].start : matching[0].end]
    new = written.replace(address, f"https://bootstrap.pypa.io/pip/{python}/get-pip.py")
    if new == written:
        return ()
    return edits_of(view.dockerfile, [Change(matching[0].start, matching[0].end, new)])


def _refused(
    view: StageView, step: Instruction, command: Command, python: Version, edits: tuple[Edit, ...]
) -> Finding:
    first = catalog().oldest_python_of_pip
    return GET_PIP.finding(
        view,
        step,
        f"get-pip.py installs the newest pip, which needs Python {first}: `does not work on Python {python}`",
        " ".join(command.texts[:6]),
        f"fetch https://bootstrap.pypa.io/pip/{python}/get-pip.py",
        edits,
    )


def old_system_pip(view: StageView) -> Iterator[Finding]:
    """pip 9 of Ubuntu 18.04 and its like: wheels with later tags do not exist for it."""
    if view.base.system not in _OLD_PIPS or view.has_conda or not view.are_packages_known:
        return
    renewed = re.compile(r"get-pip|ensurepip|virtualenv|^venv$|pyenv|poetry|pipenv|^uv$")
    if "python3-pip" not in view.system_packages or any(renewed.search(word) for word in view.words):
        return
    if any(package.spec.name == "pip" for package in view.installed) or view.has_conditional:
        return
    for package in view.own:
        first = _WITHOUT_MANYLINUX1.get(package.spec.name)
        pin = package.spec.pin
        if first is None or (package.spec.specifier and pin is None) or (pin is not None and pin < first):
            continue
        yield OLD_PIP.finding(
            view,
            package.spec,
            f"the pip of {view.base.system} does not support the wheel tags of {package.spec.name}: "
            "`No matching distribution found`, or a failing build of its archive",
            f"{package.spec.text} with python3-pip of {view.base.reference}",
            "run `python3 -m pip install --upgrade pip` before it; for Python 3.6 pip 21.3.1 is the last",
        )
        return


def conda_terms(view: StageView) -> Iterator[Finding]:
    """The newest Miniconda, used with Anaconda's own channels, which it has by default."""
    argv = view.words
    tag = view.base.tag
    is_new_base = view.base.family == "conda" and (tag in (None, "latest") or _is_since_terms(tag or ""))
    installer = any(re.search(r"(?:Miniconda3|Anaconda3)-latest", word) for word in argv)
    if not (is_new_base or installer) or view.base.digest is not None:
        return
    match = " ".join(argv)
    values = {**view.variables, **{w.partition("=")[0]: "" for w in argv if "=" in w}}
    settled = re.search(r"\btos\b|override-channels|condarc|nodefaults|default_channels|ls defaults", match)
    copied = any("condarc" in value for step in view.steps for value in step.values)
    if settled or copied or "CI" in values or any("AUTO_ACCEPT_TOS" in name for name in values):
        return
    if any("nodefaults" in file.text for file in view.files.values()):
        return
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        for command in step.commands:
            texts = command.texts
            at = next((n for n, word in enumerate(texts) if re.search(r"(?:^|/)conda$", word)), None)
            behind = () if at is None else texts[at + 1 : at + 3]
            asks = behind[:1] in (("create",), ("install",), ("update",)) or behind in (
                ("env", "create"),
                ("env", "update"),
            )
            if asks and id(command) not in conditional and "-h" not in texts:
                yield TERMS.finding(
                    view,
                    step,
                    "conda's terms for Anaconda's channels are not accepted: `CondaToSNonInteractiveError`",
                    " ".join(texts[:6]),
                    "run `conda tos accept` before it, or use conda-forge alone: "
                    "`--override-channels -c conda-forge`, or a Miniforge base",
                    # The configuration of the ready-made image is not known for every release.
                    level=Level.PROBLEM if installer else Level.WARNING,
                )
                return


def _is_since_terms(tag: str) -> bool:
    match = re.match(r"^(\d+\.\d+)", tag)
    return match is not None and Version(match[1]) >= Version("25.5")


RULES = (
    system_package_gone,
    installer_gone,
    apt_fails,
    apt_asks,
    get_pip_refuses,
    old_system_pip,
    conda_terms,
)

"""Rules about programs that an installer puts below a home folder, off the PATH of later commands (30).

The installers of uv, poetry, rustup and pyenv, `pipx install` and pip's user scheme write their programs into
a folder of the user (`~/.local/bin`). They add it to the profile of a login shell, which neither RUN nor CMD
starts: without ENV PATH the program is not found.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from paceline.images.lint.dockerfile import Command, Instruction, substituted
from paceline.images.lint.edits import is_root_at
from paceline.images.lint.installs import PipInstall, conditional_commands
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.programs import commands_of, program_of
from paceline.images.lint.view import StageView

NOT_ON_PATH = Pattern(
    number=30,
    id="not-on-path",
    what="An installer puts a program below the home folder, and a later step calls it without that PATH.",
    fix="only reported: ENV PATH",
)
PATTERNS = (NOT_ON_PATH,)
_FAMILIES = ("debian", "ubuntu", "cuda", "python", "pytorch", "conda")
_RUN_INSTALLER = frozenset({"sh", "bash", "python", "python3", "env"})  # behind the pipe
_SYSTEM_FOLDERS = frozenset({"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"})


class _Installer(NamedTuple):
    address: re.Pattern[str]
    folder: str  # below the home folder
    programs: frozenset[str]
    variables: dict[str, str]  # variable that moves the folder: where the programs are below its value


_INSTALLERS = (
    _Installer(
        re.compile(r"astral\.sh/uv|astral-sh/uv/releases/\S*installer"),
        ".local/bin",
        frozenset({"uv", "uvx"}),
        {"UV_INSTALL_DIR": "", "UV_UNMANAGED_INSTALL": "", "XDG_BIN_HOME": "", "CARGO_HOME": "bin"},
    ),
    _Installer(
        re.compile(r"install\.python-poetry\.org|python-poetry/poetry/\S+/install-poetry\.py"),
        ".local/bin",
        frozenset({"poetry"}),
        {"POETRY_HOME": "bin"},
    ),
    _Installer(
        re.compile(r"sh\.rustup\.rs|static\.rust-lang\.org/rustup"),
        ".cargo/bin",
        frozenset({"cargo", "rustc", "rustup"}),
        {"CARGO_HOME": "bin"},
    ),
    _Installer(
        re.compile(r"pyenv\.run|pyenv/pyenv\.git|pyenv-installer"),
        ".pyenv/bin",
        frozenset({"pyenv"}),
        {"PYENV_ROOT": "bin"},
    ),
    _Installer(
        re.compile(r"nvm-sh/nvm"),
        ".nvm",
        frozenset({"nvm", "node", "npm"}),
        {"NVM_DIR": ""},
    ),
    _Installer(
        re.compile(r"install\.pixi\.sh|pixi\.sh/install"),
        ".pixi/bin",
        frozenset({"pixi"}),
        {"PIXI_HOME": "bin"},
    ),
)
# Scripts of packages that the start of a container names, by the package that brings them.
_SCRIPTS = {
    "torch": {"torchrun"},
    "accelerate": {"accelerate"},
    "deepspeed": {"deepspeed", "ds_report"},
    "lightning": {"lightning", "fabric"},
    "tensorboard": {"tensorboard"},
    "wandb": {"wandb"},
    "mlflow": {"mlflow"},
    "huggingface-hub": {"huggingface-cli", "hf"},
    "jupyter": {"jupyter"},
    "jupyterlab": {"jupyter", "jupyter-lab"},
    "notebook": {"jupyter"},
    "uvicorn": {"uvicorn"},
    "gunicorn": {"gunicorn"},
    "uv": {"uv", "uvx"},
    "poetry": {"poetry"},
    "pipenv": {"pipenv"},
    "pytest": {"pytest"},
    "streamlit": {"streamlit"},
    "gdown": {"gdown"},
    "dvc": {"dvc"},
    "awscli": {"aws"},
    "ray": {"ray"},
    "vllm": {"vllm"},
    "transformers": {"transformers-cli"},
    "composer": {"composer"},
    "torchtune": {"tune"},
    "llamafactory": {"llamafactory-cli"},
    "axolotl": {"axolotl"},
}


class _Arrival(NamedTuple):
    """Programs that a command has put into a folder below the home folder."""

    step: Instruction
    command: Command | None  # None: the whole step, such as ADD
    folder: str  # "~/.local/bin", or an absolute one
    programs: frozenset[str]


def not_on_path(view: StageView) -> Iterator[Finding]:
    if view.base.family not in _FAMILIES or _has_login_shell(view):
        return
    reported: set[str] = set()
    for arrival in [*_fetched(view), *_by_pipx(view), *_by_user_scheme(view)]:
        if reported & arrival.programs:
            continue
        call = _first_call(view, arrival)
        if call is None:
            continue
        step, argv = call
        name = posixpath.basename(argv[0])
        reported |= arrival.programs
        yield NOT_ON_PATH.finding(
            view,
            step,
            f"{name} was installed below {arrival.folder}, which is not on this step's PATH: "
            f"`{name}: not found`",
            " ".join(argv[:5]),
            f"put {arrival.folder} of that user on PATH with ENV before it",
        )


def _has_login_shell(view: StageView) -> bool:
    """A login or interactive shell reads the profile that the installers have changed."""
    shells = [" ".join(step.values) for step in view.steps if step.word == "SHELL"]
    return "BASH_ENV" in view.variables or any(re.search(r"-\w*[li]|login", text) for text in shells)


def _fetched(view: StageView) -> Iterator[_Arrival]:
    for installer in _INSTALLERS:
        for step in view.stage.instructions:
            texts = step.values if step.word == "ADD" else ()
            command = next(
                (c for c in step.commands if any(installer.address.search(w) for w in c.texts)), None
            )
            if command is None and not any(installer.address.search(text) for text in texts):
                continue
            folder = _folder_of(view, step, installer)
            if folder is not None:
                yield _Arrival(step, command, folder, installer.programs)
            break


def _folder_of(view: StageView, step: Instruction, installer: _Installer) -> str | None:
    """Folder of the programs; None if it is a system folder or cannot be determined."""
    values = view.docker.variables(view.stage, step.first)
    text = " ".join(step.values)
    for name, below in installer.variables.items():
        inline = re.search(rf"\b{name}=[\"']?([^\s\"';&|]+)", text)
        value = inline[1] if inline is not None else values.get(name, "")
        if value:
            folder = posixpath.join(substituted(value, values), below).rstrip("/")
            return None if folder in _SYSTEM_FOLDERS or not re.fullmatch(r"/[\w./-]+", folder) else folder
    if re.search(r"--(?:install-dir|to|bin-dir|path)\b", text):
        return None
    return f"~/{installer.folder}"


def _by_pipx(view: StageView) -> Iterator[_Arrival]:
    """`pipx install NAME`, and `uv tool install NAME`."""
    if {"PIPX_BIN_DIR", "PIPX_GLOBAL_BIN_DIR", "UV_TOOL_BIN_DIR", "XDG_BIN_HOME"} & view.variables.keys():
        return
    for step in view.stage.instructions:
        conditional = conditional_commands(step)
        if step.values and "_BIN_DIR=" in step.values[0]:
            continue
        for command in step.commands:
            argv = _called(command)
            line = " ".join(argv)
            is_pipx = re.match(r"^(?:\S+ -m |\S*/)?pipx (?:-\S+ )*install ", line) is not None
            is_uv = re.match(r"^(?:\S*/)?uv tool install ", line) is not None
            if not (is_pipx or is_uv) or id(command) in conditional or "--global" in argv:
                continue
            behind = argv[argv.index("install") + 1 :]
            names = {re.split(r"[\[=<>~!@ ]", word)[0] for word in behind if not word.startswith("-")}
            programs = frozenset().union(*(_SCRIPTS.get(name, {name}) for name in names))
            yield _Arrival(step, command, "~/.local/bin", programs)


def _by_user_scheme(view: StageView) -> Iterator[_Arrival]:
    """`pip install --user`, and pip of a user who may not write into the Python of the system."""
    if "PYTHONUSERBASE" in view.variables or "VIRTUAL_ENV" in view.variables:
        return
    for by in view.commands_of_pip:
        if by.tool != "pip" or not _is_user_scheme(view, by):
            continue
        names = {spec.name for spec in view.specs_by(by)}
        names |= {"torch"} if names & {"torchvision", "accelerate", "lightning"} else set()
        elsewhere = {package.spec.name for package in view.installed if not _is_user_scheme(view, package.by)}
        programs = frozenset().union(*(_SCRIPTS.get(name, set()) for name in names - elsewhere))
        if view.base.family in ("pytorch", "conda"):
            programs -= {"torchrun"}
        if programs:
            yield _Arrival(by.instruction, by.command, "~/.local/bin", programs)


def _is_user_scheme(view: StageView, by: PipInstall) -> bool:
    if by.values("target", "prefix", "root") or "/" in by.program[0].text:
        return False
    if "--user" in by.flags:
        return True
    path = view.docker.variables(view.stage, by.instruction.first).get("PATH", "")
    texts = [" ".join(command.texts) for step in view.steps for command in step.commands]
    own = re.compile(r"venv|activate|pyenv|sudo|^ch(?:own|mod)\b.*\s/(?:usr|opt)?(?:/|\s|$)")
    if view.has_conda or re.search(r"venv|/env/", path) or any(own.search(text) for text in texts):
        return False
    return not is_root_at(view, by.instruction)


def _first_call(view: StageView, arrival: _Arrival) -> tuple[Instruction, list[str]] | None:
    """The first command behind the arrival that names one of its programs without a path to it."""
    if _is_copied_over(view, arrival):
        return None
    for step in view.stage.instructions:
        is_start = step.word in ("CMD", "ENTRYPOINT")
        if step.first < arrival.step.first or not (step.word == "RUN" or (is_start and view.is_last)):
            continue
        line = None if is_start else step.first
        path = view.docker.variables(view.stage, line).get("PATH", "")
        is_behind = step is not arrival.step
        for command in commands_of(step):
            if not is_behind:
                is_behind = command is arrival.command
                continue
            if step is arrival.step and command.texts[0] in _RUN_INSTALLER:
                continue
            if _makes_reachable(command, arrival):
                return None
            if program_of(command) not in arrival.programs or id(command) in conditional_commands(step):
                continue
            if "||" in " ".join(step.values) or _is_on(path, arrival.folder):
                return None
            return step, _called(command)
    return None


def _called(command: Command) -> list[str]:
    """The words of a command without the assignments and wrappers before its program."""
    argv = list(command.texts)
    while argv and re.match(r"^\w+=|^(?:sudo|exec|env)$", argv[0]):
        argv.pop(0)
    return argv


def _is_on(path: str, folder: str) -> bool:
    """An entry of PATH is that folder, or one that cannot be followed."""
    entries = [entry.strip("\"'").rstrip("/") for entry in path.split(":")]
    if not folder.startswith("~"):
        return folder in entries or any(re.search(r"\$(?!\{?PATH)", entry) for entry in entries)
    hidden = folder.split("/")[1]  # .local, .cargo
    return any(
        f"/{hidden}/" in f"{entry}/" or re.search(r"\$(?!\{?PATH)|~|\.cargo", entry) for entry in entries
    )


_SOURCES = re.compile(r"^(?:\.|source|export|alias|eval)$")


def _makes_reachable(command: Command, arrival: _Arrival) -> bool:
    """It reads a profile, sets PATH, links or copies the program, or installs it by another tool."""
    argv = command.texts
    text = " ".join(argv)
    if (_SOURCES.match(argv[0]) and re.search(r"PATH|env|profile|bashrc|activate|init", text)) or (
        argv[0].startswith("PATH=")
    ):
        return True
    if argv[0] in ("ln", "cp", "mv", "install", "update-alternatives"):
        names = "|".join(map(re.escape, arrival.programs))
        return (
            re.search(rf"(?:^|/|\b)(?:{names})\b|{re.escape(arrival.folder.removeprefix('~/'))}", text)
            is not None
        )
    if re.search(r"(?:^|/)(?:ba|z)?sh$", argv[0]) and any(re.match(r"^-\w*[li]", word) for word in argv[1:]):
        return True
    if "install" in argv and argv[0] != "pipx":
        behind = {re.split(r"[\[=<>~!]", word)[0] for word in argv[argv.index("install") + 1 :]}
        return bool(behind & arrival.programs)
    return False


def _is_copied_over(view: StageView, arrival: _Arrival) -> bool:
    """COPY --from brings a program of that name into a folder of the system."""
    for step in view.steps:
        if step.word != "COPY" or step.flag("from") is None or len(step.values) < 2:
            continue
        goal = substituted(step.values[-1], view.variables).rstrip("/")
        names = {posixpath.basename(value) for value in step.values[:-1]}
        in_system = (
            goal in _SYSTEM_FOLDERS or posixpath.dirname(goal) in _SYSTEM_FOLDERS or goal == "/usr/local"
        )
        if in_system and (names & arrival.programs or goal == "/usr/local" or "bin" in names):
            return True
    return False


RULES = (not_on_path,)

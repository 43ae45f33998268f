"""Rules about the Python that runs: the environment with the packages is not the one that starts (40).

An environment is named by its folder (`/opt/venv`), by `conda:NAME`, or by `system` for the Python of the
base. Packages are installed into some; the command of the container runs one. The rule reports only where
exactly one environment has packages and another, empty one is run.
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline.images.lint.dockerfile import Instruction, substituted
from paceline.images.lint.installs import PipInstall, conditional_commands
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.container.start import argv_of, last_start
from paceline.images.lint.rules.paths import joined
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

OTHER = Pattern(
    number=40,
    id="other-environment",
    what="The packages are installed into one Python environment, and the container runs another.",
    fix="only reported: the environment's bin folder on PATH, or its own Python",
)
NO_VENV = Pattern(
    number=40,
    id="venv-fails",
    what="Debian's and Ubuntu's Python cannot create a virtual environment without the package python3-venv.",
    fix="only reported: python3-venv",
)
PATTERNS = (OTHER, NO_VENV)
TOOLS = frozenset(
    [
        "pip",
        "setuptools",
        "wheel",
        "uv",
        "poetry",
        "pipx",
        "virtualenv",
        "ninja",
        "packaging",
        "pip-tools",
        "pipenv",
        "hatch",
        "cmake",
    ]
)
LAUNCHED = re.compile(
    r"^(?:python(?:3(?:\.\d+)?)?|torchrun|accelerate|deepspeed|tensorboard|uvicorn|gunicorn|jupyter|mlflow)$"
)
KNOWN = ("python", "debian", "ubuntu", "cuda")


@dataclass(slots=True)
class _State:
    venvs: dict[str, bool] = field(default_factory=dict)  # folder: has its own pip
    filled: dict[str, Instruction] = field(default_factory=dict)  # environment: the step that installs
    folder: str | None = "/"


def _environments(view: StageView) -> _State | None:
    """Environments that the steps create and fill; None if a step cannot be followed."""
    state = _State(folder="/workspace" if view.base.family == "pytorch" else "/")
    for step in view.steps:
        values = view.docker.variables(view.stage, step.first)
        if step.word == "WORKDIR" and step.values:
            state.folder = joined(state.folder, substituted(step.values[0].strip("\"'"), values))
        elif step.word == "COPY" and step.flag("from") is not None and len(step.values) == 2:
            goal = joined(state.folder, step.values[1])
            is_venv = re.search(r"venv|/env$", step.values[0]) is not None
            if goal is None or re.match(r"^/(?:usr|root)", goal):
                return None if not re.search(r"/uvx?$", step.values[0]) else state
            if is_venv:
                state.venvs[goal] = True
                state.filled.setdefault(goal, step)
        elif step.word == "RUN" and not _follow(view, step, state, values):
            return None
    return state


def _follow(view: StageView, step: Instruction, state: _State, values: dict[str, str]) -> bool:
    """Add what a RUN makes and fills; False where it cannot be determined."""
    conditional = conditional_commands(step)
    active = ""
    cwd = state.folder
    if step.is_json or "<<" in (step.values[0] if step.values else ""):
        return False
    for command in step.commands:
        argv = [substituted(word, values) for word in command.texts]
        if any(
            word.endswith((".sh", "bashrc", "profile")) and word != "install.sh" for word in argv
        ) and argv[0] in ("bash", "sh", ".", "source"):
            return False
        if argv[0] in (".", "source") and len(argv) > 1 and argv[1].endswith("bin/activate"):
            active = joined(cwd, argv[1].removesuffix("/bin/activate")) or ""
        if argv[0] == "cd":
            cwd = joined(cwd, argv[1]) if len(argv) == 2 else None
        created = _made_by(argv)
        if created is not None:
            path, has_pip = created
            folder = joined(cwd, path)
            if folder is None:
                return False
            state.venvs[folder] = has_pip
        by = next((install for install in view.commands_of_pip if install.command is command), None)
        if by is not None and id(command) not in conditional:
            target = _target(view, by, state, active, values, cwd)
            if target is None:
                return False
            names = {spec.name for spec in view.specs_by(by)}
            if not names or names - TOOLS:
                state.filled.setdefault(target, step)
    return True


def _made_by(argv: list[str]) -> tuple[str, bool] | None:
    plain = [word for word in argv if not word.startswith("-")]
    if "venv" in argv[:4] and re.search(r"python[\d.]*$", argv[0]):
        return (plain[-1], "--without-pip" not in argv) if plain[-1] != "venv" else None
    if argv[0].endswith("virtualenv") and len(plain) > 1:
        return plain[-1], True
    if argv[:2] == ["uv", "venv"]:
        named = [
            w
            for n, w in enumerate(argv[2:], 2)
            if not w.startswith("-") and argv[n - 1] not in ("--python", "-p", "--prompt")
        ]
        return (named[0] if named else ".venv"), "--seed" in argv
    return None


def _on_path(path: str, state: _State) -> str:
    """The first folder of PATH that is an environment; "" where none is."""
    for entry in path.split(":"):
        folder = entry.rstrip("/").removesuffix("/bin")
        if folder in state.venvs:
            return folder
    return ""


def _target(
    view: StageView, by: PipInstall, state: _State, active: str, values: dict[str, str], cwd: str | None
) -> str | None:
    """The environment that a command installs into; None where it cannot be determined."""
    path = values.get("PATH", "")
    program = substituted(by.program[0].text, values)
    if by.values("target", "prefix", "root", "python") or "--user" in by.flags:
        return "elsewhere"
    is_conda = by.command.words[0].text in ("conda", "mamba", "micromamba") or view.has_conda
    if is_conda or by.tool in ("pdm", "pipenv"):
        return None
    if by.tool == "poetry":
        return _poetry_target(view, state, active or values.get("VIRTUAL_ENV", ""), values, cwd)
    if "/bin/" in program and program.startswith("/"):
        folder = program.partition("/bin/")[0]
        return folder if folder in state.venvs else "system"
    if by.tool == "uv sync":
        chosen = values.get("UV_PROJECT_ENVIRONMENT", ".venv")
        inside = joined(cwd, chosen)
        if inside is None or values.get("UV_SYSTEM_PYTHON") or "--active" in by.flags:
            return None
        state.venvs.setdefault(inside, False)
        return inside if not re.match(r"^/usr", inside) else "system"
    if by.is_uv:
        if "--system" in by.flags or "UV_SYSTEM_PYTHON" in values:
            return "system"
        chosen = active or values.get("VIRTUAL_ENV", "") or _on_path(path, state)
        local_venv = joined(cwd, ".venv")
        return chosen or (local_venv if local_venv in state.venvs else None)
    environment = active or _on_path(path, state)
    return environment if environment and state.venvs.get(environment, True) else "system"


def _poetry_target(
    view: StageView, state: _State, chosen: str, values: dict[str, str], cwd: str | None
) -> str | None:
    """poetry creates an environment, unless one is active or its configuration disables it."""
    match = " ".join(view.words)
    if (
        chosen
        or _on_path(values.get("PATH", ""), state)
        or any("poetry.toml" in v for v in view.project.names)
    ):
        return None
    off = re.search(r"virtualenvs\.create false", match) or values.get("POETRY_VIRTUALENVS_CREATE") in (
        "false",
        "0",
    )
    if off:
        return "system"
    inside = "in-project true" in match or values.get("POETRY_VIRTUALENVS_IN_PROJECT") in ("true", "1")
    folder = joined(cwd, ".venv") if inside else "/root/.cache/pypoetry/virtualenvs"
    if folder is None or "virtualenvs.path" in match or "POETRY_VIRTUALENVS_PATH" in values:
        return None
    state.venvs.setdefault(folder, True)
    return folder


def other_environment(view: StageView) -> Iterator[Finding]:
    if not view.is_last or view.base.family not in (*KNOWN, "pytorch") or view.has_conda:
        return
    steps = last_start(view)
    step = steps.get("ENTRYPOINT") or steps.get("CMD")
    state = _environments(view)
    if step is None or state is None or not step.values or id(step) not in view.own_steps:
        return
    argv = argv_of(step)
    while argv and re.search(r"(?:^|/)(?:tini|dumb-init|exec|env|--)$|^-", argv[0]):
        argv = argv[1:]
    run = _run_by(view, argv[0] if argv else "", state)
    filled = {name: at for name, at in state.filled.items() if name != "elsewhere"}
    if (
        run is None
        or len(filled) != 1
        or run in filled
        or (run == "system" and view.base.family == "pytorch")
    ):
        return
    name, at = next(iter(filled.items()))
    where = "the Python of the base" if name == "system" else name
    runs = "the Python of the base" if run == "system" else run
    yield OTHER.finding(
        view,
        step,
        f"line {at.first} installs into {where}, and the container runs {runs}: `No module named …`",
        f"{step.word} {' '.join(argv_of(step))}"[:120],
        f"write ENV PATH={name}/bin:$PATH"
        if name.startswith("/")
        else "install with the pip of the environment that runs",
    )


def _run_by(view: StageView, program: str, state: _State) -> str | None:
    """The environment of a program; None where it is no Python, or cannot be determined."""
    name = posixpath.basename(program)
    if not LAUNCHED.match(name):
        return None
    if program.startswith("/"):
        folder = program.partition("/bin/")[0]
        if folder in state.venvs:
            return folder
        if folder == "/usr" and view.base.family == "python":
            return "/usr/bin/python3 of Debian"
        return "system" if folder in ("/usr", "/usr/local") else None
    if "/" in program:
        near = joined(state.folder, program.partition("/bin/")[0])
        return near if near in state.venvs else None
    exact = re.fullmatch(r"python(3\.\d+)", name)
    if (
        exact is not None
        and exact[1] != view.base.python
        and not _on_path(view.variables.get("PATH", ""), state)
    ):
        linked = re.search(r"update-alternatives|ensurepip|get-pip|ln -s", " ".join(view.words))
        own = any(re.search(rf"python{re.escape(exact[1])}$", by.program[0].text) for by in view.pip)
        return None if linked or own or view.base.family not in ("cuda", "ubuntu", "debian") else name
    return _on_path(view.variables.get("PATH", ""), state) or "system"


def unused_target(view: StageView) -> Iterator[Finding]:
    """`pip install --target DIR` where nothing puts DIR on the path of imports."""
    if not view.is_last or view.base.family not in (*KNOWN, "pytorch"):
        return
    for by in view.commands_of_pip:
        folder = next(iter(by.values("target")), "").rstrip("/")
        text = " ".join(v for s in view.steps for v in s.values if s is not by.instruction)
        if not folder.startswith("/") or "packages" in folder or "$" in folder or not by.is_pip:
            continue
        workdirs = [s.values[0] for s in view.steps if s.word == "WORKDIR" and s.values]
        if folder not in text and folder not in workdirs[-1:]:
            yield OTHER.finding(
                view,
                by.instruction,
                f"the packages are in {folder}, which Python does not search: `No module named …`",
                " ".join(by.command.texts[:8]),
                f"write ENV PYTHONPATH={folder}, or leave --target out",
            )


def venv_fails(view: StageView) -> Iterator[Finding]:
    if view.base.family not in ("debian", "ubuntu", "cuda") or not view.are_packages_known or view.has_conda:
        return
    installed = view.system_packages
    if any(re.search(r"-venv$|-full$|virtualenv", name) for name in installed):
        return
    if any(s.word in ("COPY", "ADD") and s.flag("from") for s in view.steps) or re.search(
        r"Python-3|pyenv|altinstall", " ".join(view.words)
    ):
        return
    for step in view.stage.instructions:
        for command in step.commands:
            argv = command.texts
            if (
                re.fullmatch(r"python3?(?:\.\d+)?", argv[0])
                and argv[1:3] == ("-m", "venv")
                and "--without-pip" not in argv
            ):
                yield NO_VENV.finding(
                    view,
                    step,
                    f"{view.base.reference} has Python's venv in a separate package: `ensurepip is not "
                    "available`",
                    " ".join(argv[:5]),
                    "install python3-venv before it",
                )
                return


RULES = (venv_fails, other_environment, unused_target)

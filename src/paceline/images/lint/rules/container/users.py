"""Rules about the user that a step or the container runs as: accounts, owners, homes (37)."""

import posixpath
import re
from collections.abc import Iterator

from paceline.images.lint.dockerfile import Command, Instruction, env_values, substituted
from paceline.images.lint.edits import is_root_at
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.programs import NO_USER
from paceline.images.lint.view import StageView

DENIED = Pattern(
    number=37,
    id="permission-denied",
    what="A step or the program runs as another user than root, and writes to a folder of root.",
    fix="only reported: before USER, or a folder that belongs to that user",
)
PATTERNS = (DENIED,)
_FAMILIES = ("python", "debian", "ubuntu", "cuda", "pytorch")
_OF_THE_SYSTEM = frozenset(
    [
        "root",
        "daemon",
        "bin",
        "sys",
        "sync",
        "games",
        "man",
        "lp",
        "mail",
        "news",
        "uucp",
        "proxy",
        "www-data",
        "backup",
        "list",
        "irc",
        "gnats",
        "nobody",
        "_apt",
        "ubuntu",
        "users",
        "staff",
    ]
)
_CREATES = re.compile(r"(?:^|/)(?:useradd|adduser|addgroup|groupadd|usermod|newusers)$")
_CACHES = frozenset(
    [
        "HF_HOME",
        "TRANSFORMERS_CACHE",
        "HF_DATASETS_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "TORCH_HOME",
        "XDG_CACHE_HOME",
        "WANDB_DIR",
        "MPLCONFIGDIR",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "NUMBA_CACHE_DIR",
        "WANDB_CACHE_DIR",
    ]
)


def _accounts(commands: list[Command], values: dict[str, str]) -> set[str] | None:
    """Names of users and groups that commands create; None where a name is not known."""
    names: set[str] = set()
    for command in commands:
        argv = [substituted(word, values) for word in command.texts]
        at = next((n for n, word in enumerate(argv[:4]) if _CREATES.search(word)), None)
        if at is None:
            continue
        if any("$" in word or "`" in word for word in argv[at:]):
            return None
        names |= {
            word.partition(":")[0] for word in argv[at + 1 :] if re.fullmatch(r"[a-z_][\w.-]*:?\S*", word)
        }
    return names


def _is_opaque(view: StageView) -> bool:
    copies = any(
        s.word in ("COPY", "ADD") and s.values and re.search(r"^/etc|^/$", s.values[-1]) for s in view.steps
    )
    return (
        copies
        or re.search(r"/etc/passwd|/etc/group|\.sh\b|getent|usermod -l|<<", " ".join(view.words)) is not None
    )


def unknown_account(view: StageView) -> Iterator[Finding]:
    """USER and --chown before the account exists, or by another name than it has."""
    if view.base.family not in _FAMILIES or view.base.system == "alpine" or _is_opaque(view):
        return
    known = set(_OF_THE_SYSTEM)
    for step in view.steps:
        values = view.docker.variables(view.stage, step.first)
        created = _accounts(list(step.commands), values)
        if created is None or any(
            name in view.system_packages for name in ("openssh-server", "postgresql", "nginx")
        ):
            return
        known |= created
        accounts = _accounts_used(step, values)
        bad = next((name for name in accounts if name not in known), None)
        if bad is None or id(step) not in view.own_steps:
            continue
        # If no step creates users, the rule about USER has reported it.
        if step.word == "USER" and not re.search(r"useradd|adduser", " ".join(view.words)):
            continue
        yield NO_USER.finding(
            view,
            step,
            f"there is no user or group {bad} at this point: `unable to find user {bad}`",
            f"{step.word} {' '.join([*step.flags, *step.values])}"[:120],
            f"create {bad} in a step above this one, or use the name of an existing one",
        )
        return


def _accounts_used(step: Instruction, values: dict[str, str]) -> list[str]:
    account = step.values[0] if step.word == "USER" and step.values else step.flag("chown") or ""
    if step.word not in ("USER", "COPY", "ADD"):
        return []
    names = substituted(account, values).strip("\"'").split(":")
    return [name for name in names if name and not name.isdigit() and "$" not in name]


def _user_at_end(view: StageView) -> str:
    users = [step.values[0] for step in view.steps if step.word == "USER" and step.values]
    name = substituted(users[-1], view.variables).partition(":")[0] if users else "root"
    return "root" if name in ("root", "0") else name


def denied_in_build(view: StageView) -> Iterator[Finding]:
    """`mkdir /data`, `pip install` into root's environment, behind USER."""
    if view.base.family not in _FAMILIES:
        return
    opened = " ".join(
        " ".join(c.texts)
        for s in view.steps
        for c in s.commands
        if c.texts[0] in ("chown", "chmod", "install")
    )
    chowned = any(step.flag("chown") is not None for step in view.steps)
    folders = {
        s.values[0].rstrip("/")
        for s in view.steps
        if s.word == "WORKDIR" and s.values and is_root_at(view, s) and not s.values[0].startswith("/home")
    }
    folders = {folder for folder in folders if folder.startswith("/") and folder not in opened}
    venvs = {word for s in view.steps if is_root_at(view, s) for c in s.commands for word in _venvs(c)}
    for step in view.stage.instructions:
        if step.word != "RUN" or is_root_at(view, step) or not step.values or "||" in step.values[0]:
            continue
        conditional = conditional_commands(step)
        for command in step.commands:
            argv = command.texts
            if id(command) in conditional or "sudo" in argv:
                continue
            bad = ""
            if argv[0] == "mkdir":
                bad = next(
                    (w for w in argv[1:] if _is_roots(w, folders)),
                    "",
                )
            by = next((install for install in view.pip if install.command is command), None)
            path = view.docker.variables(view.stage, step.first).get("PATH", "")
            if (
                by is not None
                and by.tool == "pip"
                and not by.values("target", "prefix")
                and not by.flags & {"--user"}
            ):
                first = path.partition(":")[0].removesuffix("/bin")
                bad = first if first in venvs and first not in opened and not chowned else bad
            if not bad or (bad.rstrip("/") in opened):
                continue
            yield DENIED.finding(
                view,
                step,
                f"{bad} belongs to root, and this step runs as another user: `Permission denied`",
                " ".join(argv[:6]),
                "run it above USER, or change the owner of the folder",
            )
            return


def _is_roots(path: str, folders: set[str]) -> bool:
    """A folder at the top, or directly in a working folder that root has made."""
    at_top = re.fullmatch(r"/[\w.-]+/?", path) is not None and path.strip("/") != "tmp"
    return at_top or (path.startswith("/") and posixpath.dirname(path.rstrip("/")) in folders)


def _venvs(command: Command) -> list[str]:
    argv = command.texts
    return [argv[-1]] if "venv" in argv[:4] or argv[0].endswith("virtualenv") else []


def home_of_root(view: StageView) -> Iterator[Finding]:
    """Caches and packages below /root, which another user may not enter."""
    if not view.is_last or _user_at_end(view) == "root" or view.base.family not in (*_FAMILIES, "conda"):
        return
    opened = any(
        re.search(r"ch(?:mod|own)\b.*\s/root", " ".join(c.texts)) for s in view.steps for c in s.commands
    )
    if opened:
        return
    for step in view.stage.instructions:
        values = env_values(step) if step.word == "ENV" else {}
        for name, value in values.items():
            if name in _CACHES and value.strip("\"'").startswith("/root/"):
                yield DENIED.finding(
                    view,
                    step,
                    f"{name} is below /root, and the container runs as {_user_at_end(view)}: `Permission "
                    "denied`",
                    f"ENV {name}={value}; USER {_user_at_end(view)}",
                    f"set {name} to a folder of that user",
                )
                return
        if step.word == "COPY" and step.flag("from") and step.values[-1].startswith("/root/.local"):
            yield _user_packages(view, step)
            return
    for by in view.commands_of_pip:
        if "--user" in by.flags and is_root_at(view, by.instruction) and by.tool == "pip":
            yield _user_packages(view, by.instruction)
            return


def _user_packages(view: StageView, step: Instruction) -> Finding:
    return DENIED.finding(
        view,
        step,
        f"the packages are in /root/.local, and the container runs as {_user_at_end(view)}: `No module "
        "named …`",
        f"{step.word} {' '.join(step.values)}"[:120],
        "install them without --user, or into a virtual environment",
    )


RULES = (unknown_account, denied_in_build, home_of_root)

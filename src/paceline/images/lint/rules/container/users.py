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
from paceline.images.lint.view import Place

DENIED = Pattern(
    number=37,
    id="permission-denied",
    what="A step or the program runs as another user than root, and writes where only root may.",
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
    found: set[str] = set()
    for command in commands:
        words = [substituted(word, values) for word in command.texts]
        at = next((n for n, word in enumerate(words[:4]) if _CREATES.search(word)), None)
        if at is None:
            continue
        if any("$" in word or "`" in word for word in words[at:]):
            return None
        found |= {
            word.partition(":")[0] for word in words[at + 1 :] if re.fullmatch(r"[a-z_][\w.-]*:?\S*", word)
        }
    return found


def _is_opaque(place: Place) -> bool:
    copies = any(
        s.word in ("COPY", "ADD") and s.values and re.search(r"^/etc|^/$", s.values[-1]) for s in place.steps
    )
    return (
        copies
        or re.search(r"/etc/passwd|/etc/group|\.sh\b|getent|usermod -l|<<", " ".join(place.words)) is not None
    )


def unknown_account(place: Place) -> Iterator[Finding]:
    """USER and --chown before the account exists, or by another name than it has."""
    if place.base.family not in _FAMILIES or place.base.system == "alpine" or _is_opaque(place):
        return
    known = set(_OF_THE_SYSTEM)
    for step in place.steps:
        values = place.docker.variables(place.stage, step.first)
        created = _accounts(list(step.commands), values)
        if created is None or any(
            name in place.system_packages for name in ("openssh-server", "postgresql", "nginx")
        ):
            return
        known |= created
        wanted = _wanted(step, values)
        bad = next((name for name in wanted if name not in known), None)
        if bad is None or id(step) not in place.own_steps:
            continue
        # Where nothing at all creates users, the older rule about USER has reported it.
        if step.word == "USER" and not re.search(r"useradd|adduser", " ".join(place.words)):
            continue
        yield NO_USER.found(
            place,
            step,
            f"there is no user or group {bad} at this point: `unable to find user {bad}`",
            f"{step.word} {' '.join([*step.flags, *step.values])}"[:120],
            f"create {bad} in a step above this one, or use the name of the one that is created",
        )
        return


def _wanted(step: Instruction, values: dict[str, str]) -> list[str]:
    said = step.values[0] if step.word == "USER" and step.values else step.flag("chown") or ""
    if step.word not in ("USER", "COPY", "ADD"):
        return []
    names = substituted(said, values).strip("\"'").split(":")
    return [name for name in names if name and not name.isdigit() and "$" not in name]


def _user_at_end(place: Place) -> str:
    users = [step.values[0] for step in place.steps if step.word == "USER" and step.values]
    name = substituted(users[-1], place.variables).partition(":")[0] if users else "root"
    return "root" if name in ("root", "0") else name


def denied_in_build(place: Place) -> Iterator[Finding]:
    """`mkdir /data`, `pip install` into root's environment, behind USER."""
    if place.base.family not in _FAMILIES:
        return
    opened = " ".join(
        " ".join(c.texts)
        for s in place.steps
        for c in s.commands
        if c.texts[0] in ("chown", "chmod", "install")
    )
    chowned = any(step.flag("chown") is not None for step in place.steps)
    folders = {
        s.values[0].rstrip("/")
        for s in place.steps
        if s.word == "WORKDIR" and s.values and is_root_at(place, s) and not s.values[0].startswith("/home")
    }
    folders = {one for one in folders if one.startswith("/") and one not in opened}
    made = {word for s in place.steps if is_root_at(place, s) for c in s.commands for word in _venvs(c)}
    for step in place.stage.instructions:
        if step.word != "RUN" or is_root_at(place, step) or not step.values or "||" in step.values[0]:
            continue
        maybe = conditional_commands(step)
        for command in step.commands:
            words = command.texts
            if id(command) in maybe or "sudo" in words:
                continue
            bad = ""
            if words[0] == "mkdir":
                bad = next(
                    (w for w in words[1:] if _is_roots(w, folders)),
                    "",
                )
            by = next((one for one in place.pip if one.command is command), None)
            path = place.docker.variables(place.stage, step.first).get("PATH", "")
            if (
                by is not None
                and by.tool == "pip"
                and not by.values("target", "prefix")
                and not by.flags & {"--user"}
            ):
                first = path.partition(":")[0].removesuffix("/bin")
                bad = first if first in made and first not in opened and not chowned else bad
            if not bad or (bad.rstrip("/") in opened):
                continue
            yield DENIED.found(
                place,
                step,
                f"{bad} belongs to root, and this step runs as another user: `Permission denied`",
                " ".join(words[:6]),
                "run it above USER, or give the folder to that user",
            )
            return


def _is_roots(path: str, folders: set[str]) -> bool:
    """A folder at the top, or directly in a working folder that root has made."""
    at_top = re.fullmatch(r"/[\w.-]+/?", path) is not None and path.strip("/") != "tmp"
    return at_top or (path.startswith("/") and posixpath.dirname(path.rstrip("/")) in folders)


def _venvs(command: Command) -> list[str]:
    words = command.texts
    return [words[-1]] if "venv" in words[:4] or words[0].endswith("virtualenv") else []


def home_of_root(place: Place) -> Iterator[Finding]:
    """Caches and packages below /root, which another user may not enter."""
    if not place.is_last or _user_at_end(place) == "root" or place.base.family not in (*_FAMILIES, "conda"):
        return
    opened = any(
        re.search(r"ch(?:mod|own)\b.*\s/root", " ".join(c.texts)) for s in place.steps for c in s.commands
    )
    if opened:
        return
    for step in place.stage.instructions:
        values = env_values(step) if step.word == "ENV" else {}
        for name, value in values.items():
            if name in _CACHES and value.strip("\"'").startswith("/root/"):
                yield DENIED.found(
                    place,
                    step,
                    f"{name} is below /root, and the container runs as {_user_at_end(place)}: `Permission "
                    "denied`",
                    f"ENV {name}={value}; USER {_user_at_end(place)}",
                    f"put {name} into a folder of that user",
                )
                return
        if step.word == "COPY" and step.flag("from") and step.values[-1].startswith("/root/.local"):
            yield _user_packages(place, step)
            return
    for by in place.commands_of_pip:
        if "--user" in by.flags and is_root_at(place, by.instruction) and by.tool == "pip":
            yield _user_packages(place, by.instruction)
            return


def _user_packages(place: Place, step: Instruction) -> Finding:
    return DENIED.found(
        place,
        step,
        f"the packages lie in /root/.local, and the container runs as {_user_at_end(place)}: `No module "
        "named …`",
        f"{step.word} {' '.join(step.values)}"[:120],
        "install them without --user, or into a virtual environment",
    )


RULES = (unknown_account, denied_in_build, home_of_root)

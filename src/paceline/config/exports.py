"""What does `--export mlflow=http://tracking:5000` mean? Text to targets.

`tensorboard[=FOLDER]`, `mlflow[=ADDRESS]`, `wandb[=offline|online]`. Nothing
secret may be written here: it would stay in plan.json. Keys and passwords are
read from the environment, by the vendors' own code.
"""

from pathlib import Path
from urllib.parse import urlsplit

from paceline.config.export_target import ExportKind, ExportTarget
from paceline.config.nearest import did_you_mean
from paceline.config.values import Raw, Unreadable, read_text, shown
from paceline.errors import ConfigError, Problem

_EXAMPLE = "write for example tensorboard, mlflow=http://127.0.0.1:5000 or wandb=offline"
_WANDB_MODES = ("offline", "online")


def read_export(raw: Raw, *, where: str | None, folder: Path) -> tuple[ExportTarget, ...]:
    """The target of one entry. Raises ConfigError."""
    try:
        text = read_text(raw)
    except Unreadable as error:
        raise ConfigError([Problem(f"export is {shown(raw)}, but {error.why}", _EXAMPLE, where)]) from error
    name, equals, rest = text.partition("=")
    name, rest = name.strip().lower(), rest.strip()
    if name not in list(ExportKind):
        hint = did_you_mean(name, ExportKind, otherwise=f"exports are {', '.join(ExportKind)}; {_EXAMPLE}")
        raise ConfigError([Problem(f"there is no export {shown(name)}", hint, where)])
    if equals and not rest:
        what = f"export {shown(text)} says nothing behind its ="
        raise ConfigError([Problem(what, f"leave the = out, or {_EXAMPLE}", where)])
    return (ExportTarget(kind=ExportKind(name), where=_place(ExportKind(name), rest, where, folder)),)


def _place(kind: ExportKind, text: str, where: str | None, folder: Path) -> str | None:
    if not text:
        return None
    match kind:
        case ExportKind.TENSORBOARD:
            return str(folder / text)
        case ExportKind.WANDB if text.lower() in _WANDB_MODES:
            return text.lower()
        case ExportKind.WANDB:
            what = f"export wandb is {shown(text)}, but it must be offline or online"
            raise ConfigError([Problem(what, "write wandb=offline; WANDB_PROJECT names a project", where)])
        case ExportKind.MLFLOW:
            return _address(text, where, folder)


def _address(text: str, where: str | None, folder: Path) -> str:
    if ":" not in text:
        return str(folder / text)
    try:
        has_secret = urlsplit(text).password is not None or "@" in urlsplit(text).netloc
    except ValueError as error:
        what = f"export mlflow is {shown(text)}, which is no address: {error}"
        raise ConfigError([Problem(what, _EXAMPLE, where)]) from error
    if has_secret:
        # The value is not shown: what is printed is kept in logs.
        what = "export mlflow names a user or a password, which would stay in plan.json"
        hint = "leave them out of the address, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise ConfigError(
            [Problem(what, f"{hint}; or set MLFLOW_TRACKING_URI and write mlflow alone", where)]
        )
    return text

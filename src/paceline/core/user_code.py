"""Frames of the user's own code in an error: its file and line, and the error in one line.

An error in a task, a model or a script is raised below frames of Paceline and of libraries, which say nothing
to the user. What is installed as a package counts as the user's only if no other frame does. A file below the
working directory is shown relative to it, as the user would type it.
"""

import importlib.util
import sysconfig
import traceback
from pathlib import Path

_OURS = Path(__file__).parents[1]
_PATHS = sysconfig.get_paths()
_TORCH = importlib.util.find_spec("torch")
# Where code is that no user of ours has written, with the packages that people install, and without.
_LIBRARIES = tuple(Path(_PATHS[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_STANDARD = (
    Path(_PATHS["stdlib"]),
    *(Path(folder) for folder in (_TORCH and _TORCH.submodule_search_locations) or ()),
)
MAX_FRAMES = 3


def in_one_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message, at most 500 characters.

    A KeyError of a user says only its key, so the kind always comes first.
    """
    if isinstance(error, SystemExit):
        return f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    first = next(iter(message.splitlines()), "")
    return f"{type(error).__name__}: {first}"[:500] if first else type(error).__name__


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the user's own code, the innermost last; empty if the error came about elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_in(frame.filename, (_OURS, *_LIBRARIES))]
    # A task may be installed as a package, too.
    return own or [frame for frame in frames if not _is_in(frame.filename, (_OURS, *_STANDARD))]


def raised_at(error: BaseException) -> str:
    """`my_task.py:33 in loss, called from my_task.py:12 in metrics`: the user's frames, innermost first."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = user_frames(error) or list(traceback.extract_tb(error.__traceback__)[-1:])
    named = [f"{_shown(frame.filename)}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
    return ", called from ".join(named[:MAX_FRAMES])


def _is_in(file: str, folders: tuple[Path, ...]) -> bool:
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in folders)


def _shown(file: str) -> str:
    path = Path(file)
    cwd = Path.cwd()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else file

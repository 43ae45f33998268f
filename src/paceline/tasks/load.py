"""Loading of tasks and of any class that a user names as `module:Class`.

Whatever goes wrong in a user's own module or class while it is loaded is an
OwnClassError that names the user's file and line; nothing else leaves here, so
the process that loads a class survives it.
"""

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path

import torch

from paceline.core.errors import OwnClassError, PacelineError, Problem
from paceline.plan.plan import Option
from paceline.tasks.port import Task

BUILT_IN = {
    "xor": "paceline.tasks.xor:XorTask",
    "digits": "paceline.tasks.digits:DigitsTask",
    "charlm": "paceline.tasks.charlm:CharlmTask",
    "sp500": "paceline.tasks.sp500.task:Sp500Task",
    "cifar10": "paceline.tasks.cifar10.task:Cifar10Task",
    "llama": "paceline.tasks.llama.task:LlamaTask",
}
_OURS = Path(__file__).parents[1]
_PATHS = sysconfig.get_paths()
# Where code is that no user of ours has written, with the packages that people install, and without.
_LIBRARIES = tuple(Path(_PATHS[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_STANDARD = (Path(_PATHS["stdlib"]), Path(torch.__file__).parent)
MAX_FRAMES = 3


def task_class(name: str) -> type:
    return load_class(BUILT_IN.get(name, name), noun="task")


def load_task(name: str, *, seed: int, options: Mapping[str, Option]) -> Task:
    kind = task_class(name)
    try:
        task: Task = kind(seed=seed, **options)
    except PacelineError:
        raise
    except (Exception, SystemExit) as error:
        hint = f"it was raised in {raised_at(error)}"
        if isinstance(error, TypeError) and not user_frames(error):  # the call itself did not fit
            hint = "a task is built as MyTask(seed=…, **task_options); check --task-option"
        message = f"task {name} cannot be built: {in_one_line(error)}"
        raise OwnClassError([Problem(message, hint)]) from error
    missing = [m for m in ("model", "samples", "loss", "metrics", "optimizer") if not hasattr(task, m)]
    if missing:
        raise OwnClassError(
            [
                Problem(
                    f"task {name} has no {', '.join(missing)}",
                    "a task has five methods; docs/guides/your-own-task.md shows a complete one",
                )
            ]
        )
    return task


def load_class(path: str, *, noun: str) -> type:
    """The class that `module:Class` names, with the working directory importable."""
    module_name, _, class_name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        hint = f"write --{noun} module:Class and run from the folder that holds module.py"
        if isinstance(error, SyntaxError) or user_frames(error):
            hint = f"it was raised in {raised_at(error)}"
        raise OwnClassError(
            [Problem(f"{noun} {path} cannot be loaded: {in_one_line(error)}", hint)]
        ) from error
    if not isinstance(loaded, type):
        raise OwnClassError(
            [Problem(f"{path} is of type {type(loaded).__name__}, not a class", f"name the {noun}'s class")]
        )
    return loaded


def in_one_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
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

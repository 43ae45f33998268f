"""Loading of tasks and of any class that a user names as `module:Class`.

Whatever goes wrong in a user's own module or class while it is loaded is an
OwnClassError that names the user's file and line; nothing else leaves here, so
the process that loads a class survives it.
"""

import importlib
import os
import sys
from collections.abc import Mapping

from paceline.core.errors import OwnClassError, PacelineError, Problem
from paceline.core.user_code import in_one_line, raised_at, user_frames
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

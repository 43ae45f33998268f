"""How is a task, or any class a user names as `module:Class`, found and built?"""

import importlib
import os
import sys
from collections.abc import Mapping

from paceline.errors import OwnClassError, Problem
from paceline.plan.plan import Option
from paceline.tasks.port import Task

BUILT_IN = {
    "xor": "paceline.tasks.xor:XorTask",
    "digits": "paceline.tasks.digits:DigitsTask",
    "charlm": "paceline.tasks.charlm:CharlmTask",
    "sp500": "paceline.tasks.sp500:Sp500Task",
    "cifar10": "paceline.tasks.cifar10:Cifar10Task",
    "llama": "paceline.tasks.llama:LlamaTask",
}


def task_class(name: str) -> type:
    return load_class(BUILT_IN.get(name, name), what="task")


def load_task(name: str, *, seed: int, options: Mapping[str, Option]) -> Task:
    try:
        task: Task = task_class(name)(seed=seed, **options)
    except TypeError as error:
        raise OwnClassError(
            [
                Problem(
                    f"task {name} cannot be built: {error}",
                    "a task is built as MyTask(seed=…, **task_options); check --task-option",
                )
            ]
        ) from error
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


def load_class(path: str, *, what: str) -> type:
    """The class that `module:Class` names, with the working directory importable."""
    module_name, _, class_name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise OwnClassError(
            [
                Problem(
                    f"{what} {path} cannot be loaded: {error}",
                    f"write --{what} module:Class and run from the folder that holds module.py",
                )
            ]
        ) from error
    if not isinstance(found, type):
        raise OwnClassError(
            [Problem(f"{path} is a {type(found).__name__}, not a class", f"name the {what}'s class")]
        )
    return found

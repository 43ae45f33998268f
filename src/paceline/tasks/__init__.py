"""What is trained: the task port, the built-in tasks, and how a user's own is found.

`from_torch` makes a task of functions; it is loaded when it is first used, because it imports torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.tasks.functions import from_torch as from_torch


def __getattr__(name: str) -> object:
    if name != "from_torch":
        raise AttributeError(f"module 'paceline.tasks' has no attribute {name!r}")
    from paceline.tasks import functions  # imports torch

    return functions.from_torch

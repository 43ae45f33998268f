"""Loaders: the strategy class of a built-in mode, and a user's function named `module:function`."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from paceline.core.errors import OwnClassError, Problem
from paceline.plan.catalog import MODES


def builtin_strategy(mode: str) -> type | None:
    """The class of a built-in mode: `ssgd` is `Ssgd` in strategies/ssgd.py."""
    if mode not in MODES:
        return None
    strategy = getattr(importlib.import_module(MODES[mode].implementation), mode.capitalize())
    assert isinstance(strategy, type), f"strategies/{mode}.py defines a class"
    return strategy


def load_function(path: str, *, noun: str) -> Callable[..., Any]:  # Any: the caller checks what it returns
    """The function that `module:function` names, with the working directory importable."""
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        problem = Problem(
            f"{noun} {path} cannot be loaded: {error}",
            f"write --{noun} module:function and run from the folder that holds module.py",
        )
        raise OwnClassError([problem]) from error
    if not callable(function):
        raise OwnClassError(
            [
                Problem(
                    f"{path} is of type {type(function).__name__}, not a function",
                    f"name the {noun}'s function",
                )
            ]
        )
    return function  # type: ignore[no-any-return]  # callable is all that is known of the user's object

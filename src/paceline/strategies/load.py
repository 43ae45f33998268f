"""How is the class of a mode found? By the catalog's name, or as `module:Class`."""

import importlib

from paceline.plan.catalog import MODES


def built_in(mode: str) -> type | None:
    """The class of a built-in mode: `ssgd` is `Ssgd` in strategies/ssgd.py."""
    if mode not in MODES:
        return None
    found = getattr(importlib.import_module(MODES[mode].implementation), mode.capitalize())
    assert isinstance(found, type), f"strategies/{mode}.py defines a class"
    return found

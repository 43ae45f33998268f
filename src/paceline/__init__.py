"""Paceline: train one task with many workers, and measure which synchronization strategy pays off.

    import paceline
    result = paceline.train("digits", mode="ssgd", workers=2, steps=200)

Importing this package never imports torch, so that `paceline --help` is fast:
each name is loaded when it is first used. Their types are in `__init__.pyi`.
"""

import importlib

__version__ = "0.1.0"

# name: the module that defines it
_PUBLIC = {
    "train": "paceline.api.train",
    "resume": "paceline.api.train",
    "run": "paceline.api.run",
    "compare": "paceline.api.compare",
    "join": "paceline.worker.script.run",
    "Run": "paceline.worker.script.run",
    "Comparison": "paceline.api.compare",
    "Cell": "paceline.comparison.schema",
    "Estimate": "paceline.comparison.schema",
    "TrainStoppedError": "paceline.api.train",
    "TrainResult": "paceline.api.result",
    "Losses": "paceline.api.result",
    "Evaluation": "paceline.api.result",
    "metric": "paceline.events.custom_metrics",
    "PacelineError": "paceline.core.errors",
    "ConfigError": "paceline.core.errors",
    "NotReadyError": "paceline.core.errors",
    "TrainingError": "paceline.core.errors",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})

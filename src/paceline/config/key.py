"""The type of a setting: its name, its meaning and the values it takes; keys.py lists them all."""

import math
from dataclasses import dataclass
from enum import StrEnum

from paceline.core.environ import PREFIX


class Kind(StrEnum):
    """Type of a key's value; the enum value is its name in help texts and docs."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    YES_NO = "yes or no"
    DURATION = "duration"
    CHOICE = "choice"
    BATCH_SIZE = "integer, or one per worker"
    STALENESS = "integer or inf"
    STEPS_OR_EPOCH = "integer or epoch"
    OPTIONS = "name=value pairs"
    STRAGGLERS = "straggler rules"
    BYZANTINE = "attack rules"
    EXPORTS = "name, or name=where"


class Group(StrEnum):
    """The section of a setting in help texts and in the reference."""

    RUN = "Run"
    DATA = "Task and data"
    MODEL = "Model"
    STRATEGY = "Strategy"
    OPTIMIZER = "Optimizer"
    EVALUATION = "Evaluation and early stopping"
    SURVIVE = "Elastic training and checkpoints"
    COMPRESSION = "Compression"
    FAULTS = "Injected stragglers and faults"
    LAUNCHER = "Launcher and resources"
    MONITORING = "Logging and monitoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    name: str
    group: Group
    help: str
    kind: Kind
    default: str  # in words: some defaults depend on other keys
    example: str  # a value that works, for hints
    choices: tuple[str, ...] = ()
    minimum: float | None = None  # the smallest allowed value
    above: float | None = None  # a limit that is itself not allowed
    maximum: float | None = None
    brief: str = ""  # one line for --help; settings without it are shown by --help-all only
    flag_name: str = ""  # set only if the flag differs from the key's name
    also: str = ""  # a second flag that means the same

    @property
    def flag(self) -> str:
        return "--" + (self.flag_name or self.name).replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def is_repeatable(self) -> bool:
        return self.kind in (Kind.OPTIONS, Kind.STRAGGLERS, Kind.BYZANTINE, Kind.EXPORTS)

    def contains(self, number: float) -> bool:
        """True if it is finite and within the limits."""
        return (
            math.isfinite(number)
            and (self.minimum is None or number >= self.minimum)
            and (self.above is None or number > self.above)
            and (self.maximum is None or number <= self.maximum)
        )

    @property
    def allowed(self) -> str:
        """Describes the allowed values: `one of a, b`, `from 1 to 9`, `1 or more`."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{self.minimum} or more"
        if self.above is not None and self.maximum is not None:
            return f"more than {self.above} and at most {self.maximum}"
        return "" if self.above is None else f"more than {self.above}"

"""What does a command know besides its own flags? How to talk, and the ports it calls.

`main` builds one session from the real world; tests build one with fakes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from paceline.core import environ
from paceline.training.trainer import DefaultTrainer, Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The flags that every command has, accepted before and after its name."""

    json: bool = False
    plain: bool = False
    quiet: bool = False
    verbose: bool = False
    no_input: bool = False
    color: str | None = None  # None: not said
    config: Path | None = None
    sets: tuple[str, ...] = ()

    def joined(self, later: "Common") -> "Common":
        return Common(
            json=self.json or later.json,
            plain=self.plain or later.plain,
            quiet=self.quiet or later.quiet,
            verbose=self.verbose or later.verbose,
            no_input=self.no_input or later.no_input,
            color=later.color or self.color,
            config=later.config or self.config,
            sets=self.sets + later.sets,
        )


@dataclass(slots=True, kw_only=True)
class Session:
    """Mutable only while flags are read: `common` grows by what each command accepts."""

    common: Common = field(default_factory=Common)
    start_trainer: Callable[[], Trainer] = DefaultTrainer
    variables: Mapping[str, str] = field(default_factory=dict)  # environ.config_variables()
    folder: Path = field(default_factory=Path)  # what `runs/` and --run-dir are relative to

    def placed(self, path: Path | None) -> Path | None:
        """What the user named, from where the user stands; None: it was not said."""
        return None if path is None else self.folder / path

    @property
    def is_silent(self) -> bool:
        """Is talk on stderr unwanted?"""
        return self.common.quiet or self.common.json

    def has_colour(self, stream: TextIO) -> bool:
        setting = self.common.color or environ.colour_setting() or "auto"
        if setting == "auto":
            return environ.wants_colour(is_tty=stream.isatty())
        return setting == "always"

"""Session: the common flags, the environment and the launcher that a command or an API call works with.

`cli.main` builds one from the process's arguments and environment. Tests build one with their own folder
and, where they need it, their own launcher.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from paceline.core import environ

if TYPE_CHECKING:
    from paceline.training.run import LocalCommandLauncher


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The flags that every command has, accepted before and after its name."""

    json: bool = False
    plain: bool = False
    quiet: bool = False
    verbose: bool = False
    no_input: bool = False
    color: str | None = None  # None: not given
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


def start_local_launcher() -> "AbstractContextManager[LocalCommandLauncher]":
    """Start the helper process of local workers. It imports torch while the command reads its settings."""
    from paceline.launchers.local import LocalLauncher  # not needed for --help

    return LocalLauncher()


@dataclass(slots=True, kw_only=True)
class Session:
    """Mutable only while flags are parsed: each command group adds its flags to `common`."""

    common: Common = field(default_factory=Common)
    start_launcher: "Callable[[], AbstractContextManager[LocalCommandLauncher]]" = start_local_launcher
    variables: Mapping[str, str] = field(default_factory=dict)  # environ.config_variables()
    folder: Path = field(default_factory=Path)  # working directory: `runs/` and --run-dir are relative to it

    def resolve_path(self, path: Path | None) -> Path | None:
        """Resolve against the working directory; None stays None."""
        return None if path is None else self.folder / path

    @property
    def is_silent(self) -> bool:
        """Whether nothing but errors goes to stderr."""
        return self.common.quiet or self.common.json

    def has_colour(self, stream: TextIO) -> bool:
        setting = self.common.color or environ.colour_setting() or "auto"
        if setting == "auto":
            return environ.wants_colour(is_tty=stream.isatty())
        return setting == "always"

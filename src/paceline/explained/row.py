"""What is known about one kind of error? Everything `paceline explain CODE` can say."""

from dataclasses import dataclass

from paceline.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Row:
    code: str
    exit_code: ExitCode
    kind: str  # module:Class of the error; empty: no class of ours raises it
    why: str  # one line, shown under every such error
    causes: tuple[str, ...]  # the usual ones, the most frequent first
    do: tuple[str, ...]  # in the order in which to try
    example: str  # as it is printed

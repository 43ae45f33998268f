"""What is one thing that was to be proved about a run?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    ok: bool
    seen: str

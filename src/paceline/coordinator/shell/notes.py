"""What does a node tell whoever looks after it? One note for each change of state, as key=value."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = int | str | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Note:
    event: str  # listening, repaired, state, resumed (after a standstill), stopped
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(f"{key}={_text(value)}" for key, value in {"event": self.event, **self.facts}.items())


def _text(value: Fact) -> str:
    match value:
        case tuple():
            return ",".join(map(str, value))
        case None:
            return "none"
        case int():
            return str(value)
        case _:
            return json.dumps(value) if any(c in value for c in ' "=') or not value else value

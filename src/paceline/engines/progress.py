"""What does a line of a build's log say about how far it is? Three dialects, one answer.

podman and buildah say `STEP 2/8: RUN …`, docker `Step 2/8 : RUN …`, BuildKit `#9 [build 2/8] RUN …` and
`#9 DONE 0.7s`.
"""

import re
from dataclasses import dataclass

_STEP = re.compile(r"^(?:\[\d+/\d+\] )?(?:STEP|Step) (\d+)/(\d+) ?: (.*)$")
_STAGE = re.compile(r"^#(\d+) \[(?:([\w.-]+) )?(\d+)/(\d+)\] (.*)$")
_ENDED = re.compile(r"^#(\d+) (DONE|CACHED|ERROR)(?: (\d+(?:\.\d+)?)s)?")
_CACHED = re.compile(r"^--> Using cache|^ ---> Using cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    number: int
    of: int
    what: str
    stage: str = ""

    def __str__(self) -> str:
        stage = f"{self.stage} " if self.stage else ""
        return f"{stage}step {self.number} of {self.of}: {self.what}"


class Reading:
    """One log, line by line: what is worth a line to a person, and nothing for the rest."""

    def __init__(self) -> None:
        self._by_vertex: dict[str, Progress] = {}
        self._now: Progress | None = None

    @property
    def now(self) -> Progress | None:
        """The step at which the log is."""
        return self._now

    def read(self, line: str) -> str | None:
        if match := _STEP.match(line):
            self._now = Progress(number=int(match[1]), of=int(match[2]), what=_short(match[3]))
            return str(self._now)
        if match := _STAGE.match(line):
            self._now = Progress(
                number=int(match[3]), of=int(match[4]), what=_short(match[5]), stage=match[2] or ""
            )
            self._by_vertex[match[1]] = self._now
            return str(self._now)
        if (match := _ENDED.match(line)) and match[1] in self._by_vertex:
            step = self._by_vertex[match[1]]
            took = f" in {match[3]} s" if match[3] else ""
            return f"step {step.number} of {step.of} {_ENDINGS[match[2]]}{took}"
        if self._now is not None and _CACHED.match(line):
            return f"step {self._now.number} of {self._now.of} was done before"
        return None


_ENDINGS = {"DONE": "done", "CACHED": "was done before", "ERROR": "failed"}


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 100 else words[:97] + "…"

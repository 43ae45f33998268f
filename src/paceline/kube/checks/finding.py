"""What does a check say? How bad it is, what, by which evidence, why it matters, what to type next."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.kube.checks.eks_facts import AddonWanted
from paceline.plan.codec import Json
from paceline.redaction import redact

_SHOWN = 3


class Level(Enum):
    OK = "ok"
    NOTE = "note"  # good to know; nothing is wrong
    WARNING = "warning"  # wrong, or not to be seen; what was asked for may still work
    PROBLEM = "problem"  # what was asked for will not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    area: str
    level: Level
    what: str
    evidence: str = ""  # which object and field
    why: str = ""
    command: str = ""
    cure: str = ""  # which fix of kube/fixes is for it, if there is one
    addon: AddonWanted | None = None  # what the cure "addon" installs or updates

    def lines(self) -> list[str]:
        first = f"{self.level.value:<8} {self.area:<18} {self.what}"
        if self.level is Level.OK:
            return [redact(first)]
        more = {"evidence": self.evidence, "why": self.why, "next": self.command}
        return [redact(line) for line in (first, *(f"{'':9}{k}: {v}" for k, v in more.items() if v))]

    def to_json(self) -> dict[str, Json]:
        said = {"what": self.what, "evidence": self.evidence, "why": self.why, "next": self.command}
        return {"area": self.area, "level": self.level.value, **{k: redact(v) for k, v in said.items()}}


def named(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def miscounted(
    area: str, what: str, nodes: Sequence[str], *, evidence: str, why: str, command: str = ""
) -> Finding:
    """Nodes that offer another number of devices than they have; `evidence` is of the first."""
    return Finding(
        area=area,
        level=Level.WARNING,
        what=f"{what}, by {counted(len(nodes), 'node')}: {named(nodes)}",
        evidence=f"{nodes[0]}: {evidence}",
        why=why,
        command=command or f"kubectl describe node {nodes[0]}",
    )

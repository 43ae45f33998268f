"""Actions for a finding, in three tiers by who may carry them out, each with its reason.

safe: in the user's namespace, of Paceline, and can be undone. planned: for the whole cluster, by a pinned
chart or an EKS add-on, and only with --apply. never: a command for a person; Paceline does not run it.
"""

from dataclasses import dataclass
from enum import Enum

from paceline.core.redaction import redact
from paceline.k8s.charts import Chart
from paceline.k8s.check.snapshot import AddonRequest
from paceline.k8s.objects import mapping
from paceline.k8s.render.pod import Object
from paceline.plan.codec import Json


class Tier(Enum):
    SAFE = "safe"
    PLANNED = "planned"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Create:
    manifest: Object


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Remove a helper pod that has ended."""

    manifest: Object  # as last read


@dataclass(frozen=True, slots=True)
class Install:
    chart: Chart


@dataclass(frozen=True, slots=True)
class ChangeAddon:
    """Change of an EKS add-on by Amazon's API."""

    wanted: AddonRequest


@dataclass(frozen=True, slots=True)
class ByHand:
    command: str


Action = Create | RemovePod | Install | ChangeAddon | ByHand


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    name: str  # name for --only
    what: str
    why: str
    action: Action

    @property
    def tier(self) -> Tier:
        match self.action:
            case Create() | RemovePod():
                return Tier.SAFE
            case Install() | ChangeAddon():
                return Tier.PLANNED
            case ByHand():
                return Tier.NEVER

    @property
    def command(self) -> str:
        match self.action:
            case Install(chart):
                return chart.command
            case ChangeAddon(request):
                return request.command()
            case ByHand(command):
                return command
            case _:
                return ""

    def lines(self) -> list[str]:
        more = {"why": self.why, "command": self.command}
        first = f"{self.tier.value:<8} {self.name:<12} {self.what}"
        return [redact(line) for line in (first, *(f"{'':9}{k}: {v}" for k, v in more.items() if v))]

    def to_json(self) -> dict[str, Json]:
        fields = {"what": self.what, "why": self.why, "command": self.command}
        return {"name": self.name, "tier": self.tier.value, **{k: redact(v) for k, v in fields.items()}}


def without_secrets(manifest: Object) -> Object:
    """The manifest without the values of a Secret, for records."""
    if manifest.get("kind") != "Secret":
        return manifest
    names = (*mapping(manifest, "data"), *mapping(manifest, "stringData"))
    hidden: Object = dict.fromkeys(names, "***")
    rest = {name: value for name, value in manifest.items() if name not in ("data", "stringData")}
    return {**rest, "data": hidden}


def object_label(manifest: Object) -> str:
    metadata = mapping(manifest, "metadata")
    space = f" in namespace {metadata['namespace']}" if "namespace" in metadata else ""
    return f"{manifest.get('kind')} {metadata.get('name')}{space}"

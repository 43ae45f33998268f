"""What does Amazon say about a cluster of EKS? Plain facts, as its API gives them; nothing is judged here."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    name: str
    status: str
    image: str  # AL2023_x86_64_NVIDIA, BOTTLEROCKET_…, CUSTOM
    machines: tuple[str, ...]
    version: str = ""
    most: int = 0
    issues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Addon:
    name: str
    version: str
    status: str
    issues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Which versions of an add-on fit this version of Kubernetes."""

    usual: str  # the one that EKS installs if none is named
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperPod:
    name: str
    status: str
    node_recovery: str = ""
    short: tuple[str, ...] = ()  # groups with fewer machines than they shall have
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EksFacts:
    name: str
    region: str
    status: str
    version: str
    server: str
    is_auto: bool = False  # Auto Mode
    is_public: bool = True
    auth_mode: str = ""
    support: str = ""  # STANDARD_SUPPORT, EXTENDED_SUPPORT, UNSUPPORTED; empty: not known
    support_ends: str = ""
    me: str = ""  # who asks, as an access entry would name it
    issues: tuple[str, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    addons: tuple[Addon, ...] = ()
    offers: Mapping[str, Offer] = field(default_factory=dict)
    entries: tuple[str, ...] = ()  # principals that may enter
    hyperpods: tuple[HyperPod, ...] = ()
    refused: tuple[str, ...] = ()  # IAM actions; what they would show is not known

    def knows(self, action: str) -> bool:
        return action not in self.refused

    def addon(self, name: str) -> Addon | None:
        return next((one for one in self.addons if one.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddonWanted:
    """What a fix would do about an add-on. `before` is empty: it is not there."""

    cluster: str
    region: str
    name: str
    version: str
    before: str = ""

    def command(self) -> str:
        verb = "update" if self.before else "create"
        where = f"--cluster-name {self.cluster} --region {self.region}"
        return f"aws eks {verb}-addon {where} --addon-name {self.name} --addon-version {self.version}"

"""Access policy: roles of callers, the roles that each method admits, and rate limits.

A method that is not in the table is refused to every role, so a new method stays closed until
its row is written. See docs/guides/coordinator.md.

Rates are limited by token buckets. A bucket holds up to `burst` requests and is refilled by
`per_s` every second; a request that finds it empty is refused. A full bucket is dropped, since
a new one would be equal, so a stream of unknown callers does not fill the memory.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

PACKAGE = "paceline.cluster.v1"


class Role(Enum):
    NODE = "node"  # a coordinator node; only nodes may call the Raft service
    ADMIN = "admin"
    WORKER = "worker"
    VIEWER = "viewer"


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller, as a token or a certificate proved it."""

    name: str
    role: Role

    @property
    def uri(self) -> str:
        """The identity as a URI of a certificate."""
        return f"{_SCHEME}{self.role.value}/{self.name}"


def node_name(node: int) -> str:
    return f"node-{node}"


def may_speak_for(identity: Identity, node: int) -> bool:
    """A node's certificate is for that node alone; all nodes that use tokens share one."""
    return identity.role is Role.NODE and identity.name in {node_name(node), Role.NODE.value}


_SCHEME = "paceline://"
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def from_uri(uri: str) -> Identity | None:
    """Identity of a certificate with this URI; None for a foreign URI."""
    role, _, name = uri.removeprefix(_SCHEME).partition("/")
    known = next((r for r in Role if r.value == role), None)
    if not uri.startswith(_SCHEME) or known is None or not NAME_PATTERN.fullmatch(name):
        return None
    return Identity(name, known)


_NODES = frozenset({Role.NODE})
_ADMINS = frozenset({Role.ADMIN})
_WORKERS = frozenset({Role.WORKER, Role.ADMIN})
# Nodes store the whole state anyway, so they may read it.
_ALL_ROLES = frozenset(Role)

_TABLE = {
    "Raft": {"Talk": _NODES, "Install": _NODES},
    "Nodes": {
        "Status": _ALL_ROLES,
        "Add": _ADMINS,
        "Remove": _ADMINS,
        "StepDown": _ADMINS,
        "Snapshot": _ADMINS,
        "Cut": _ADMINS,
    },
    "Runs": {
        "Create": _ADMINS,
        "Get": _ALL_ROLES,
        "List": _ALL_ROLES,
        "End": _ADMINS,
        "Form": _WORKERS,
        "Revoke": _WORKERS,
        "Advance": _WORKERS,
        "Place": _WORKERS,
        "Promote": _WORKERS,
        "Lease": _WORKERS,
        "Consume": _WORKERS,
        "Offer": _ADMINS,
        "Offers": _WORKERS,  # they hold secrets
    },
    "Members": {"Join": _WORKERS, "Leave": _WORKERS, "List": _ALL_ROLES, "Live": _WORKERS},
    "Checkpoints": {"Begin": _WORKERS, "Report": _WORKERS, "Drop": _ADMINS, "List": _ALL_ROLES},
    "Actions": {
        "Request": _ADMINS,
        "Report": _WORKERS,
        "List": _ALL_ROLES,
        "Acknowledge": _ADMINS,
        "Forget": _ADMINS,
        "Alerts": _ALL_ROLES,
    },
    "Lighthouses": {
        "Open": _WORKERS,
        "Forget": _ADMINS,
        "List": _ALL_ROLES,
        "Quorum": _WORKERS,
        "Beat": _WORKERS,
    },
    "Sessions": {
        "Open": _WORKERS,
        "Close": _WORKERS,
        "Write": _WORKERS,
    },  # each command of a Write stream is checked by its own row
    "Watch": {"Changes": _ALL_ROLES},
}

# Indexed by full name, such as /paceline.cluster.v1.Runs/Create.
METHODS: dict[str, frozenset[Role]] = {
    f"/{PACKAGE}.{service}/{method}": roles
    for service, methods in _TABLE.items()
    for method, roles in methods.items()
}


def roles_for(method: str) -> frozenset[Role]:
    """The roles that may call this method; none for a method without a row."""
    return METHODS.get(method, frozenset())


def short_name(method: str) -> str:
    """/paceline.cluster.v1.Runs/Create is Runs/Create in a sentence."""
    return method.removeprefix(f"/{PACKAGE}.")


def describe_roles(roles: frozenset[Role]) -> str:
    return " or ".join(role.value for role in Role if role in roles)


@dataclass(frozen=True, slots=True)
class Rate:
    per_s: float
    burst: float

    def __post_init__(self) -> None:
        assert self.per_s > 0, "a rate lets something through"
        assert self.burst >= 1, "a burst lets at least one request through"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a node's clients; other nodes are not limited."""

    # Per identity and host: all workers of a machine may share one certificate.
    per_caller: Rate = Rate(10_000, 10_000)
    overall: Rate = Rate(20_000, 20_000)
    # Refusals for want of a good token, for one host.
    failures: Rate = Rate(10, 20)
    message_bytes: int = 4 << 20
    streams_per_connection: int = 4096
    calls_at_once: int = 16_384
    # A connection without a handshake, or without calls, is closed: each one is an open file.
    greeting_ms: int = 5_000
    idle_ms: int = 30_000


class Buckets:
    """One token bucket for each key, created on first use."""

    def __init__(self, rate: Rate, *, max_keys: int = 4096) -> None:
        self.rate = rate
        self._max_keys = max_keys
        self._left: dict[Hashable, tuple[float, float]] = {}  # requests left, and when that was true

    def __len__(self) -> int:
        return len(self._left)

    def wait_s(self, key: Hashable, now_s: float) -> float:
        """Take one request from the bucket and return 0, or return the seconds until one is available."""
        per_s = self.rate.per_s
        burst = self.rate.burst
        entry = self._left.get(key)
        if entry is None:
            if len(self._left) >= self._max_keys:
                self._evict(now_s)
            left = burst
        else:
            left = min(burst, entry[0] + (now_s - entry[1]) * per_s)
        if left < 1:
            # Not stored: the stored entry is still valid.
            return (1 - left) / per_s
        self._left[key] = (left - 1, now_s)
        return 0.0

    def _evict(self, now_s: float) -> None:
        """Drop the buckets that are full again; if there are none, the older half.

        The older half gets full buckets again, which bounds the memory.
        """
        per_s = self.rate.per_s
        burst = self.rate.burst
        kept = [(k, v) for k, v in self._left.items() if v[0] + (now_s - v[1]) * per_s < burst]
        if len(kept) >= self._max_keys:
            kept = sorted(kept, key=lambda item: item[1][1])[len(kept) // 2 :]
        self._left = dict(kept)

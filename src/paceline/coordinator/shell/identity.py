"""Who may call what? A role for every caller, and for every method the roles that may call it.

A method that is not in the table may be called by nobody, so a new method is refused
until somebody has decided who may use it. See docs/guides/coordinator-security.md.
"""

import re
from dataclasses import dataclass
from enum import Enum

PACKAGE = "paceline.cluster.v1"


class Role(Enum):
    NODE = "node"  # a coordinator node; only nodes may speak Raft
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
        """How a certificate says it."""
        return f"{_SCHEME}{self.role.value}/{self.name}"


def node_name(node: int) -> str:
    return f"node-{node}"


def may_speak_for(identity: Identity, node: int) -> bool:
    """A node's certificate is for that node alone; all nodes that use tokens share one."""
    return identity.role is Role.NODE and identity.name in {node_name(node), Role.NODE.value}


_SCHEME = "paceline://"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def from_uri(uri: str) -> Identity | None:
    """Who a certificate with this URI belongs to; None for a URI that is not one of ours."""
    role, _, name = uri.removeprefix(_SCHEME).partition("/")
    known = next((r for r in Role if r.value == role), None)
    if not uri.startswith(_SCHEME) or known is None or not NAME.fullmatch(name):
        return None
    return Identity(name, known)


_NODES = frozenset({Role.NODE})
_ADMINS = frozenset({Role.ADMIN})
_WORKERS = frozenset({Role.WORKER, Role.ADMIN})
# Nodes hold all of the state anyway: they may look at it.
_EVERYBODY = frozenset(Role)

_TABLE = {
    "Raft": {"Talk": _NODES, "Install": _NODES},
    "Nodes": {
        "Status": _EVERYBODY,
        "Add": _ADMINS,
        "Remove": _ADMINS,
        "StepDown": _ADMINS,
        "Snapshot": _ADMINS,
        "Cut": _ADMINS,
    },
    "Runs": {
        "Create": _ADMINS,
        "Get": _EVERYBODY,
        "List": _EVERYBODY,
        "End": _ADMINS,
        "Form": _WORKERS,
        "Revoke": _WORKERS,
        "Advance": _WORKERS,
        "Place": _WORKERS,
        "Promote": _WORKERS,
        "Lease": _WORKERS,
        "Consume": _WORKERS,
    },
    "Members": {"Join": _WORKERS, "Leave": _WORKERS, "List": _EVERYBODY, "Live": _WORKERS},
    "Checkpoints": {"Begin": _WORKERS, "Report": _WORKERS, "Drop": _ADMINS, "List": _EVERYBODY},
    "Actions": {
        "Request": _ADMINS,
        "Report": _WORKERS,
        "List": _EVERYBODY,
        "Acknowledge": _ADMINS,
        "Forget": _ADMINS,
        "Alerts": _EVERYBODY,
    },
    "Lighthouses": {
        "Open": _WORKERS,
        "Forget": _ADMINS,
        "List": _EVERYBODY,
        "Quorum": _WORKERS,
        "Beat": _WORKERS,
    },
    "Sessions": {
        "Open": _WORKERS,
        "Close": _WORKERS,
        "Write": _WORKERS,
    },  # and what is written, by its own row
    "Watch": {"Changes": _EVERYBODY},
}

# By full name, such as /paceline.cluster.v1.Runs/Create.
METHODS: dict[str, frozenset[Role]] = {
    f"/{PACKAGE}.{service}/{method}": roles
    for service, methods in _TABLE.items()
    for method, roles in methods.items()
}


def roles_for(method: str) -> frozenset[Role]:
    """The roles that may call this method; none for a method that nobody decided about."""
    return METHODS.get(method, frozenset())


def short_name(method: str) -> str:
    """/paceline.cluster.v1.Runs/Create is Runs/Create in a sentence."""
    return method.removeprefix(f"/{PACKAGE}.")


def in_words(roles: frozenset[Role]) -> str:
    return " or ".join(role.value for role in Role if role in roles)

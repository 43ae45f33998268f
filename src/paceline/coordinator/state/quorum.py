"""Who takes part in the next step of a torchft job? Pure: the leader asks, and proposes the answer.

The rule is torchft's, or stricter. If all members of the last quorum ask again,
they and whoever else asks are the next one, at once. Otherwise at least
`min_replicas` must ask, and more than half of those who give signs of life; and
those who live but do not ask are waited for, up to a limit. Nobody is in a
quorum who has been silent too long, or did not ask.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.coordinator.proto import torchft_pb2 as torchft


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    min_replicas: int
    join_timeout_s: float  # since the first one asked, for those who live but do not ask
    heartbeat_timeout_s: float  # of silence until a replica counts as dead


@dataclass(frozen=True, slots=True)
class Asking:
    member: torchft.QuorumMember
    since_s: float


@dataclass(frozen=True, slots=True)
class Issue:
    replicas: tuple[str, ...]  # by name: all managers derive their ranks from this order
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str
    until_s: float | None  # when silence alone may change the answer; None: only a request can


def next_quorum(
    rule: Rule,
    last: frozenset[str],
    asking: Mapping[str, Asking],
    heard_s: Mapping[str, float],
    now_s: float,
) -> Issue | Wait:
    """`last` is who was in the last quorum, empty before the first; `heard_s` when each was heard last."""
    living = {name for name, at_s in heard_s.items() if now_s - at_s < rule.heartbeat_timeout_s}
    present = {name: found for name, found in asking.items() if name in living}
    is_closed = bool(last) and any(found.member.shrink_only for found in present.values())
    chosen = tuple(sorted(name for name in present if not is_closed or name in last))
    silence_s = min((heard_s[name] + rule.heartbeat_timeout_s for name in living), default=None)
    if len(chosen) < rule.min_replicas:
        return Wait(f"{len(chosen)} replicas may take part, and {rule.min_replicas} are needed", silence_s)
    if last and last <= present.keys():
        return Issue(chosen, "all members of the last quorum are here")
    if 2 * len(present) <= len(living):
        return Wait(f"{len(present)} of {len(living)} living replicas ask, which is not the most", silence_s)
    missing = len(living) - len(present)
    until_s = min(found.since_s for found in present.values()) + rule.join_timeout_s
    if missing and now_s < until_s:
        due_s = until_s if silence_s is None else min(until_s, silence_s)
        return Wait(f"{missing} replicas live but do not ask yet", due_s)
    return Issue(chosen, "all who live are here" if not missing else f"{missing} were waited for in vain")

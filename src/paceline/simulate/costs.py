"""What does one exchange cost, apart from waiting for others? Seconds, by channel.

An all-reduce takes `collective` (or `torch`) once the last worker has come, then
every worker applies. Behind a server a gradient takes `push` to arrive; the
server, one request at a time, takes `apply_s` for the update and `answer_s` for
each worker it answers; the answer takes `pull`. `wake_up_s` passes from then
until the worker computes again.
"""

from dataclasses import dataclass, field

from paceline.plan.plan import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    latency_s: float = 0.0
    bytes_per_s: float | None = None  # None: size costs nothing

    def transfer_s(self, size_bytes: float) -> float:
        return self.latency_s + (0.0 if self.bytes_per_s is None else size_bytes / self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    collective: Link = field(default_factory=Link)
    torch: Link = field(default_factory=Link)
    push: Link = field(default_factory=Link)
    pull: Link = field(default_factory=Link)
    apply_s: float = 0.0
    answer_s: float = 0.0
    wake_up_s: float = 0.0


FREE = Costs()  # as in virtual time: only computing takes time

# From round trips of 4 KB and 100 MB between two processes of one host: good for orders of
# magnitude. A profile made from a recording holds what yours takes.
_SHM = Link(latency_s=13e-6, bytes_per_s=5e9)
_GLOO = Link(latency_s=200e-6, bytes_per_s=2e9)
_TCP = Link(latency_s=19e-6, bytes_per_s=1.2e9)
_APPLY_S, _ANSWER_S, _WAKE_UP_S = 100e-6, 20e-6, 200e-6


def usual_costs(store: Transport) -> Costs:
    """Of one host: collectives by shared memory, torch by gloo, the store by the transport named."""
    way = _TCP if store is Transport.TCP else _SHM
    return Costs(
        collective=_SHM,
        torch=_GLOO,
        push=way,
        pull=way,
        apply_s=_APPLY_S,
        answer_s=_ANSWER_S,
        wake_up_s=_WAKE_UP_S,
    )


def network_costs(link: Link) -> Costs:
    """Every message takes this link; the server's own work as usual."""
    return Costs(
        collective=link,
        torch=link,
        push=link,
        pull=link,
        apply_s=_APPLY_S,
        answer_s=_ANSWER_S,
        wake_up_s=_WAKE_UP_S,
    )

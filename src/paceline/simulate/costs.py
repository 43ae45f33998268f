"""What does one exchange cost, apart from waiting for others? Seconds, by channel.

An all-reduce takes `collective` (or `torch`) once the last worker has come, then
every worker applies. Behind a server a gradient takes `push` to arrive; the
server, one request at a time, takes `apply_s` for the update and `answer_s` for
each worker it answers; the answer takes `pull`. `wake_up_s` passes from then
until the worker computes again. Workers that are woken all at once and share
processors take turns: each keeps one for `turn_s` before it sleeps again.
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
    turn_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """A server's costs for one size of gradient, in nanoseconds."""

    push_ns: int  # until a gradient has come
    back_ns: int  # from an answer until its worker computes
    apply_ns: int
    answer_ns: int

    @property
    def round_ns(self) -> int:
        """From an answer to the arrival of the next gradient, without its computing."""
        return self.back_ns + self.push_ns


def server_times(costs: Costs, size_bytes: int) -> ServerTimes:
    return ServerTimes(
        push_ns=in_ns(costs.push.transfer_s(size_bytes)),
        back_ns=in_ns(costs.pull.transfer_s(size_bytes) + costs.wake_up_s),
        apply_ns=in_ns(costs.apply_s),
        answer_ns=in_ns(costs.answer_s),
    )


def in_ns(seconds: float) -> int:
    return round(seconds * 1e9)


FREE = Costs()  # as in virtual time: only computing takes time

# From round trips of 4 KB and 100 MB between two processes of one host: good for orders of
# magnitude. A profile made from a recording holds what yours takes.
_SHM = Link(latency_s=13e-6, bytes_per_s=5e9)
_GLOO = Link(latency_s=200e-6, bytes_per_s=2e9)
_TCP = Link(latency_s=19e-6, bytes_per_s=1.2e9)
_APPLY_S, _ANSWER_S, _WAKE_UP_S = 100e-6, 20e-6, 200e-6
# A small model's forward and backward, and what is done around them. With steps that mostly sleep, ssgd of 4
# workers on 2 processors took 1.1 ms a step longer than the pace, of 8 workers 2.4 ms.
_TURN_S = 600e-6


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
        turn_s=_TURN_S,
    )


def network_costs(link: Link) -> Costs:
    """Every message takes this link; the server's own work as usual. Every worker has its own machine."""
    return Costs(
        collective=link,
        torch=link,
        push=link,
        pull=link,
        apply_s=_APPLY_S,
        answer_s=_ANSWER_S,
        wake_up_s=_WAKE_UP_S,
    )

"""What does a caller hear when it cannot have what it asked for? A status: why, what, and what to do."""

from collections.abc import Sequence
from typing import NoReturn

import grpc

from paceline.coordinator import methods
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell.guard import Context


async def refuse(context: Context, refusal: pb.Refusal) -> NoReturn:
    code = methods.CODES.get(refusal.why, grpc.StatusCode.UNKNOWN)
    why = pb.Why.Name(refusal.why)
    await _abort(context, code, f"{refusal.what}\n{refusal.hint}", ((methods.WHY, why),))


async def not_leader(context: Context, leader_address: str) -> NoReturn:
    """Nothing is wrong with the request: somebody else must hear it, or it must be asked again."""
    what = f"the leader is {leader_address}" if leader_address else "there is no leader right now"
    facts = ((methods.WHY, methods.NOT_LEADER), (methods.LEADER, leader_address))
    await _abort(context, grpc.StatusCode.UNAVAILABLE, f"{what}\nask again there, or a moment later", facts)


async def too_busy(context: Context) -> NoReturn:
    what = "more commands wait for an answer than this node keeps\nsend fewer at once"
    await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, what, ())


async def too_old(context: Context) -> NoReturn:
    what = "changes since then are not all known here any more\nread everything again, then watch from now on"
    await _abort(context, grpc.StatusCode.OUT_OF_RANGE, what, ())


async def bad(context: Context, what: str, hint: str) -> NoReturn:
    await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"{what}\n{hint}", ((methods.WHY, "INVALID"),))


async def _abort(
    context: Context, code: grpc.StatusCode, details: str, facts: Sequence[tuple[str, str]]
) -> NoReturn:
    await context.abort(code, details, tuple(facts))
    raise AssertionError("abort does not return")

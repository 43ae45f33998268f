"""When is the next generation of a run due, and who is in it? Pure: the leader asks, and proposes the answer.

The first waits until as many workers as wanted are there, or none has come for
a while. After a loss the survivors go on at once. Those who come later wait a
moment for others who come too, since every new generation interrupts a step.
Waiting is counted by the leader from when it saw the last join, by its own
monotonic clock, so a new leader begins to wait again; no calendar time is compared.
"""

from dataclasses import dataclass

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state.model import RunRecord

FIRST_WAIT_MS = 5_000  # since the last one joined, for those who are still missing
JOIN_WAIT_MS = 100  # for others who come at the same time


@dataclass(frozen=True, slots=True)
class Later:
    """Ask again after so long."""

    in_ms: int


def next_generation(record: RunRecord, waited_ms: int) -> pb.FormGeneration | Later | None:
    """`waited_ms`: since the leader saw the newest worker of the run (`last_joined`)."""
    run, newest = record.run, record.newest
    members = _members(record)
    if not run.want_workers or record.has_ended or len(members) < run.min_workers:
        return None
    if newest is None:
        reason = f"the first {len(members)} workers are here"
        if len(members) < run.want_workers and waited_ms < FIRST_WAIT_MS:
            return Later(FIRST_WAIT_MS - waited_ms)
    elif newest.is_revoked:
        reason = f"generation {newest.number} was revoked: {newest.revoked_because}"
    else:
        new = [name for name in members if name not in newest.workers]
        if not new:
            return None
        reason = f"{', '.join(new)} joined"
        if waited_ms < JOIN_WAIT_MS:
            return Later(JOIN_WAIT_MS - waited_ms)
    return pb.FormGeneration(
        run=run.run, previous=run.generation, workers=members, step=run.committed_step, reason=reason
    )


def _members(record: RunRecord) -> list[str]:
    """Who stays keeps its order, so that ranks change little; who is new comes behind."""
    living = {name: worker for name, worker in record.workers.items() if worker.role == "worker"}
    before = list(record.newest.workers) if record.newest is not None else []
    staying = [name for name in before if name in living]
    coming = sorted(
        (name for name in living if name not in before), key=lambda name: living[name].incarnation
    )
    most = record.run.max_workers or len(living)
    return (staying + coming)[:most]


def last_joined(record: RunRecord) -> int:
    """The newest incarnation among the living; 0: there are none."""
    return max((worker.incarnation for worker in record.workers.values()), default=0)

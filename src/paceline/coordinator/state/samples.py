"""Sample leases: in each epoch every sample is committed exactly once.

A sample is unleased, open in one lease, returned, or committed. A lease is open only while its
generation is: revoking the generation returns all of its leases, and only then can a sample be
leased again. So a worker that was partitioned cannot consume samples that another worker holds.
"""

from collections.abc import Iterable

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import results
from paceline.coordinator.state.model import Cursor, RunRecord, keep_newest
from paceline.coordinator.state.results import ApplyContext

MAX_OPEN_LEASES = 10_000
MAX_CONSUMED_LEASES = 1_000  # committed leases that are remembered, to give the same answer again


def lease(turn: ApplyContext, said: pb.LeaseSamples) -> pb.SampleLease | pb.Refusal:
    record = results.current_run(turn.state, said.run, said.generation)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not(record, said)
    if refusal is not None:
        return refusal
    cursor = record.samples
    if cursor.committed == record.run.samples:
        _begin_next_epoch(cursor)
    first, end = _take(cursor, said.count, record.run.samples)
    found = pb.SampleLease(
        run=said.run,
        generation=said.generation,
        worker=said.worker,
        epoch=cursor.epoch,
        first=first,
        end=end,
    )
    if first < end:
        found.lease = turn.index
        record.leases[turn.index] = found
        turn.changed(found)
    return found


def commit(turn: ApplyContext, said: pb.CommitSamples) -> pb.SampleLease | pb.Refusal:
    record = results.current_run(turn.state, said.run, said.generation)
    if isinstance(record, pb.Refusal):
        return record
    found = record.leases.pop(said.lease, None)
    if found is None:
        return record.consumed.get(said.lease) or results.not_found(
            f"run {said.run!r} has no lease {said.lease} that is open or was committed lately",
            "commit a lease by the number it was given, in its own generation",
        )
    found.is_committed = True
    record.consumed[said.lease] = found
    keep_newest(record.consumed, MAX_CONSUMED_LEASES)
    record.samples.committed += found.end - found.first
    turn.changed(found)
    return found


def return_all(turn: ApplyContext, record: RunRecord) -> None:
    """The generation is over: its leases, by number, are of no more use to anybody."""
    opened = [(found.first, found.end) for found in record.leases.values()]
    record.samples.returned = merge_ranges(record.samples.returned + opened)
    for found in record.leases.values():
        found.is_returned = True
        turn.changed(found)
    record.leases.clear()
    record.consumed.clear()


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


def _why_not(record: RunRecord, said: pb.LeaseSamples) -> pb.Refusal | None:
    if record.run.samples == 0:
        return results.invalid(
            f"run {said.run!r} leases no samples", "create it with the number of samples in an epoch"
        )
    if said.count == 0:
        return results.invalid("a lease of 0 samples was asked for", "ask for 1 or more")
    worker = record.workers.get(said.worker)
    if worker is None or worker.phase != pb.WORKER_ACTIVE:
        return results.fenced(
            f"worker {said.worker!r} is not in generation {said.generation} of run {said.run!r}",
            "only its members lease samples",
        )
    if len(record.leases) >= MAX_OPEN_LEASES:
        return results.not_now(
            f"run {said.run!r} has {MAX_OPEN_LEASES} open leases", "commit some, or ask for more at once"
        )
    return None


def cursor_message(cursor: Cursor) -> pb.SampleCursor:
    returned = (pb.SampleRange(first=first, end=end) for first, end in cursor.returned)
    return pb.SampleCursor(
        epoch=cursor.epoch, next=cursor.next, returned=returned, committed=cursor.committed
    )


def _begin_next_epoch(cursor: Cursor) -> None:
    cursor.epoch += 1
    cursor.next = 0
    cursor.committed = 0


def _take(cursor: Cursor, count: int, samples: int) -> tuple[int, int]:
    if not cursor.returned:
        first, cursor.next = cursor.next, min(cursor.next + count, samples)
        return first, cursor.next
    first, behind = cursor.returned[0]
    end = min(first + count, behind)
    cursor.returned[:1] = [(end, behind)] if end < behind else []
    return first, end

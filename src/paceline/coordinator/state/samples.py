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


def lease(context: ApplyContext, request: pb.LeaseSamples) -> pb.SampleLease | pb.Refusal:
    record = results.current_run(context.state, request.run, request.generation)
    if isinstance(record, pb.Refusal):
        return record
    refusal = _why_not_lease(record, request)
    if refusal is not None:
        return refusal
    cursor = record.samples
    if cursor.committed == record.run.samples:
        _begin_next_epoch(cursor)
    first, end = _take(cursor, request.count, record.run.samples)
    lease_record = pb.SampleLease(
        run=request.run,
        generation=request.generation,
        worker=request.worker,
        epoch=cursor.epoch,
        first=first,
        end=end,
    )
    if first < end:
        lease_record.lease = context.index
        record.leases[context.index] = lease_record
        context.changed(lease_record)
    return lease_record


def commit(context: ApplyContext, request: pb.CommitSamples) -> pb.SampleLease | pb.Refusal:
    record = results.current_run(context.state, request.run, request.generation)
    if isinstance(record, pb.Refusal):
        return record
    lease_record = record.leases.pop(request.lease, None)
    if lease_record is None:
        return record.consumed.get(request.lease) or results.not_found(
            f"run {request.run!r} has no lease {request.lease} that is open or was committed lately",
            "commit a lease by the number it was given, in its own generation",
        )
    lease_record.is_committed = True
    record.consumed[request.lease] = lease_record
    keep_newest(record.consumed, MAX_CONSUMED_LEASES)
    record.samples.committed += lease_record.end - lease_record.first
    context.changed(lease_record)
    return lease_record


def return_all(context: ApplyContext, record: RunRecord) -> None:
    """The generation has ended: return its open leases, and drop their numbers."""
    ranges = [(lease_record.first, lease_record.end) for lease_record in record.leases.values()]
    record.samples.returned = merge_ranges(record.samples.returned + ranges)
    for lease_record in record.leases.values():
        lease_record.is_returned = True
        context.changed(lease_record)
    record.leases.clear()
    record.consumed.clear()


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((first, end))
    return merged


def _why_not_lease(record: RunRecord, request: pb.LeaseSamples) -> pb.Refusal | None:
    if record.run.samples == 0:
        return results.invalid(
            f"run {request.run!r} leases no samples", "create it with the number of samples in an epoch"
        )
    if request.count == 0:
        return results.invalid("a lease of 0 samples was requested", "request 1 or more")
    worker = record.workers.get(request.worker)
    if worker is None or worker.phase != pb.WORKER_ACTIVE:
        return results.fenced(
            f"worker {request.worker!r} is not in generation {request.generation} of run {request.run!r}",
            "only its members lease samples",
        )
    if len(record.leases) >= MAX_OPEN_LEASES:
        return results.not_now(
            f"run {request.run!r} has {MAX_OPEN_LEASES} open leases", "commit some, or request larger leases"
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
        first = cursor.next
        cursor.next = min(first + count, samples)
        return first, cursor.next
    first, range_end = cursor.returned[0]
    end = min(first + count, range_end)
    cursor.returned[:1] = [(end, range_end)] if end < range_end else []
    return first, end

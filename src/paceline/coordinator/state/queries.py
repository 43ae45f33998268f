"""Queries of the replicated state: copies, in an order that a person expects."""

from collections.abc import Iterator

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import results, samples
from paceline.coordinator.state.model import STANDING, CoordinatorRecords


def run(state: CoordinatorRecords, name: str) -> pb.RunView | pb.Refusal:
    record = results.any_run(state, name)
    if isinstance(record, pb.Refusal):
        return record
    return pb.RunView(
        run=record.run,
        generation=record.newest,
        workers=record.workers.values(),
        servers=(record.servers[shard] for shard in sorted(record.servers)),
        leases=record.leases.values(),
        samples=samples.cursor_message(record.samples),
    )


def runs(state: CoordinatorRecords, with_ended: bool) -> pb.RunList:
    listed = [record.run for name, record in state.runs.items() if name not in STANDING]
    if with_ended:
        listed += [record.run for record in state.ended_runs.values()]
    return pb.RunList(runs=listed)


def offers(state: CoordinatorRecords) -> pb.OfferList:
    return pb.OfferList(offers=(r.offer for r in state.runs.values() if r.offer is not None))


def workers(state: CoordinatorRecords, run: str, with_ended: bool) -> pb.WorkerList | pb.Refusal:
    record = results.any_run(state, run)
    if isinstance(record, pb.Refusal):
        return record
    listed = pb.WorkerList(workers=record.workers.values())
    if with_ended:
        listed.workers.extend(record.ended_workers.values())
    return listed


def checkpoints(state: CoordinatorRecords, run: str, with_open: bool) -> pb.CheckpointList | pb.Refusal:
    """Committed checkpoints by step; with `with_open` also open and abandoned ones."""
    record = results.any_run(state, run)
    if isinstance(record, pb.Refusal):
        return record
    by_step = {**record.committed, **record.pending} if with_open else record.committed
    return pb.CheckpointList(checkpoints=(by_step[step] for step in sorted(by_step)))


def actions(state: CoordinatorRecords, run: str) -> pb.ActionList | pb.Refusal:
    """Actions of one run, or of all runs for an empty name; oldest first."""
    if run:
        record = results.any_run(state, run)
        if isinstance(record, pb.Refusal):
            return record
    return pb.ActionList(
        actions=(action for action in state.actions.values() if not run or action.run == run)
    )


def alerts(state: CoordinatorRecords, run: str) -> pb.AlertList | pb.Refusal:
    record = results.any_run(state, run)
    if isinstance(record, pb.Refusal):
        return record
    return pb.AlertList(alerts=(record.alerts[key] for key in sorted(record.alerts)))


def lighthouses(state: CoordinatorRecords) -> pb.LighthouseList:
    listed = pb.LighthouseList()
    for _, record in sorted(state.lighthouses.items()):
        listed.lighthouses.add(lighthouse=record.lighthouse, issued=record.issued)
    return listed


def addresses(state: CoordinatorRecords) -> dict[int, str]:
    return {number: node.address for number, node in sorted(state.nodes.items())}


def living(state: CoordinatorRecords) -> Iterator[tuple[str, str, int]]:
    """(run, worker, incarnation) of every worker that must send heartbeats."""
    for name, record in state.runs.items():
        for worker in record.workers.values():
            yield name, worker.worker, worker.incarnation


def is_living(state: CoordinatorRecords, run: str, worker: str, incarnation: int) -> bool:
    record = state.runs.get(run)
    known = None if record is None else record.workers.get(worker)
    return known is not None and known.incarnation == incarnation

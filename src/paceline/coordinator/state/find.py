"""Is there such a run, and may this generation still change it? Otherwise, why not?"""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import refuse
from paceline.coordinator.state.model import ClusterRecords, RunRecord

_PHASES = {pb.RUN_FINISHED: "finished", pb.RUN_FAILED: "failed", pb.RUN_STOPPED: "stopped"}


def any_run(state: ClusterRecords, name: str) -> RunRecord | pb.Refusal:
    record = state.runs.get(name) or state.ended_runs.get(name)
    if record is None:
        return refuse.not_found(f"there is no run {name!r}", "create it first, or list the runs for its name")
    return record


def open_run(state: ClusterRecords, name: str) -> RunRecord | pb.Refusal:
    record = state.runs.get(name)
    if record is not None:
        return record
    found = any_run(state, name)
    if isinstance(found, pb.Refusal):
        return found
    return refuse.not_now(
        f"run {name!r} has ended ({_PHASES[found.run.phase]})",
        "an ended run stays as it is; create another one",
    )


def current(state: ClusterRecords, name: str, generation: int) -> RunRecord | pb.Refusal:
    """The run, if this generation is its newest and not revoked. Whatever a worker changes passes here."""
    record = open_run(state, name)
    if isinstance(record, pb.Refusal):
        return record
    newest = record.newest
    if newest is None:
        return refuse.fenced(
            f"run {name!r} has no generation yet, not {generation}", "wait for its first one"
        )
    if newest.number != generation:
        return refuse.fenced(
            f"generation {generation} of run {name!r} is over: the newest is {newest.number}",
            "stop working in it, and join the newest one",
        )
    if newest.is_revoked:
        return refuse.fenced(
            f"generation {generation} of run {name!r} was revoked: {newest.revoked_because}",
            "stop working in it, and wait for the next one",
        )
    return record

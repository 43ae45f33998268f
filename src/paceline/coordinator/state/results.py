"""Results of commands: changes, outcomes and refusals, and the look-ups that commands share."""

from dataclasses import dataclass, field

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state.model import CoordinatorRecords, RunRecord

Record = (
    pb.Run
    | pb.Generation
    | pb.Worker
    | pb.ServerPlace
    | pb.Checkpoint
    | pb.Action
    | pb.AlertMark
    | pb.NodeAddress
    | pb.SampleLease
    | pb.Lighthouse
)
Result = Record | pb.Session | pb.IssuedQuorum | pb.Refusal

# The field that holds such a record, in a Change and in an Outcome alike.
FIELDS: dict[type[Result], str] = {
    pb.Run: "run",
    pb.Generation: "generation",
    pb.Worker: "worker",
    pb.ServerPlace: "server",
    pb.Checkpoint: "checkpoint",
    pb.Action: "action",
    pb.AlertMark: "alert",
    pb.NodeAddress: "node",
    pb.SampleLease: "samples",
    pb.Lighthouse: "lighthouse",
    pb.Session: "session",
    pb.IssuedQuorum: "quorum",
    pb.Refusal: "refusal",
}


@dataclass(slots=True)
class ApplyContext:
    """The context of one command. A handler refuses before its first change, so a refusal has no effect."""

    state: CoordinatorRecords
    index: int
    by: str
    session: int
    changes: list[pb.Change] = field(default_factory=list)

    @property
    def now_ms(self) -> int:
        return self.state.now_ms

    def changed(self, record: Record) -> None:
        """Record a change. The record is copied, since callers may keep the change."""
        change = pb.Change(index=self.index, at_ms=self.state.now_ms)
        getattr(change, FIELDS[type(record)]).CopyFrom(record)
        self.changes.append(change)


def outcome_of(index: int, result: Result) -> pb.Outcome:
    outcome = pb.Outcome(index=index)
    getattr(outcome, FIELDS[type(result)]).CopyFrom(result)
    return outcome


def invalid(message: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.INVALID, what=message, hint=hint)


def not_found(message: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.NOT_FOUND, what=message, hint=hint)


def exists(message: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.EXISTS, what=message, hint=hint)


def fenced(message: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.FENCED, what=message, hint=hint)


def not_now(message: str, hint: str) -> pb.Refusal:
    return pb.Refusal(why=pb.NOT_NOW, what=message, hint=hint)


def no_session(message: str) -> pb.Refusal:
    hint = "open a new session; whether earlier commands were applied can be seen by reading"
    return pb.Refusal(why=pb.NO_SESSION, what=message, hint=hint)


_PHASES = {pb.RUN_FINISHED: "finished", pb.RUN_FAILED: "failed", pb.RUN_STOPPED: "stopped"}


def any_run(state: CoordinatorRecords, name: str) -> RunRecord | pb.Refusal:
    record = state.runs.get(name) or state.ended_runs.get(name)
    if record is None:
        return not_found(f"there is no run {name!r}", "create it first, or list the runs for its name")
    return record


def open_run(state: CoordinatorRecords, name: str) -> RunRecord | pb.Refusal:
    record = state.runs.get(name)
    if record is not None:
        return record
    ended = any_run(state, name)
    if isinstance(ended, pb.Refusal):
        return ended
    return not_now(
        f"run {name!r} has ended ({_PHASES[ended.run.phase]})",
        "an ended run cannot change; create another one",
    )


def current_run(state: CoordinatorRecords, name: str, generation: int) -> RunRecord | pb.Refusal:
    """The run, if this generation is its newest and not revoked. Every change by a worker is checked here."""
    record = open_run(state, name)
    if isinstance(record, pb.Refusal):
        return record
    newest = record.newest
    if newest is None:
        return fenced(f"run {name!r} has no generation yet, not {generation}", "wait for its first one")
    if newest.number != generation:
        return fenced(
            f"generation {generation} of run {name!r} is over: the newest is {newest.number}",
            "stop working in it, and join the newest one",
        )
    if newest.is_revoked:
        return fenced(
            f"generation {generation} of run {name!r} was revoked: {newest.revoked_because}",
            "stop working in it, and wait for the next one",
        )
    return record

"""What does one command do? It is given the state and its place in the log, and notes what it changed."""

from dataclasses import dataclass, field

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state.model import ClusterRecords

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
class Turn:
    """Whoever refuses does so before the first change: a refused command leaves no trace."""

    state: ClusterRecords
    index: int
    by: str
    session: int
    changes: list[pb.Change] = field(default_factory=list)

    @property
    def now_ms(self) -> int:
        return self.state.now_ms

    def changed(self, record: Record) -> None:
        """Copies it: the caller of the machine may keep what it gets."""
        change = pb.Change(index=self.index, at_ms=self.state.now_ms)
        getattr(change, FIELDS[type(record)]).CopyFrom(record)
        self.changes.append(change)


def outcome_of(index: int, result: Result) -> pb.Outcome:
    outcome = pb.Outcome(index=index)
    getattr(outcome, FIELDS[type(result)]).CopyFrom(result)
    return outcome

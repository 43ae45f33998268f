"""Records of the replicated state: plain dictionaries of the messages in cluster.proto.

Live and ended records are kept separately, so that finding a live one is one look-up and
dropping the oldest ended ones is cheap. The order of every dictionary is part of the state: it
decides which record is dropped first.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from paceline.coordinator.proto import cluster_pb2 as pb

Key = TypeVar("Key")
Value = TypeVar("Value")
FLEET = "fleet"  # the record whose members are the agents of all hosts; it trains nothing and never ends
COMMANDS = "commands"  # the same of the commands that train runs with a store, each named by its run
STANDING = frozenset({FLEET, COMMANDS})
ENDED = frozenset({pb.RUN_FINISHED, pb.RUN_FAILED, pb.RUN_STOPPED})


@dataclass(slots=True)
class SessionRecord:
    session: int
    client: str
    nonce: str
    by: str  # who opened it
    used_elapsed_ms: int  # CoordinatorRecords.elapsed_ms when it was last used
    first_open: int = 0  # answers below it are forgotten
    answers: dict[int, bytes] = field(default_factory=dict)
    answer_bytes: int = 0


@dataclass(slots=True)
class Cursor:
    """Progress of an epoch's sample leases: a plain `SampleCursor`, as it changes with every lease.

    A protobuf message keeps the memory of removed elements until it is freed.
    """

    epoch: int = 0
    next: int = 0  # never leased in this epoch from here on
    committed: int = 0
    returned: list[tuple[int, int]] = field(default_factory=list)  # ranges, sorted and disjoint


@dataclass(slots=True)
class RunRecord:
    run: pb.Run
    generations: dict[int, pb.Generation] = field(default_factory=dict)
    workers: dict[str, pb.Worker] = field(default_factory=dict)  # the living ones, by name
    ended_workers: dict[int, pb.Worker] = field(default_factory=dict)  # by incarnation, oldest end first
    servers: dict[int, pb.ServerPlace] = field(default_factory=dict)
    committed: dict[int, pb.Checkpoint] = field(default_factory=dict)  # by step
    pending: dict[int, pb.Checkpoint] = field(default_factory=dict)  # open and abandoned ones, by step
    samples: Cursor = field(default_factory=Cursor)
    leases: dict[int, pb.SampleLease] = field(default_factory=dict)  # open ones
    consumed: dict[int, pb.SampleLease] = field(default_factory=dict)  # committed ones, the newest few
    alerts: dict[str, pb.AlertMark] = field(default_factory=dict)
    offer: pb.OfferRun | None = None  # to the fleet; None: its launcher starts the participants itself

    @property
    def newest(self) -> pb.Generation | None:
        return self.generations.get(self.run.generation)

    @property
    def has_ended(self) -> bool:
        return self.run.phase in ENDED


@dataclass(slots=True)
class LighthouseRecord:
    lighthouse: pb.Lighthouse
    issued: pb.IssuedQuorum | None = None  # the newest; a new message every time


@dataclass(slots=True)
class CoordinatorRecords:
    applied: int = 0
    now_ms: int = 0  # calendar time of the newest command, recorded only; nothing is decided by it
    elapsed_ms: int = 0  # that leaders have run, by their monotonic clocks, without standstills
    sessions: OrderedDict[int, SessionRecord] = field(default_factory=OrderedDict)  # longest unused first
    nonces: dict[tuple[str, str], int] = field(default_factory=dict)  # (by, nonce) of each session
    answer_bytes: int = 0  # total of all sessions
    nodes: dict[int, pb.NodeAddress] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)  # those that have not ended
    ended_runs: dict[str, RunRecord] = field(default_factory=dict)  # oldest end first
    actions: dict[int, pb.Action] = field(default_factory=dict)  # oldest first
    forgotten_generation: int = 0  # the highest of any run that is no longer kept
    lighthouses: dict[str, LighthouseRecord] = field(default_factory=dict)  # by job, oldest first


def keep_newest(records: dict[Key, Value], limit: int) -> list[Value]:
    """Drop the oldest records beyond `limit`, and return them."""
    dropped = []
    while len(records) > limit:
        dropped.append(records.pop(next(iter(records))))
    return dropped

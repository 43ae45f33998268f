from paceline.coordinator.proto import torchft_pb2 as _torchft_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_UNKNOWN: _ClassVar[RunPhase]
    RUN_WAITING: _ClassVar[RunPhase]
    RUN_RUNNING: _ClassVar[RunPhase]
    RUN_FINISHED: _ClassVar[RunPhase]
    RUN_FAILED: _ClassVar[RunPhase]
    RUN_STOPPED: _ClassVar[RunPhase]

class WorkerPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_UNKNOWN: _ClassVar[WorkerPhase]
    WORKER_JOINED: _ClassVar[WorkerPhase]
    WORKER_ACTIVE: _ClassVar[WorkerPhase]
    WORKER_LEFT: _ClassVar[WorkerPhase]
    WORKER_LOST: _ClassVar[WorkerPhase]

class CheckpointPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_UNKNOWN: _ClassVar[CheckpointPhase]
    CHECKPOINT_OPEN: _ClassVar[CheckpointPhase]
    CHECKPOINT_COMMITTED: _ClassVar[CheckpointPhase]
    CHECKPOINT_ABANDONED: _ClassVar[CheckpointPhase]
    CHECKPOINT_DROPPED: _ClassVar[CheckpointPhase]

class ActionPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNKNOWN: _ClassVar[ActionPhase]
    ACTION_REQUESTED: _ClassVar[ActionPhase]
    ACTION_ACCEPTED: _ClassVar[ActionPhase]
    ACTION_APPLIED: _ClassVar[ActionPhase]
    ACTION_EFFECT_SEEN: _ClassVar[ActionPhase]
    ACTION_REFUSED: _ClassVar[ActionPhase]
    ACTION_FAILED: _ClassVar[ActionPhase]

class Why(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WHY_UNKNOWN: _ClassVar[Why]
    INVALID: _ClassVar[Why]
    NOT_FOUND: _ClassVar[Why]
    EXISTS: _ClassVar[Why]
    FENCED: _ClassVar[Why]
    NOT_NOW: _ClassVar[Why]
    NO_SESSION: _ClassVar[Why]
RUN_UNKNOWN: RunPhase
RUN_WAITING: RunPhase
RUN_RUNNING: RunPhase
RUN_FINISHED: RunPhase
RUN_FAILED: RunPhase
RUN_STOPPED: RunPhase
WORKER_UNKNOWN: WorkerPhase
WORKER_JOINED: WorkerPhase
WORKER_ACTIVE: WorkerPhase
WORKER_LEFT: WorkerPhase
WORKER_LOST: WorkerPhase
CHECKPOINT_UNKNOWN: CheckpointPhase
CHECKPOINT_OPEN: CheckpointPhase
CHECKPOINT_COMMITTED: CheckpointPhase
CHECKPOINT_ABANDONED: CheckpointPhase
CHECKPOINT_DROPPED: CheckpointPhase
ACTION_UNKNOWN: ActionPhase
ACTION_REQUESTED: ActionPhase
ACTION_ACCEPTED: ActionPhase
ACTION_APPLIED: ActionPhase
ACTION_EFFECT_SEEN: ActionPhase
ACTION_REFUSED: ActionPhase
ACTION_FAILED: ActionPhase
WHY_UNKNOWN: Why
INVALID: Why
NOT_FOUND: Why
EXISTS: Why
FENCED: Why
NOT_NOW: Why
NO_SESSION: Why

class Entry(_message.Message):
    __slots__ = ("index", "term", "kind", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    kind: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., kind: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("kind", "sender", "to", "term", "index", "log_term", "entries", "commit", "rejected", "hint", "hint_term", "round", "is_transfer")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_TERM_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    HINT_TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    IS_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    kind: int
    sender: int
    to: int
    term: int
    index: int
    log_term: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    commit: int
    rejected: bool
    hint: int
    hint_term: int
    round: int
    is_transfer: bool
    def __init__(self, kind: _Optional[int] = ..., sender: _Optional[int] = ..., to: _Optional[int] = ..., term: _Optional[int] = ..., index: _Optional[int] = ..., log_term: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., commit: _Optional[int] = ..., rejected: _Optional[bool] = ..., hint: _Optional[int] = ..., hint_term: _Optional[int] = ..., round: _Optional[int] = ..., is_transfer: _Optional[bool] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("cluster", "messages")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    messages: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    def __init__(self, cluster: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ...) -> None: ...

class SnapshotPart(_message.Message):
    __slots__ = ("cluster", "message", "index", "term", "voters", "learners", "data", "crc", "is_last")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    message: RaftMessage
    index: int
    term: int
    voters: _containers.RepeatedScalarFieldContainer[int]
    learners: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    crc: int
    is_last: bool
    def __init__(self, cluster: _Optional[str] = ..., message: _Optional[_Union[RaftMessage, _Mapping]] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., voters: _Optional[_Iterable[int]] = ..., learners: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., crc: _Optional[int] = ..., is_last: _Optional[bool] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node", "cluster", "version", "role", "leader", "leader_address", "term", "commit", "applied", "last_index", "snapshot_index", "peers", "sessions", "leases", "up_ms", "cut_ms", "commit_timings", "fsync_timings", "elections", "proposals_failed")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    UP_MS_FIELD_NUMBER: _ClassVar[int]
    CUT_MS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMINGS_FIELD_NUMBER: _ClassVar[int]
    FSYNC_TIMINGS_FIELD_NUMBER: _ClassVar[int]
    ELECTIONS_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FAILED_FIELD_NUMBER: _ClassVar[int]
    node: int
    cluster: str
    version: str
    role: str
    leader: int
    leader_address: str
    term: int
    commit: int
    applied: int
    last_index: int
    snapshot_index: int
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    sessions: int
    leases: int
    up_ms: int
    cut_ms: int
    commit_timings: Timings
    fsync_timings: Timings
    elections: int
    proposals_failed: int
    def __init__(self, node: _Optional[int] = ..., cluster: _Optional[str] = ..., version: _Optional[str] = ..., role: _Optional[str] = ..., leader: _Optional[int] = ..., leader_address: _Optional[str] = ..., term: _Optional[int] = ..., commit: _Optional[int] = ..., applied: _Optional[int] = ..., last_index: _Optional[int] = ..., snapshot_index: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., sessions: _Optional[int] = ..., leases: _Optional[int] = ..., up_ms: _Optional[int] = ..., cut_ms: _Optional[int] = ..., commit_timings: _Optional[_Union[Timings, _Mapping]] = ..., fsync_timings: _Optional[_Union[Timings, _Mapping]] = ..., elections: _Optional[int] = ..., proposals_failed: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("counts", "total_s")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total_s: float
    def __init__(self, counts: _Optional[_Iterable[int]] = ..., total_s: _Optional[float] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("node", "address", "is_voter", "match", "lag", "sending", "is_connected", "round_trip_timings")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_VOTER_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    SENDING_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_TIMINGS_FIELD_NUMBER: _ClassVar[int]
    node: int
    address: str
    is_voter: bool
    match: int
    lag: int
    sending: str
    is_connected: bool
    round_trip_timings: Timings
    def __init__(self, node: _Optional[int] = ..., address: _Optional[str] = ..., is_voter: _Optional[bool] = ..., match: _Optional[int] = ..., lag: _Optional[int] = ..., sending: _Optional[str] = ..., is_connected: _Optional[bool] = ..., round_trip_timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class AddNode(_message.Message):
    __slots__ = ("node", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: int
    address: str
    def __init__(self, node: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class RemoveNode(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: int
    def __init__(self, node: _Optional[int] = ...) -> None: ...

class StepDownRequest(_message.Message):
    __slots__ = ("to",)
    TO_FIELD_NUMBER: _ClassVar[int]
    to: int
    def __init__(self, to: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CutRequest(_message.Message):
    __slots__ = ("cluster", "for_ms", "nodes", "pids", "others")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    for_ms: int
    nodes: _containers.RepeatedScalarFieldContainer[int]
    pids: _containers.RepeatedScalarFieldContainer[int]
    others: bool
    def __init__(self, cluster: _Optional[str] = ..., for_ms: _Optional[int] = ..., nodes: _Optional[_Iterable[int]] = ..., pids: _Optional[_Iterable[int]] = ..., others: _Optional[bool] = ...) -> None: ...

class CreateRun(_message.Message):
    __slots__ = ("run", "plan", "min_workers", "max_workers", "samples", "launcher", "external_id", "want_workers")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_ID_FIELD_NUMBER: _ClassVar[int]
    WANT_WORKERS_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan: str
    min_workers: int
    max_workers: int
    samples: int
    launcher: str
    external_id: str
    want_workers: int
    def __init__(self, run: _Optional[str] = ..., plan: _Optional[str] = ..., min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ..., samples: _Optional[int] = ..., launcher: _Optional[str] = ..., external_id: _Optional[str] = ..., want_workers: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run", "phase", "plan", "min_workers", "max_workers", "generation", "committed_step", "samples", "launcher", "external_id", "reason", "created_ms", "ended_ms", "want_workers")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    WANT_WORKERS_FIELD_NUMBER: _ClassVar[int]
    run: str
    phase: RunPhase
    plan: str
    min_workers: int
    max_workers: int
    generation: int
    committed_step: int
    samples: int
    launcher: str
    external_id: str
    reason: str
    created_ms: int
    ended_ms: int
    want_workers: int
    def __init__(self, run: _Optional[str] = ..., phase: _Optional[_Union[RunPhase, str]] = ..., plan: _Optional[str] = ..., min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ..., generation: _Optional[int] = ..., committed_step: _Optional[int] = ..., samples: _Optional[int] = ..., launcher: _Optional[str] = ..., external_id: _Optional[str] = ..., reason: _Optional[str] = ..., created_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ..., want_workers: _Optional[int] = ...) -> None: ...

class GetRun(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class RunView(_message.Message):
    __slots__ = ("run", "generation", "workers", "servers", "leases", "samples")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    run: Run
    generation: Generation
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    servers: _containers.RepeatedCompositeFieldContainer[ServerPlace]
    leases: _containers.RepeatedCompositeFieldContainer[SampleLease]
    samples: SampleCursor
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., generation: _Optional[_Union[Generation, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[ServerPlace, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[SampleLease, _Mapping]]] = ..., samples: _Optional[_Union[SampleCursor, _Mapping]] = ...) -> None: ...

class ListRuns(_message.Message):
    __slots__ = ("with_ended",)
    WITH_ENDED_FIELD_NUMBER: _ClassVar[int]
    with_ended: bool
    def __init__(self, with_ended: _Optional[bool] = ...) -> None: ...

class RunList(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class EndRun(_message.Message):
    __slots__ = ("run", "phase", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    phase: RunPhase
    reason: str
    def __init__(self, run: _Optional[str] = ..., phase: _Optional[_Union[RunPhase, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class FormGeneration(_message.Message):
    __slots__ = ("run", "previous", "workers", "step", "data_plan", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DATA_PLAN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    previous: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    step: int
    data_plan: str
    reason: str
    def __init__(self, run: _Optional[str] = ..., previous: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., data_plan: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("run", "number", "workers", "store_prefix", "step", "data_plan", "reason", "is_revoked", "revoked_because", "formed_ms", "revoked_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STORE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DATA_PLAN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_REVOKED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    FORMED_MS_FIELD_NUMBER: _ClassVar[int]
    REVOKED_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    number: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    store_prefix: str
    step: int
    data_plan: str
    reason: str
    is_revoked: bool
    revoked_because: str
    formed_ms: int
    revoked_ms: int
    def __init__(self, run: _Optional[str] = ..., number: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., store_prefix: _Optional[str] = ..., step: _Optional[int] = ..., data_plan: _Optional[str] = ..., reason: _Optional[str] = ..., is_revoked: _Optional[bool] = ..., revoked_because: _Optional[str] = ..., formed_ms: _Optional[int] = ..., revoked_ms: _Optional[int] = ...) -> None: ...

class RevokeGeneration(_message.Message):
    __slots__ = ("run", "generation", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    generation: int
    reason: str
    def __init__(self, run: _Optional[str] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CommitStep(_message.Message):
    __slots__ = ("run", "generation", "step")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    run: str
    generation: int
    step: int
    def __init__(self, run: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class OfferRun(_message.Message):
    __slots__ = ("run", "address", "certificate", "secret", "name")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    run: str
    address: str
    certificate: str
    secret: bytes
    name: str
    def __init__(self, run: _Optional[str] = ..., address: _Optional[str] = ..., certificate: _Optional[str] = ..., secret: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class ListOffers(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OfferList(_message.Message):
    __slots__ = ("offers",)
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    offers: _containers.RepeatedCompositeFieldContainer[OfferRun]
    def __init__(self, offers: _Optional[_Iterable[_Union[OfferRun, _Mapping]]] = ...) -> None: ...

class PlaceServer(_message.Message):
    __slots__ = ("run", "shard", "primary", "backup", "epoch")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    run: str
    shard: int
    primary: str
    backup: str
    epoch: int
    def __init__(self, run: _Optional[str] = ..., shard: _Optional[int] = ..., primary: _Optional[str] = ..., backup: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ServerPlace(_message.Message):
    __slots__ = ("run", "shard", "primary", "backup", "epoch")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    run: str
    shard: int
    primary: str
    backup: str
    epoch: int
    def __init__(self, run: _Optional[str] = ..., shard: _Optional[int] = ..., primary: _Optional[str] = ..., backup: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class PromoteBackup(_message.Message):
    __slots__ = ("run", "shard", "epoch", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    shard: int
    epoch: int
    reason: str
    def __init__(self, run: _Optional[str] = ..., shard: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaseSamples(_message.Message):
    __slots__ = ("run", "generation", "worker", "count")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    run: str
    generation: int
    worker: str
    count: int
    def __init__(self, run: _Optional[str] = ..., generation: _Optional[int] = ..., worker: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class SampleLease(_message.Message):
    __slots__ = ("run", "lease", "generation", "worker", "epoch", "first", "end", "is_committed", "is_returned")
    RUN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    IS_RETURNED_FIELD_NUMBER: _ClassVar[int]
    run: str
    lease: int
    generation: int
    worker: str
    epoch: int
    first: int
    end: int
    is_committed: bool
    is_returned: bool
    def __init__(self, run: _Optional[str] = ..., lease: _Optional[int] = ..., generation: _Optional[int] = ..., worker: _Optional[str] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ..., is_committed: _Optional[bool] = ..., is_returned: _Optional[bool] = ...) -> None: ...

class CommitSamples(_message.Message):
    __slots__ = ("run", "generation", "lease")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    run: str
    generation: int
    lease: int
    def __init__(self, run: _Optional[str] = ..., generation: _Optional[int] = ..., lease: _Optional[int] = ...) -> None: ...

class SampleRange(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class SampleCursor(_message.Message):
    __slots__ = ("epoch", "next", "returned", "committed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    next: int
    returned: _containers.RepeatedCompositeFieldContainer[SampleRange]
    committed: int
    def __init__(self, epoch: _Optional[int] = ..., next: _Optional[int] = ..., returned: _Optional[_Iterable[_Union[SampleRange, _Mapping]]] = ..., committed: _Optional[int] = ...) -> None: ...

class JoinRun(_message.Message):
    __slots__ = ("run", "worker", "address", "role", "facts")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    worker: str
    address: str
    role: str
    facts: _containers.ScalarMap[str, str]
    def __init__(self, run: _Optional[str] = ..., worker: _Optional[str] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("run", "worker", "incarnation", "phase", "address", "role", "facts", "reason", "joined_ms", "ended_ms")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JOINED_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    worker: str
    incarnation: int
    phase: WorkerPhase
    address: str
    role: str
    facts: _containers.ScalarMap[str, str]
    reason: str
    joined_ms: int
    ended_ms: int
    def __init__(self, run: _Optional[str] = ..., worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., phase: _Optional[_Union[WorkerPhase, str]] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., reason: _Optional[str] = ..., joined_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ...) -> None: ...

class LeaveRun(_message.Message):
    __slots__ = ("run", "worker", "incarnation", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    worker: str
    incarnation: int
    reason: str
    def __init__(self, run: _Optional[str] = ..., worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LoseWorker(_message.Message):
    __slots__ = ("run", "worker", "incarnation", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    worker: str
    incarnation: int
    reason: str
    def __init__(self, run: _Optional[str] = ..., worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ListWorkers(_message.Message):
    __slots__ = ("run", "with_ended")
    RUN_FIELD_NUMBER: _ClassVar[int]
    WITH_ENDED_FIELD_NUMBER: _ClassVar[int]
    run: str
    with_ended: bool
    def __init__(self, run: _Optional[str] = ..., with_ended: _Optional[bool] = ...) -> None: ...

class WorkerList(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("run", "worker", "incarnation", "generation", "step", "phase", "in_phase_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    IN_PHASE_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    worker: str
    incarnation: int
    generation: int
    step: int
    phase: str
    in_phase_ms: int
    def __init__(self, run: _Optional[str] = ..., worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[str] = ..., in_phase_ms: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("lease_ms", "change")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    change: Change
    def __init__(self, lease_ms: _Optional[int] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class BeginCheckpoint(_message.Message):
    __slots__ = ("run", "generation", "step", "shards", "facts")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    generation: int
    step: int
    shards: int
    facts: str
    def __init__(self, run: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., shards: _Optional[int] = ..., facts: _Optional[str] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("shard", "uri", "bytes", "sha256")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    shard: int
    uri: str
    bytes: int
    sha256: str
    def __init__(self, shard: _Optional[int] = ..., uri: _Optional[str] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class ShardDurable(_message.Message):
    __slots__ = ("run", "generation", "step", "shard")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    run: str
    generation: int
    step: int
    shard: Shard
    def __init__(self, run: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., shard: _Optional[_Union[Shard, _Mapping]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("run", "step", "generation", "phase", "shards_expected", "shards", "facts", "begun_ms", "committed_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    step: int
    generation: int
    phase: CheckpointPhase
    shards_expected: int
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    facts: str
    begun_ms: int
    committed_ms: int
    def __init__(self, run: _Optional[str] = ..., step: _Optional[int] = ..., generation: _Optional[int] = ..., phase: _Optional[_Union[CheckpointPhase, str]] = ..., shards_expected: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., facts: _Optional[str] = ..., begun_ms: _Optional[int] = ..., committed_ms: _Optional[int] = ...) -> None: ...

class DropCheckpoint(_message.Message):
    __slots__ = ("run", "step")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    run: str
    step: int
    def __init__(self, run: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class ListCheckpoints(_message.Message):
    __slots__ = ("run", "with_open")
    RUN_FIELD_NUMBER: _ClassVar[int]
    WITH_OPEN_FIELD_NUMBER: _ClassVar[int]
    run: str
    with_open: bool
    def __init__(self, run: _Optional[str] = ..., with_open: _Optional[bool] = ...) -> None: ...

class CheckpointList(_message.Message):
    __slots__ = ("checkpoints",)
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ...) -> None: ...

class RequestAction(_message.Message):
    __slots__ = ("run", "kind", "target", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    run: str
    kind: str
    target: str
    details: _containers.ScalarMap[str, str]
    def __init__(self, run: _Optional[str] = ..., kind: _Optional[str] = ..., target: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReportAction(_message.Message):
    __slots__ = ("action", "phase", "note")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    action: int
    phase: ActionPhase
    note: str
    def __init__(self, action: _Optional[int] = ..., phase: _Optional[_Union[ActionPhase, str]] = ..., note: _Optional[str] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("action", "run", "kind", "target", "details", "phase", "by", "steps")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    action: int
    run: str
    kind: str
    target: str
    details: _containers.ScalarMap[str, str]
    phase: ActionPhase
    by: str
    steps: _containers.RepeatedCompositeFieldContainer[ActionStep]
    def __init__(self, action: _Optional[int] = ..., run: _Optional[str] = ..., kind: _Optional[str] = ..., target: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ..., phase: _Optional[_Union[ActionPhase, str]] = ..., by: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[ActionStep, _Mapping]]] = ...) -> None: ...

class ActionStep(_message.Message):
    __slots__ = ("phase", "at_ms", "note")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    phase: ActionPhase
    at_ms: int
    note: str
    def __init__(self, phase: _Optional[_Union[ActionPhase, str]] = ..., at_ms: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class ListActions(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class ActionList(_message.Message):
    __slots__ = ("actions",)
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedCompositeFieldContainer[Action]
    def __init__(self, actions: _Optional[_Iterable[_Union[Action, _Mapping]]] = ...) -> None: ...

class AcknowledgeAlert(_message.Message):
    __slots__ = ("run", "alert", "note")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    run: str
    alert: str
    note: str
    def __init__(self, run: _Optional[str] = ..., alert: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class AlertMark(_message.Message):
    __slots__ = ("run", "alert", "by", "note", "at_ms", "is_forgotten")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    run: str
    alert: str
    by: str
    note: str
    at_ms: int
    is_forgotten: bool
    def __init__(self, run: _Optional[str] = ..., alert: _Optional[str] = ..., by: _Optional[str] = ..., note: _Optional[str] = ..., at_ms: _Optional[int] = ..., is_forgotten: _Optional[bool] = ...) -> None: ...

class ForgetAlert(_message.Message):
    __slots__ = ("run", "alert")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    run: str
    alert: str
    def __init__(self, run: _Optional[str] = ..., alert: _Optional[str] = ...) -> None: ...

class ListAlerts(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class AlertList(_message.Message):
    __slots__ = ("alerts",)
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    alerts: _containers.RepeatedCompositeFieldContainer[AlertMark]
    def __init__(self, alerts: _Optional[_Iterable[_Union[AlertMark, _Mapping]]] = ...) -> None: ...

class OpenLighthouse(_message.Message):
    __slots__ = ("job", "min_replicas", "join_timeout_ms", "heartbeat_timeout_ms")
    JOB_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    JOIN_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    job: str
    min_replicas: int
    join_timeout_ms: int
    heartbeat_timeout_ms: int
    def __init__(self, job: _Optional[str] = ..., min_replicas: _Optional[int] = ..., join_timeout_ms: _Optional[int] = ..., heartbeat_timeout_ms: _Optional[int] = ...) -> None: ...

class Lighthouse(_message.Message):
    __slots__ = ("job", "min_replicas", "join_timeout_ms", "heartbeat_timeout_ms", "quorum_id", "replicas", "since_ms", "opened", "is_forgotten")
    JOB_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    JOIN_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    IS_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    min_replicas: int
    join_timeout_ms: int
    heartbeat_timeout_ms: int
    quorum_id: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    since_ms: int
    opened: int
    is_forgotten: bool
    def __init__(self, job: _Optional[str] = ..., min_replicas: _Optional[int] = ..., join_timeout_ms: _Optional[int] = ..., heartbeat_timeout_ms: _Optional[int] = ..., quorum_id: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., since_ms: _Optional[int] = ..., opened: _Optional[int] = ..., is_forgotten: _Optional[bool] = ...) -> None: ...

class ForgetLighthouse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ListLighthouses(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LighthouseList(_message.Message):
    __slots__ = ("lighthouses",)
    LIGHTHOUSES_FIELD_NUMBER: _ClassVar[int]
    lighthouses: _containers.RepeatedCompositeFieldContainer[LighthouseState]
    def __init__(self, lighthouses: _Optional[_Iterable[_Union[LighthouseState, _Mapping]]] = ...) -> None: ...

class LighthouseState(_message.Message):
    __slots__ = ("lighthouse", "issued")
    LIGHTHOUSE_FIELD_NUMBER: _ClassVar[int]
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    lighthouse: Lighthouse
    issued: IssuedQuorum
    def __init__(self, lighthouse: _Optional[_Union[Lighthouse, _Mapping]] = ..., issued: _Optional[_Union[IssuedQuorum, _Mapping]] = ...) -> None: ...

class AskQuorum(_message.Message):
    __slots__ = ("job", "requester", "nonce")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    requester: _torchft_pb2.QuorumMember
    nonce: str
    def __init__(self, job: _Optional[str] = ..., requester: _Optional[_Union[_torchft_pb2.QuorumMember, _Mapping]] = ..., nonce: _Optional[str] = ...) -> None: ...

class QuorumSeat(_message.Message):
    __slots__ = ("member", "nonce")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    member: _torchft_pb2.QuorumMember
    nonce: str
    def __init__(self, member: _Optional[_Union[_torchft_pb2.QuorumMember, _Mapping]] = ..., nonce: _Optional[str] = ...) -> None: ...

class IssueQuorum(_message.Message):
    __slots__ = ("job", "previous", "seats")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    job: str
    previous: int
    seats: _containers.RepeatedCompositeFieldContainer[QuorumSeat]
    def __init__(self, job: _Optional[str] = ..., previous: _Optional[int] = ..., seats: _Optional[_Iterable[_Union[QuorumSeat, _Mapping]]] = ...) -> None: ...

class IssuedQuorum(_message.Message):
    __slots__ = ("round", "quorum_id", "seats", "created_ms")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    round: int
    quorum_id: int
    seats: _containers.RepeatedCompositeFieldContainer[QuorumSeat]
    created_ms: int
    def __init__(self, round: _Optional[int] = ..., quorum_id: _Optional[int] = ..., seats: _Optional[_Iterable[_Union[QuorumSeat, _Mapping]]] = ..., created_ms: _Optional[int] = ...) -> None: ...

class ReplicaBeats(_message.Message):
    __slots__ = ("job", "beats")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BEATS_FIELD_NUMBER: _ClassVar[int]
    job: str
    beats: _containers.RepeatedCompositeFieldContainer[ReplicaBeat]
    def __init__(self, job: _Optional[str] = ..., beats: _Optional[_Iterable[_Union[ReplicaBeat, _Mapping]]] = ...) -> None: ...

class ReplicaBeat(_message.Message):
    __slots__ = ("replica_id", "age_ms")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    age_ms: int
    def __init__(self, replica_id: _Optional[str] = ..., age_ms: _Optional[int] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("id", "command")
    ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    id: int
    command: Command
    def __init__(self, id: _Optional[int] = ..., command: _Optional[_Union[Command, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "outcome", "declined")
    ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    id: int
    outcome: Outcome
    declined: Declined
    def __init__(self, id: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., declined: _Optional[_Union[Declined, _Mapping]] = ...) -> None: ...

class Declined(_message.Message):
    __slots__ = ("code", "why", "what", "hint", "leader")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    code: int
    why: str
    what: str
    hint: str
    leader: str
    def __init__(self, code: _Optional[int] = ..., why: _Optional[str] = ..., what: _Optional[str] = ..., hint: _Optional[str] = ..., leader: _Optional[str] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("client", "nonce")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    client: str
    nonce: str
    def __init__(self, client: _Optional[str] = ..., nonce: _Optional[str] = ...) -> None: ...

class CloseSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Session(_message.Message):
    __slots__ = ("session", "client", "nonce", "first_open", "answers", "by", "used_elapsed_ms")
    class AnswersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_OPEN_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    USED_ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    client: str
    nonce: str
    first_open: int
    answers: _containers.ScalarMap[int, bytes]
    by: str
    used_elapsed_ms: int
    def __init__(self, session: _Optional[int] = ..., client: _Optional[str] = ..., nonce: _Optional[str] = ..., first_open: _Optional[int] = ..., answers: _Optional[_Mapping[int, bytes]] = ..., by: _Optional[str] = ..., used_elapsed_ms: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("run", "after")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    run: str
    after: int
    def __init__(self, run: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("index", "at_ms", "run", "generation", "worker", "server", "checkpoint", "action", "alert", "node", "samples", "lighthouse")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LIGHTHOUSE_FIELD_NUMBER: _ClassVar[int]
    index: int
    at_ms: int
    run: Run
    generation: Generation
    worker: Worker
    server: ServerPlace
    checkpoint: Checkpoint
    action: Action
    alert: AlertMark
    node: NodeAddress
    samples: SampleLease
    lighthouse: Lighthouse
    def __init__(self, index: _Optional[int] = ..., at_ms: _Optional[int] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., generation: _Optional[_Union[Generation, _Mapping]] = ..., worker: _Optional[_Union[Worker, _Mapping]] = ..., server: _Optional[_Union[ServerPlace, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., action: _Optional[_Union[Action, _Mapping]] = ..., alert: _Optional[_Union[AlertMark, _Mapping]] = ..., node: _Optional[_Union[NodeAddress, _Mapping]] = ..., samples: _Optional[_Union[SampleLease, _Mapping]] = ..., lighthouse: _Optional[_Union[Lighthouse, _Mapping]] = ...) -> None: ...

class NodeAddress(_message.Message):
    __slots__ = ("node", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: int
    address: str
    def __init__(self, node: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("session", "sequence", "first_open", "at_ms", "by", "elapsed_ms", "open_session", "close_session", "name_node", "create_run", "end_run", "form_generation", "revoke_generation", "commit_step", "place_server", "promote_backup", "lease_samples", "commit_samples", "offer_run", "join", "leave", "lose_worker", "begin_checkpoint", "shard_durable", "drop_checkpoint", "request_action", "report_action", "acknowledge_alert", "forget_alert", "open_lighthouse", "issue_quorum", "forget_lighthouse")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_OPEN_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSION_FIELD_NUMBER: _ClassVar[int]
    CLOSE_SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_NODE_FIELD_NUMBER: _ClassVar[int]
    CREATE_RUN_FIELD_NUMBER: _ClassVar[int]
    END_RUN_FIELD_NUMBER: _ClassVar[int]
    FORM_GENERATION_FIELD_NUMBER: _ClassVar[int]
    REVOKE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_STEP_FIELD_NUMBER: _ClassVar[int]
    PLACE_SERVER_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_BACKUP_FIELD_NUMBER: _ClassVar[int]
    LEASE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    OFFER_RUN_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    LOSE_WORKER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SHARD_DURABLE_FIELD_NUMBER: _ClassVar[int]
    DROP_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ACTION_FIELD_NUMBER: _ClassVar[int]
    REPORT_ACTION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_ALERT_FIELD_NUMBER: _ClassVar[int]
    FORGET_ALERT_FIELD_NUMBER: _ClassVar[int]
    OPEN_LIGHTHOUSE_FIELD_NUMBER: _ClassVar[int]
    ISSUE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    FORGET_LIGHTHOUSE_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    first_open: int
    at_ms: int
    by: str
    elapsed_ms: int
    open_session: OpenSession
    close_session: CloseSession
    name_node: NodeAddress
    create_run: CreateRun
    end_run: EndRun
    form_generation: FormGeneration
    revoke_generation: RevokeGeneration
    commit_step: CommitStep
    place_server: PlaceServer
    promote_backup: PromoteBackup
    lease_samples: LeaseSamples
    commit_samples: CommitSamples
    offer_run: OfferRun
    join: JoinRun
    leave: LeaveRun
    lose_worker: LoseWorker
    begin_checkpoint: BeginCheckpoint
    shard_durable: ShardDurable
    drop_checkpoint: DropCheckpoint
    request_action: RequestAction
    report_action: ReportAction
    acknowledge_alert: AcknowledgeAlert
    forget_alert: ForgetAlert
    open_lighthouse: OpenLighthouse
    issue_quorum: IssueQuorum
    forget_lighthouse: ForgetLighthouse
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., first_open: _Optional[int] = ..., at_ms: _Optional[int] = ..., by: _Optional[str] = ..., elapsed_ms: _Optional[int] = ..., open_session: _Optional[_Union[OpenSession, _Mapping]] = ..., close_session: _Optional[_Union[CloseSession, _Mapping]] = ..., name_node: _Optional[_Union[NodeAddress, _Mapping]] = ..., create_run: _Optional[_Union[CreateRun, _Mapping]] = ..., end_run: _Optional[_Union[EndRun, _Mapping]] = ..., form_generation: _Optional[_Union[FormGeneration, _Mapping]] = ..., revoke_generation: _Optional[_Union[RevokeGeneration, _Mapping]] = ..., commit_step: _Optional[_Union[CommitStep, _Mapping]] = ..., place_server: _Optional[_Union[PlaceServer, _Mapping]] = ..., promote_backup: _Optional[_Union[PromoteBackup, _Mapping]] = ..., lease_samples: _Optional[_Union[LeaseSamples, _Mapping]] = ..., commit_samples: _Optional[_Union[CommitSamples, _Mapping]] = ..., offer_run: _Optional[_Union[OfferRun, _Mapping]] = ..., join: _Optional[_Union[JoinRun, _Mapping]] = ..., leave: _Optional[_Union[LeaveRun, _Mapping]] = ..., lose_worker: _Optional[_Union[LoseWorker, _Mapping]] = ..., begin_checkpoint: _Optional[_Union[BeginCheckpoint, _Mapping]] = ..., shard_durable: _Optional[_Union[ShardDurable, _Mapping]] = ..., drop_checkpoint: _Optional[_Union[DropCheckpoint, _Mapping]] = ..., request_action: _Optional[_Union[RequestAction, _Mapping]] = ..., report_action: _Optional[_Union[ReportAction, _Mapping]] = ..., acknowledge_alert: _Optional[_Union[AcknowledgeAlert, _Mapping]] = ..., forget_alert: _Optional[_Union[ForgetAlert, _Mapping]] = ..., open_lighthouse: _Optional[_Union[OpenLighthouse, _Mapping]] = ..., issue_quorum: _Optional[_Union[IssueQuorum, _Mapping]] = ..., forget_lighthouse: _Optional[_Union[ForgetLighthouse, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("why", "what", "hint")
    WHY_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    why: Why
    what: str
    hint: str
    def __init__(self, why: _Optional[_Union[Why, str]] = ..., what: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("index", "refusal", "run", "generation", "worker", "server", "checkpoint", "action", "alert", "node", "samples", "session", "lighthouse", "quorum")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LIGHTHOUSE_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    index: int
    refusal: Refusal
    run: Run
    generation: Generation
    worker: Worker
    server: ServerPlace
    checkpoint: Checkpoint
    action: Action
    alert: AlertMark
    node: NodeAddress
    samples: SampleLease
    session: Session
    lighthouse: Lighthouse
    quorum: IssuedQuorum
    def __init__(self, index: _Optional[int] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., generation: _Optional[_Union[Generation, _Mapping]] = ..., worker: _Optional[_Union[Worker, _Mapping]] = ..., server: _Optional[_Union[ServerPlace, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., action: _Optional[_Union[Action, _Mapping]] = ..., alert: _Optional[_Union[AlertMark, _Mapping]] = ..., node: _Optional[_Union[NodeAddress, _Mapping]] = ..., samples: _Optional[_Union[SampleLease, _Mapping]] = ..., session: _Optional[_Union[Session, _Mapping]] = ..., lighthouse: _Optional[_Union[Lighthouse, _Mapping]] = ..., quorum: _Optional[_Union[IssuedQuorum, _Mapping]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("applied", "now_ms", "sessions", "nodes", "runs", "actions", "forgotten_generation", "elapsed_ms", "lighthouses")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    LIGHTHOUSES_FIELD_NUMBER: _ClassVar[int]
    applied: int
    now_ms: int
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeAddress]
    runs: _containers.RepeatedCompositeFieldContainer[RunState]
    actions: _containers.RepeatedCompositeFieldContainer[Action]
    forgotten_generation: int
    elapsed_ms: int
    lighthouses: _containers.RepeatedCompositeFieldContainer[LighthouseState]
    def __init__(self, applied: _Optional[int] = ..., now_ms: _Optional[int] = ..., sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeAddress, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[RunState, _Mapping]]] = ..., actions: _Optional[_Iterable[_Union[Action, _Mapping]]] = ..., forgotten_generation: _Optional[int] = ..., elapsed_ms: _Optional[int] = ..., lighthouses: _Optional[_Iterable[_Union[LighthouseState, _Mapping]]] = ...) -> None: ...

class RunState(_message.Message):
    __slots__ = ("run", "generations", "workers", "servers", "checkpoints", "samples", "leases", "alerts", "offer")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    run: Run
    generations: _containers.RepeatedCompositeFieldContainer[Generation]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    servers: _containers.RepeatedCompositeFieldContainer[ServerPlace]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    samples: SampleCursor
    leases: _containers.RepeatedCompositeFieldContainer[SampleLease]
    alerts: _containers.RepeatedCompositeFieldContainer[AlertMark]
    offer: OfferRun
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., generations: _Optional[_Iterable[_Union[Generation, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[ServerPlace, _Mapping]]] = ..., checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., samples: _Optional[_Union[SampleCursor, _Mapping]] = ..., leases: _Optional[_Iterable[_Union[SampleLease, _Mapping]]] = ..., alerts: _Optional[_Iterable[_Union[AlertMark, _Mapping]]] = ..., offer: _Optional[_Union[OfferRun, _Mapping]] = ...) -> None: ...

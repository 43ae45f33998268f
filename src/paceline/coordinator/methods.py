"""Method table of the coordinator's API, shared by servers and clients.

A write becomes the field `command` of a Command in the log, and its reply is the field `result`
of the Outcome. A read is served from the state, after a read-index round. Methods that are not
in the table are streams, or concern one node only.
"""

from dataclasses import dataclass

import grpc
from google.protobuf.message import Message

from paceline.coordinator.proto import cluster_pb2 as pb

PACKAGE = "paceline.cluster.v1"

# Metadata.
SESSION = "paceline-session"
SEQUENCE = "paceline-sequence"
FIRST_OPEN = "paceline-open"
WHY = "paceline-why"
LEADER = "paceline-leader"
NOT_LEADER = "NOT_LEADER"  # a `why` in addition to those of the proto

# The status of what the cluster agreed to refuse.
CODES = {
    pb.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    pb.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    pb.EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    pb.FENCED: grpc.StatusCode.ABORTED,
    pb.NOT_NOW: grpc.StatusCode.FAILED_PRECONDITION,
    pb.NO_SESSION: grpc.StatusCode.FAILED_PRECONDITION,
}


@dataclass(frozen=True, slots=True)
class Write:
    service: str
    name: str
    request: type[Message]
    reply: type[Message]
    command: str
    result: str


@dataclass(frozen=True, slots=True)
class Read:
    service: str
    name: str
    request: type[Message]
    reply: type[Message]


def path(service: str, name: str) -> str:
    return f"/{PACKAGE}.{service}/{name}"


WRITES = (
    Write("Sessions", "Open", pb.OpenSession, pb.Session, "open_session", "session"),
    Write("Sessions", "Close", pb.CloseSession, pb.Session, "close_session", "session"),
    Write("Runs", "Create", pb.CreateRun, pb.Run, "create_run", "run"),
    Write("Runs", "End", pb.EndRun, pb.Run, "end_run", "run"),
    Write("Runs", "Form", pb.FormGeneration, pb.Generation, "form_generation", "generation"),
    Write("Runs", "Revoke", pb.RevokeGeneration, pb.Generation, "revoke_generation", "generation"),
    Write("Runs", "Advance", pb.CommitStep, pb.Run, "commit_step", "run"),
    Write("Runs", "Place", pb.PlaceServer, pb.ServerPlace, "place_server", "server"),
    Write("Runs", "Promote", pb.PromoteBackup, pb.ServerPlace, "promote_backup", "server"),
    Write("Runs", "Lease", pb.LeaseSamples, pb.SampleLease, "lease_samples", "samples"),
    Write("Runs", "Consume", pb.CommitSamples, pb.SampleLease, "commit_samples", "samples"),
    Write("Runs", "Offer", pb.OfferRun, pb.Run, "offer_run", "run"),
    Write("Members", "Join", pb.JoinRun, pb.Worker, "join", "worker"),
    Write("Members", "Leave", pb.LeaveRun, pb.Worker, "leave", "worker"),
    Write("Checkpoints", "Begin", pb.BeginCheckpoint, pb.Checkpoint, "begin_checkpoint", "checkpoint"),
    Write("Checkpoints", "Report", pb.ShardDurable, pb.Checkpoint, "shard_durable", "checkpoint"),
    Write("Checkpoints", "Drop", pb.DropCheckpoint, pb.Checkpoint, "drop_checkpoint", "checkpoint"),
    Write("Actions", "Request", pb.RequestAction, pb.Action, "request_action", "action"),
    Write("Actions", "Report", pb.ReportAction, pb.Action, "report_action", "action"),
    Write("Actions", "Acknowledge", pb.AcknowledgeAlert, pb.AlertMark, "acknowledge_alert", "alert"),
    Write("Actions", "Forget", pb.ForgetAlert, pb.AlertMark, "forget_alert", "alert"),
    Write("Lighthouses", "Open", pb.OpenLighthouse, pb.Lighthouse, "open_lighthouse", "lighthouse"),
    Write("Lighthouses", "Forget", pb.ForgetLighthouse, pb.Lighthouse, "forget_lighthouse", "lighthouse"),
)

READS = (
    Read("Runs", "Get", pb.GetRun, pb.RunView),
    Read("Runs", "List", pb.ListRuns, pb.RunList),
    Read("Runs", "Offers", pb.ListOffers, pb.OfferList),
    Read("Members", "List", pb.ListWorkers, pb.WorkerList),
    Read("Checkpoints", "List", pb.ListCheckpoints, pb.CheckpointList),
    Read("Actions", "List", pb.ListActions, pb.ActionList),
    Read("Actions", "Alerts", pb.ListAlerts, pb.AlertList),
    Read("Lighthouses", "List", pb.ListLighthouses, pb.LighthouseList),
)

"""Record of an action in the coordinator's log, if the run has a coordinator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.coordinator import run_endpoint
from paceline.coordinator.client import endpoints
from paceline.coordinator.client.aio import NotNowError, RefusedError, UnreachableError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import TrainingError
from paceline.faults.actions.request import WORKER_ACTIONS, ActionKind, ActionRequest, Phase
from paceline.plan.plan import Plan

PATIENCE_S = 3.0
POLL_S = 0.05
_PHASES = {
    Phase.ACCEPTED: pb.ACTION_ACCEPTED,
    Phase.APPLIED: pb.ACTION_APPLIED,
    Phase.EFFECT_SEEN: pb.ACTION_EFFECT_SEEN,
    Phase.REFUSED: pb.ACTION_REFUSED,
    Phase.FAILED: pb.ACTION_FAILED,
}


class ActionRecord(Protocol):
    in_words: str

    def report(self, phase: Phase, note: str) -> None: ...

    def await_accepted(self, within_s: float) -> str:
        """Until the run itself has taken it up."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class NoActionRecord:
    in_words: str

    def report(self, phase: Phase, note: str) -> None: ...

    def await_accepted(self, within_s: float) -> str:
        raise TrainingError(self.in_words, "ask again once the coordinator is back")

    def close(self) -> None: ...


def open_record(run_dir: Path, wanted: ActionRequest, plan: Plan) -> ActionRecord:
    """A coordinator that is silent keeps nobody from striking a worker: that may be the experiment."""
    if plan.elastic is None:
        return NoActionRecord("checked here; the run has no coordinator")
    try:
        return _CoordinatorRecord(run_dir, wanted)
    except (UnreachableError, RefusedError, run_endpoint.NotRunningError) as error:
        return NoActionRecord(f"checked here; the coordinator did not note it: {error.what}")


class _CoordinatorRecord:
    def __init__(self, run_dir: Path, wanted: ActionRequest) -> None:
        seat = run_endpoint.find_endpoint(run_dir)
        where = endpoints.EndpointOptions(usual_folder=run_dir, at=seat.addresses, token_file=seat.token_file)
        found = endpoints.find_endpoints(where)
        self._client = BlockingClient(found.addresses, found.access, patience_s=PATIENCE_S)
        details = {"by": wanted.by, "source": wanted.source, "id": wanted.id}
        # The coordinator's target is one living worker; a partition has several, and nodes.
        is_one = wanted.deed in WORKER_ACTIONS
        if not is_one and wanted.worker:
            details["names"] = wanted.worker
        target = wanted.worker if is_one else ""
        asking = pb.RequestAction(run=seat.run, kind=wanted.deed.value, target=target, details=details)
        try:
            self._action = self._client.write("Actions.Request", asking, pb.Action)
        except BaseException:
            self._client.close()
            raise
        self.in_words = f"the coordinator's leader noted it as entry {self._action.action} of its log"
        # A checkpoint is accepted by the run itself.
        self._accepts = wanted.deed is not ActionKind.CHECKPOINT

    def report(self, phase: Phase, note: str) -> None:
        if phase is Phase.ACCEPTED and not self._accepts:
            return
        try:
            said = pb.ReportAction(action=self._action.action, phase=_PHASES[phase], note=note)
            self._client.write("Actions.Report", said, pb.Action)
        except NotNowError:
            pass  # it was said already, and the answer was lost
        except (RefusedError, UnreachableError) as error:
            self.in_words = f"{self.in_words}; later it was not heard: {error.what}"

    def await_accepted(self, within_s: float) -> str:
        until_s = monotonic_s() + within_s
        while monotonic_s() < until_s:
            listed = self._client.read(
                "Actions.List", pb.ListActions(run=self._action.run), pb.ActionList
            ).actions
            found = next((action for action in listed if action.action == self._action.action), None)
            if found is None:
                raise TrainingError("the coordinator has forgotten it", "ask again")
            if found.phase in (pb.ACTION_REFUSED, pb.ACTION_FAILED):
                raise TrainingError(f"the run did not do it: {found.steps[-1].note}", "look at its log")
            if found.phase >= pb.ACTION_ACCEPTED:
                return found.steps[-1].note
            SystemClock().sleep(POLL_S)
        raise TrainingError(
            "nobody has taken it up", "look whether the command that began the run still lives"
        )

    def close(self) -> None:
        self._client.close()

"""Record of an action in the coordinator's log, if the run has a coordinator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.coordinator import run_endpoint
from paceline.coordinator.client.aio import NotNowError, RefusedError, UnreachableError
from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import TrainingError
from paceline.faults.actions.request import WORKER_ACTIONS, ActionKind, ActionRequest, Phase
from paceline.plan.plan import Plan
from paceline.training.action_poller import EXECUTED_BY_CLIENT

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
    text: str

    def report(self, phase: Phase, note: str) -> None: ...

    def await_accepted(self, within_s: float) -> str:
        """Wait until the run itself has accepted it."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class NoActionRecord:
    text: str

    def report(self, phase: Phase, note: str) -> None: ...

    def await_accepted(self, within_s: float) -> str:
        raise TrainingError(self.text, "retry once the coordinator is back")

    def close(self) -> None: ...


def open_record(run_dir: Path, request: ActionRequest, plan: Plan) -> ActionRecord:
    """An unreachable coordinator does not prevent an action: its outage may be the experiment."""
    if plan.elastic is None:
        return NoActionRecord("checked here; the run has no coordinator")
    try:
        return _CoordinatorRecord(run_dir, request)
    except (UnreachableError, RefusedError, run_endpoint.NotRunningError) as error:
        return NoActionRecord(f"checked here; the coordinator did not record it: {error.what}")


class _CoordinatorRecord:
    def __init__(self, run_dir: Path, request: ActionRequest) -> None:
        endpoint = run_endpoint.find_endpoint(run_dir)
        self._client = open_coordinators(endpoint.coordinators).blocking_client(PATIENCE_S)
        details = {"by": request.by, "source": request.source, "id": request.id}
        # A checkpoint is accepted by the run itself.
        self._accepts = request.kind is not ActionKind.CHECKPOINT
        if self._accepts:
            details["executor"] = EXECUTED_BY_CLIENT
        # The coordinator's target is one living worker; a partition has several, and nodes.
        has_one_target = request.kind in WORKER_ACTIONS
        if not has_one_target and request.worker:
            details["names"] = request.worker
        target = request.worker if has_one_target else ""
        message = pb.RequestAction(run=endpoint.run, kind=request.kind.value, target=target, details=details)
        try:
            self._action = self._client.write("Actions.Request", message, pb.Action)
        except BaseException:
            self._client.close()
            raise
        self.text = f"recorded by the coordinator as entry {self._action.action} of its log"

    def report(self, phase: Phase, note: str) -> None:
        if phase is Phase.ACCEPTED and not self._accepts:
            return
        try:
            report = pb.ReportAction(action=self._action.action, phase=_PHASES[phase], note=note)
            self._client.write("Actions.Report", report, pb.Action)
        except NotNowError:
            pass  # already reported; only the reply was lost
        except (RefusedError, UnreachableError) as error:
            self.text = f"{self.text}; then the coordinator was unreachable: {error.what}"

    def await_accepted(self, within_s: float) -> str:
        until_s = monotonic_s() + within_s
        while monotonic_s() < until_s:
            listed = self._client.read(
                "Actions.List", pb.ListActions(run=self._action.run), pb.ActionList
            ).actions
            action = next((action for action in listed if action.action == self._action.action), None)
            if action is None:
                raise TrainingError("the coordinator no longer has it", "run the command again")
            if action.phase in (pb.ACTION_REFUSED, pb.ACTION_FAILED):
                raise TrainingError(f"the run did not do it: {action.steps[-1].note}", "see its log")
            if action.phase >= pb.ACTION_ACCEPTED:
                return action.steps[-1].note
            SystemClock().sleep(POLL_S)
        raise TrainingError(
            "the launcher has not accepted the request",
            "check that the command that started the run is still running",
        )

    def close(self) -> None:
        self._client.close()

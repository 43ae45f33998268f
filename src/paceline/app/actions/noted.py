"""How does the coordinator of a run hear what was asked of it? As an action in its log, if there is one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.app import cluster_access, run_seat
from paceline.app.actions.wanted import OF_A_WORKER, Deed, Phase, Wanted
from paceline.clock import SystemClock, monotonic_s
from paceline.coordinator.blocking import BlockingClient
from paceline.coordinator.client import NotNowError, RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.errors import TrainingError
from paceline.plan.plan import Plan

PATIENCE_S = 3.0
LOOK_S = 0.05
_PHASES = {
    Phase.ACCEPTED: pb.ACTION_ACCEPTED,
    Phase.APPLIED: pb.ACTION_APPLIED,
    Phase.EFFECT_SEEN: pb.ACTION_EFFECT_SEEN,
    Phase.REFUSED: pb.ACTION_REFUSED,
    Phase.FAILED: pb.ACTION_FAILED,
}


class Note(Protocol):
    in_words: str

    def report(self, phase: Phase, note: str) -> None: ...

    def await_accepted(self, within_s: float) -> str:
        """Until the run itself has taken it up."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Nowhere:
    in_words: str

    def report(self, phase: Phase, note: str) -> None: ...

    def await_accepted(self, within_s: float) -> str:
        raise TrainingError(self.in_words, "ask again once the coordinator is back")

    def close(self) -> None: ...


def open_note(run_dir: Path, wanted: Wanted, plan: Plan) -> Note:
    """A coordinator that is silent keeps nobody from striking a worker: that may be the experiment."""
    if plan.elastic is None:
        return Nowhere("checked here; the run has no coordinator")
    try:
        return _Coordinated(run_dir, wanted)
    except (UnreachableError, RefusedError, run_seat.NotRunningError) as error:
        return Nowhere(f"checked here; the coordinator did not note it: {error.what}")


class _Coordinated:
    def __init__(self, run_dir: Path, wanted: Wanted) -> None:
        seat = run_seat.find(run_dir)
        where = cluster_access.Where(usual_folder=run_dir, at=seat.addresses, token_file=seat.token_file)
        found = cluster_access.find(where)
        self._client = BlockingClient(found.addresses, found.access, patience_s=PATIENCE_S)
        details = {"by": wanted.by, "source": wanted.source, "id": wanted.id}
        # The coordinator's target is one living worker; a partition has several, and nodes.
        is_one = wanted.deed in OF_A_WORKER
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
        self._accepts = wanted.deed is not Deed.CHECKPOINT

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
            SystemClock().sleep(LOOK_S)
        raise TrainingError(
            "nobody has taken it up", "look whether the command that began the run still lives"
        )

    def close(self) -> None:
        self._client.close()

"""Actions on a run through its coordinator, for commands that see neither its folder nor its processes.

The request is an entry of the coordinator's log. The command that trains the run reads it, executes it and
reports each phase there (training/action_poller.py); this side waits and passes the phases on. A request
that no command accepts is withdrawn, so that a command which reconnects later does not execute it.
"""

from collections.abc import Callable

from paceline.coordinator.client.aio import NotNowError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import NotRunningError
from paceline.core.clock import SystemClock, monotonic_s
from paceline.faults.actions.request import LAST_PHASES, ActionKind, ActionRequest, Phase, Step
from paceline.faults.workers import RunAt, open_run
from paceline.training.action_poller import OUTCOMES

ACCEPT_TIMEOUT_S = 30.0  # the command polls every two seconds, and may have to find a new leader
EFFECT_TIMEOUT_S = 60.0
POLL_S = 0.05
_PHASES = {
    pb.ACTION_REQUESTED: Phase.REQUESTED,
    pb.ACTION_ACCEPTED: Phase.ACCEPTED,
    pb.ACTION_APPLIED: Phase.APPLIED,
    pb.ACTION_EFFECT_SEEN: Phase.EFFECT_SEEN,
    pb.ACTION_REFUSED: Phase.REFUSED,
    pb.ACTION_FAILED: Phase.FAILED,
}


def request_remotely(
    target: RunAt,
    request: ActionRequest,
    on_step: Callable[[Step], None],
    *,
    accept_s: float = ACCEPT_TIMEOUT_S,
) -> Step:
    """Wait until the effect is seen or the action failed; returns the last step."""
    assert not request.worker, "requests through the coordinator are for the whole run"
    details = {"by": request.by, "source": request.source, "id": request.id}
    with open_run(target) as (run, client):
        message = pb.RequestAction(run=run, kind=request.kind.value, details=details)
        action = client.write("Actions.Request", message, pb.Action)
        return _Waiting(client, target, action, on_step, accept_s).run(request.kind)


class _Waiting:
    """One request, until its last phase."""

    def __init__(
        self,
        client: BlockingClient,
        target: RunAt,
        action: pb.Action,
        on_step: Callable[[Step], None],
        accept_s: float,
    ) -> None:
        self._client = client
        self._target = target
        self._action = action
        self._on_step = on_step
        self._accept_s = accept_s
        self._began_s = monotonic_s()
        self._passed_on = 0  # steps of the action

    def run(self, kind: ActionKind) -> Step:
        while True:
            last = self._pass_on_steps()
            if last.phase in LAST_PHASES:
                return last
            if outcome := self._outcome_of_run():
                return self._end(kind, outcome)
            waited_s = monotonic_s() - self._began_s
            if last.phase is Phase.REQUESTED and waited_s > self._accept_s:
                self._withdraw()
            elif waited_s > self._accept_s + EFFECT_TIMEOUT_S:
                return self._report(Phase.FAILED, f"no effect within {waited_s:.0f} s")
            SystemClock().sleep(POLL_S)
            self._read()

    def _read(self) -> None:
        listing = pb.ListActions(run=self._action.run)
        actions = self._client.read("Actions.List", listing, pb.ActionList).actions
        self._action = next(action for action in actions if action.action == self._action.action)

    def _pass_on_steps(self) -> Step:
        """The newest step."""
        requested_ms = self._action.steps[0].at_ms
        steps = [
            Step(_PHASES[step.phase], step.note or self._note(step), (step.at_ms - requested_ms) / 1000)
            for step in self._action.steps
        ]
        for step in steps[self._passed_on :]:
            self._on_step(step)
        self._passed_on = len(steps)
        return steps[-1]

    def _note(self, step: pb.ActionStep) -> str:
        if step.phase != pb.ACTION_REQUESTED:
            return ""
        return f"entry {self._action.action} of the coordinator's log, by {self._action.by}"

    def _outcome_of_run(self) -> str:
        """How the run ended; empty: it has not."""
        view = self._client.read("Runs.Get", pb.GetRun(run=self._action.run), pb.RunView)
        return OUTCOMES.get(view.run.phase, "")

    def _end(self, kind: ActionKind, outcome: str) -> Step:
        """The run ended before the action had its last phase, or before that could be reported."""
        self._read()
        last = self._pass_on_steps()
        if last.phase in LAST_PHASES:
            return last
        phase = Phase.EFFECT_SEEN if kind is ActionKind.STOP else Phase.FAILED
        return self._report(phase, f"the run ended: {outcome}")

    def _report(self, phase: Phase, note: str) -> Step:
        step = Step(phase, note, round(monotonic_s() - self._began_s, 3))
        self._on_step(step)
        return step

    def _withdraw(self) -> None:
        """Raise if no command accepted it; return if one has accepted it in the meantime."""
        note = f"withdrawn: not accepted within {self._accept_s:g} s"
        report = pb.ReportAction(action=self._action.action, phase=pb.ACTION_FAILED, note=note)
        try:
            self._client.write("Actions.Report", report, pb.Action)
        except NotNowError:
            return
        raise NotRunningError(
            f"no command that trains {self._target} accepted the request within {self._accept_s:g} s; "
            "it was withdrawn",
            f"see `paceline workers list {self._target} --coordinator …`; if the command was killed, resume "
            "the run:  paceline train --resume RUN",
        )

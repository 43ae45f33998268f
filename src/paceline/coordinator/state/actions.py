"""Operator actions on a run, with their phases, and acknowledged alerts."""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import results
from paceline.coordinator.state.model import keep_newest
from paceline.coordinator.state.results import ApplyContext

ACTION_KINDS = (
    *("pause", "resume", "slow", "kill", "freeze", "thaw", "partition", "heal", "checkpoint", "stop"),
    *("add", "remove"),  # workers: how many is in the details
)
MAX_ACTIONS = 1_000
_FORWARD = (pb.ACTION_REQUESTED, pb.ACTION_ACCEPTED, pb.ACTION_APPLIED, pb.ACTION_EFFECT_SEEN)
_UNDONE = (pb.ACTION_REFUSED, pb.ACTION_FAILED)
_FINISHED = (pb.ACTION_EFFECT_SEEN, *_UNDONE)


def request_action(turn: ApplyContext, said: pb.RequestAction) -> pb.Action | pb.Refusal:
    record = results.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    if said.kind not in ACTION_KINDS:
        return results.invalid(f"there is no action {said.kind!r}", f"use one of {', '.join(ACTION_KINDS)}")
    if said.target and said.target not in record.workers:
        return results.not_found(
            f"worker {said.target!r} of run {said.run!r} is not alive",
            "name a living worker, or none for the run",
        )
    action = pb.Action(
        action=turn.index,
        run=said.run,
        kind=said.kind,
        target=said.target,
        details=said.details,
        phase=pb.ACTION_REQUESTED,
        by=turn.by,
        steps=[pb.ActionStep(phase=pb.ACTION_REQUESTED, at_ms=turn.now_ms)],
    )
    turn.state.actions[turn.index] = action
    keep_newest(turn.state.actions, MAX_ACTIONS)
    turn.changed(action)
    return action


def report_action(turn: ApplyContext, said: pb.ReportAction) -> pb.Action | pb.Refusal:
    """Also of a run that has ended: that may be the effect."""
    action = turn.state.actions.get(said.action)
    if action is None:
        return results.not_found(f"there is no action {said.action}", "list the actions for its number")
    if said.phase not in _FORWARD and said.phase not in _UNDONE:
        return results.invalid(f"there is no action phase {said.phase}", "report one that this version knows")
    if action.phase in _FINISHED or said.phase <= action.phase:
        names = pb.ActionPhase.Name(action.phase), pb.ActionPhase.Name(said.phase)
        return results.not_now(
            f"action {said.action} cannot go from {names[0]} to {names[1]}", "an action only goes forward"
        )
    action.phase = said.phase
    action.steps.append(pb.ActionStep(phase=said.phase, at_ms=turn.now_ms, note=said.note))
    turn.changed(action)
    return action


MAX_ALERT_MARKS = 1_000  # of a run


def acknowledge_alert(turn: ApplyContext, said: pb.AcknowledgeAlert) -> pb.AlertMark | pb.Refusal:
    record = results.any_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    if not said.alert:
        return results.invalid("an alert was acknowledged without saying which", "send the alert's key")
    mark = pb.AlertMark(run=said.run, alert=said.alert, by=turn.by, note=said.note, at_ms=turn.now_ms)
    record.alerts.pop(said.alert, None)  # so that the order stays that of the newest mark
    record.alerts[said.alert] = mark
    keep_newest(record.alerts, MAX_ALERT_MARKS)
    turn.changed(mark)
    return mark


def forget_alert(turn: ApplyContext, said: pb.ForgetAlert) -> pb.AlertMark | pb.Refusal:
    record = results.any_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    mark = record.alerts.pop(said.alert, None)
    if mark is None:
        return results.not_found(
            f"alert {said.alert!r} of run {said.run!r} was not acknowledged", "list the alerts"
        )
    mark.is_forgotten = True
    turn.changed(mark)
    return mark

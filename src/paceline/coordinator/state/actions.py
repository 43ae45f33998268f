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


def request_action(context: ApplyContext, request: pb.RequestAction) -> pb.Action | pb.Refusal:
    record = results.open_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    if request.kind not in ACTION_KINDS:
        return results.invalid(
            f"there is no action {request.kind!r}", f"use one of {', '.join(ACTION_KINDS)}"
        )
    if request.target and request.target not in record.workers:
        return results.not_found(
            f"worker {request.target!r} of run {request.run!r} is not alive",
            "name a living worker, or none for the run",
        )
    action = pb.Action(
        action=context.index,
        run=request.run,
        kind=request.kind,
        target=request.target,
        details=request.details,
        phase=pb.ACTION_REQUESTED,
        by=context.by,
        steps=[pb.ActionStep(phase=pb.ACTION_REQUESTED, at_ms=context.now_ms)],
    )
    context.state.actions[context.index] = action
    keep_newest(context.state.actions, MAX_ACTIONS)
    context.changed(action)
    return action


def report_action(context: ApplyContext, request: pb.ReportAction) -> pb.Action | pb.Refusal:
    """Record the result of an action, also for an ended run: the action may have ended it."""
    action = context.state.actions.get(request.action)
    if action is None:
        return results.not_found(f"there is no action {request.action}", "list the actions for its number")
    if request.phase not in _FORWARD and request.phase not in _UNDONE:
        return results.invalid(f"there is no action phase {request.phase}", "report a phase of this version")
    if action.phase in _FINISHED or request.phase <= action.phase:
        names = pb.ActionPhase.Name(action.phase), pb.ActionPhase.Name(request.phase)
        return results.not_now(
            f"action {request.action} cannot go from {names[0]} to {names[1]}", "an action only goes forward"
        )
    action.phase = request.phase
    action.steps.append(pb.ActionStep(phase=request.phase, at_ms=context.now_ms, note=request.note))
    context.changed(action)
    return action


MAX_ALERT_MARKS = 1_000  # per run


def acknowledge_alert(context: ApplyContext, request: pb.AcknowledgeAlert) -> pb.AlertMark | pb.Refusal:
    record = results.any_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    if not request.alert:
        return results.invalid("an alert was acknowledged without its key", "send the alert's key")
    mark = pb.AlertMark(
        run=request.run, alert=request.alert, by=context.by, note=request.note, at_ms=context.now_ms
    )
    record.alerts.pop(request.alert, None)  # so that the order stays that of the newest mark
    record.alerts[request.alert] = mark
    keep_newest(record.alerts, MAX_ALERT_MARKS)
    context.changed(mark)
    return mark


def forget_alert(context: ApplyContext, request: pb.ForgetAlert) -> pb.AlertMark | pb.Refusal:
    record = results.any_run(context.state, request.run)
    if isinstance(record, pb.Refusal):
        return record
    mark = record.alerts.pop(request.alert, None)
    if mark is None:
        return results.not_found(
            f"alert {request.alert!r} of run {request.run!r} was not acknowledged", "list the alerts"
        )
    mark.is_forgotten = True
    context.changed(mark)
    return mark

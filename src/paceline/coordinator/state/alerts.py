"""Which alerts has a person seen? The alerts themselves are made elsewhere, of what is measured."""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import find, refuse
from paceline.coordinator.state.model import keep_newest
from paceline.coordinator.state.turn import Turn

MOST_KEPT = 1_000  # of a run


def acknowledge(turn: Turn, said: pb.AcknowledgeAlert) -> pb.AlertMark | pb.Refusal:
    record = find.any_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    if not said.alert:
        return refuse.invalid("an alert was acknowledged without saying which", "send the alert's key")
    mark = pb.AlertMark(run=said.run, alert=said.alert, by=turn.by, note=said.note, at_ms=turn.now_ms)
    record.alerts.pop(said.alert, None)  # so that the order stays that of the newest mark
    record.alerts[said.alert] = mark
    keep_newest(record.alerts, MOST_KEPT)
    turn.changed(mark)
    return mark


def forget(turn: Turn, said: pb.ForgetAlert) -> pb.AlertMark | pb.Refusal:
    record = find.any_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    mark = record.alerts.pop(said.alert, None)
    if mark is None:
        return refuse.not_found(
            f"alert {said.alert!r} of run {said.run!r} was not acknowledged", "list the alerts"
        )
    mark.is_forgotten = True
    turn.changed(mark)
    return mark

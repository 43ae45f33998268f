"""What did people ask of a run, and how far has it come?"""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import find, refuse
from paceline.coordinator.state.model import keep_newest
from paceline.coordinator.state.turn import Turn

KINDS = (
    *("pause", "resume", "slow", "kill", "freeze", "thaw", "partition", "heal", "checkpoint", "stop"),
    *("add", "remove"),  # workers: how many is in the details
)
MOST_KEPT = 1_000
_FORWARD = (pb.ACTION_REQUESTED, pb.ACTION_ACCEPTED, pb.ACTION_APPLIED, pb.ACTION_EFFECT_SEEN)
_UNDONE = (pb.ACTION_REFUSED, pb.ACTION_FAILED)
_FINISHED = (pb.ACTION_EFFECT_SEEN, *_UNDONE)


def request(turn: Turn, said: pb.RequestAction) -> pb.Action | pb.Refusal:
    record = find.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    if said.kind not in KINDS:
        return refuse.invalid(f"there is no action {said.kind!r}", f"use one of {', '.join(KINDS)}")
    if said.target and said.target not in record.workers:
        return refuse.not_found(
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
    keep_newest(turn.state.actions, MOST_KEPT)
    turn.changed(action)
    return action


def report(turn: Turn, said: pb.ReportAction) -> pb.Action | pb.Refusal:
    """Also of a run that has ended: that may be the effect."""
    action = turn.state.actions.get(said.action)
    if action is None:
        return refuse.not_found(f"there is no action {said.action}", "list the actions for its number")
    if said.phase not in _FORWARD and said.phase not in _UNDONE:
        return refuse.invalid(f"there is no action phase {said.phase}", "report one that this version knows")
    if action.phase in _FINISHED or said.phase <= action.phase:
        names = pb.ActionPhase.Name(action.phase), pb.ActionPhase.Name(said.phase)
        return refuse.not_now(
            f"action {said.action} cannot go from {names[0]} to {names[1]}", "an action only goes forward"
        )
    action.phase = said.phase
    action.steps.append(pb.ActionStep(phase=said.phase, at_ms=turn.now_ms, note=said.note))
    turn.changed(action)
    return action

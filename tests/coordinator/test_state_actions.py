"""Operator actions on a run and their phases, and acknowledged alerts."""

import pytest
from tests.fixtures.coordinator.commands import Cluster, changed

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import actions, queries
from paceline.coordinator.state import actions as alerts

STEPS = (pb.ACTION_ACCEPTED, pb.ACTION_APPLIED, pb.ACTION_EFFECT_SEEN)


def requested() -> tuple[Cluster, int]:
    cluster = Cluster().working("w")
    command = pb.RequestAction(run="r", kind="slow", target="w", details={"factor": "3"})
    return cluster, cluster.ok(command, pb.Action).action


def test_an_action_records_who_requested_what_and_when() -> None:
    cluster, number = requested()
    result = cluster.state.actions[number]
    assert result == pb.Action(
        action=cluster.index,
        run="r",
        kind="slow",
        target="w",
        details={"factor": "3"},
        phase=pb.ACTION_REQUESTED,
        by="ann",
        steps=[pb.ActionStep(phase=pb.ACTION_REQUESTED, at_ms=cluster.now_ms)],
    )


@pytest.mark.parametrize("kind", actions.ACTION_KINDS)
def test_every_kind_may_be_requested_for_the_whole_run(kind: str) -> None:
    assert Cluster().working("w").ok(pb.RequestAction(run="r", kind=kind), pb.Action).kind == kind


def test_unknown_kinds_and_dead_targets_are_refused() -> None:
    cluster, _ = requested()
    assert cluster.refused(pb.RequestAction(run="r", kind="explode")).why == pb.INVALID
    assert cluster.refused(pb.RequestAction(run="r", kind="")).why == pb.INVALID
    assert cluster.refused(pb.RequestAction(run="r", kind="kill", target="z")).why == pb.NOT_FOUND
    cluster.lose("w")
    assert cluster.refused(pb.RequestAction(run="r", kind="kill", target="w")).why == pb.NOT_FOUND


def test_an_action_goes_forward_and_each_step_is_stamped() -> None:
    cluster, number = requested()
    for phase in STEPS:
        cluster.ok(pb.ReportAction(action=number, phase=phase, note="n"), pb.Action)
        last = cluster.state.actions[number].steps[-1]
        assert (last.phase, last.at_ms, last.note) == (phase, cluster.now_ms, "n")
    assert len(cluster.state.actions[number].steps) == 4


def test_an_action_never_goes_back_or_stays() -> None:
    cluster, number = requested()
    cluster.ok(pb.ReportAction(action=number, phase=pb.ACTION_APPLIED), pb.Action)
    for phase in (pb.ACTION_REQUESTED, pb.ACTION_ACCEPTED, pb.ACTION_APPLIED):
        assert cluster.refused(pb.ReportAction(action=number, phase=phase)).why == pb.NOT_NOW


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("end", [pb.ACTION_REFUSED, pb.ACTION_FAILED])
def test_an_unfinished_action_may_be_refused_or_fail_and_that_is_its_end(
    after: int, end: pb.ActionPhase
) -> None:
    cluster, number = requested()
    for phase in STEPS[:after]:
        cluster.ok(pb.ReportAction(action=number, phase=phase), pb.Action)
    cluster.ok(pb.ReportAction(action=number, phase=end), pb.Action)
    for phase in (*STEPS, pb.ACTION_REFUSED, pb.ACTION_FAILED):
        assert cluster.refused(pb.ReportAction(action=number, phase=phase)).why == pb.NOT_NOW


def test_a_finished_action_cannot_fail_any_more() -> None:
    cluster, number = requested()
    cluster.ok(pb.ReportAction(action=number, phase=pb.ACTION_EFFECT_SEEN), pb.Action)
    assert cluster.refused(pb.ReportAction(action=number, phase=pb.ACTION_FAILED)).why == pb.NOT_NOW


def test_unknown_actions_and_phases_are_refused() -> None:
    cluster, number = requested()
    assert cluster.refused(pb.ReportAction(action=number + 1, phase=pb.ACTION_APPLIED)).why == pb.NOT_FOUND
    assert cluster.refused(pb.ReportAction(action=number)).why == pb.INVALID
    newer = pb.ReportAction.FromString(bytes([8, number, 16, 99]))  # a phase of another version
    assert cluster.refused(newer).why == pb.INVALID


def test_the_effect_of_stopping_a_run_is_reported_after_it_has_ended() -> None:
    cluster, _ = requested()
    number = cluster.ok(pb.RequestAction(run="r", kind="stop"), pb.Action).action
    cluster.say(pb.EndRun(run="r", phase=pb.RUN_STOPPED))
    cluster.ok(pb.ReportAction(action=number, phase=pb.ACTION_EFFECT_SEEN), pb.Action)
    assert cluster.refused(pb.RequestAction(run="r", kind="stop")).why == pb.NOT_NOW


def test_only_the_newest_actions_are_kept() -> None:
    cluster, number = requested()
    for _ in range(actions.MAX_ACTIONS):
        cluster.say(pb.RequestAction(run="r", kind="pause"))
    assert len(cluster.state.actions) == actions.MAX_ACTIONS
    assert number not in cluster.state.actions


def test_an_acknowledged_alert_records_by_whom_and_the_newest_acknowledgement_counts() -> None:
    cluster = Cluster().working("w")
    cluster.say(pb.AcknowledgeAlert(run="r", alert="slow:w", note="looking"), by="ann")
    cluster.say(pb.AcknowledgeAlert(run="r", alert="slow:w", note="mine"), by="bob")
    result = queries.alerts(cluster.state, "r")
    assert isinstance(result, pb.AlertList)
    assert [(mark.by, mark.note, mark.at_ms) for mark in result.alerts] == [("bob", "mine", cluster.now_ms)]


def test_a_forgotten_alert_is_gone_and_watchers_are_notified() -> None:
    cluster = Cluster().working("w")
    cluster.say(pb.AcknowledgeAlert(run="r", alert="slow:w"))
    applied = cluster.say(pb.ForgetAlert(run="r", alert="slow:w"))
    assert [(mark.alert, mark.is_forgotten) for mark in changed(applied, pb.AlertMark)] == [("slow:w", True)]
    assert cluster.refused(pb.ForgetAlert(run="r", alert="slow:w")).why == pb.NOT_FOUND
    assert cluster.refused(pb.AcknowledgeAlert(run="r")).why == pb.INVALID


def test_alerts_of_an_ended_run_may_still_be_marked_and_are_bounded() -> None:
    cluster = Cluster().working("w")
    cluster.say(pb.EndRun(run="r", phase=pb.RUN_FAILED))
    for key in ("first", "second", "first", *map(str, range(alerts.MAX_ALERT_MARKS - 1))):
        cluster.ok(pb.AcknowledgeAlert(run="r", alert=key), pb.AlertMark)
    kept = cluster.state.ended_runs["r"].alerts
    assert len(kept) == alerts.MAX_ALERT_MARKS
    assert "second" not in kept
    assert "first" in kept  # it was marked again later

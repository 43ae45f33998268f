"""Requests through the coordinator of a run whose command does not answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import Coordinators, NotRunningError
from paceline.faults.actions.remote_request import request_remotely
from paceline.faults.actions.request import ActionKind, ActionRequest, Phase, Step
from paceline.faults.workers import RunAt

STOP = ActionRequest(id="1", kind=ActionKind.STOP)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(tmp_path) as embedded_node:
        embedded_node.client.write("Runs.Create", pb.CreateRun(run="r", min_workers=1), pb.Run)
        yield embedded_node


def run_at(node: EmbeddedNode, name: str = "r") -> RunAt:
    return RunAt(Coordinators(addresses=(node.address,), credentials=node.credentials), name)


def end_run(node: EmbeddedNode) -> None:
    node.client.write("Runs.End", pb.EndRun(run="r", phase=pb.RUN_STOPPED), pb.Run)


def test_a_request_that_no_command_accepts_is_withdrawn(node: EmbeddedNode) -> None:
    steps: list[Step] = []
    with pytest.raises(NotRunningError):
        request_remotely(run_at(node), STOP, steps.append, accept_s=0.1)
    assert [step.phase for step in steps] == [Phase.REQUESTED]
    (action,) = node.client.read("Actions.List", pb.ListActions(run="r"), pb.ActionList).actions
    assert action.phase == pb.ACTION_FAILED, "a command that reconnects must not execute it"


@pytest.mark.parametrize(
    ("kind", "phase"), [(ActionKind.STOP, Phase.EFFECT_SEEN), (ActionKind.CHECKPOINT, Phase.FAILED)]
)
def test_a_run_that_ends_meanwhile_is_stopped_but_not_saved(
    kind: ActionKind, phase: Phase, node: EmbeddedNode
) -> None:
    request = ActionRequest(id="1", kind=kind)
    last = request_remotely(run_at(node), request, lambda _: end_run(node) if not ended(node) else None)
    assert last.phase is phase


def ended(node: EmbeddedNode) -> bool:
    return node.client.read("Runs.Get", pb.GetRun(run="r"), pb.RunView).run.phase == pb.RUN_STOPPED


@pytest.mark.parametrize("name", ["r", "another"])
def test_a_run_that_has_ended_or_is_unknown_is_refused(name: str, node: EmbeddedNode) -> None:
    end_run(node)
    with pytest.raises(NotRunningError) as caught:
        request_remotely(run_at(node, name), STOP, lambda _: None)
    assert ("has ended" in caught.value.what) == (name == "r")

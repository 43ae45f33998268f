"""Does what an operator asks reach the launcher, and the launcher's answer the operator?"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.waiting import until

from paceline.coordinator.admin.launch import free_ports
from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import security
from paceline.coordinator.server.tokens import TOKENS_NAME
from paceline.launchers.supervision import Granted, OperatorRequest, Refused
from paceline.training.action_poller import ActionPoller, has_effect


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(tmp_path) as found:
        creating = pb.CreateRun(run="r", min_workers=1, max_workers=4, want_workers=1)
        found.client.write("Runs.Create", creating, pb.Run)
        yield found


def desk(node: EmbeddedNode) -> ActionPoller:
    return ActionPoller([node.address], security.client_access(token_file=node.folder / TOKENS_NAME), "r")


def ask(node: EmbeddedNode, kind: str, **details: str) -> int:
    asking = pb.RequestAction(run="r", kind=kind, details=details)
    return node.client.write("Actions.Request", asking, pb.Action).action


def action(node: EmbeddedNode, number: int) -> pb.Action:
    listed = node.client.read("Actions.List", pb.ListActions(run="r"), pb.ActionList)
    return next(found for found in listed.actions if found.action == number)


def heard(wishes: ActionPoller) -> list[OperatorRequest]:
    found: list[OperatorRequest] = []

    def any_came() -> bool:
        found.extend(wishes.wishes())
        return bool(found)

    until(any_came, "a wish came")
    return found


def test_a_refusal_comes_back_with_its_reason(node: EmbeddedNode) -> None:
    with desk(node) as wishes:
        number = ask(node, "add", count="9")
        assert heard(wishes) == [OperatorRequest(number, "add", 9)]
        wishes.answer(Refused(number, "there is no room"))
        until(lambda: action(node, number).phase == pb.ACTION_REFUSED, "the refusal is in the log")
        assert action(node, number).steps[-1].note == "there is no room"


def test_an_effect_is_seen_once_the_workers_train_so(node: EmbeddedNode) -> None:
    with desk(node) as wishes:
        number = ask(node, "add", count="1")
        heard(wishes)
        wishes.answer(Granted(number, start=("worker-0",), reason="worker-0 added"))
        until(lambda: action(node, number).phase == pb.ACTION_ACCEPTED, "it is accepted")
        node.client.write("Members.Join", pb.JoinRun(run="r", worker="worker-0", role="worker"), pb.Worker)
        until(lambda: action(node, number).phase == pb.ACTION_EFFECT_SEEN, "its effect is seen")


def test_what_is_still_open_when_the_run_ends_has_failed(node: EmbeddedNode) -> None:
    with desk(node) as wishes:
        number = ask(node, "add")
        heard(wishes)
        wishes.answer(Granted(number, start=("worker-0",)))
    assert action(node, number).phase == pb.ACTION_FAILED


def test_other_actions_are_somebody_elses(node: EmbeddedNode) -> None:
    with desk(node) as wishes:
        ask(node, "pause")
        number = ask(node, "remove", count="many")
        assert heard(wishes) == [OperatorRequest(number, "remove", 0)]


def test_a_revoked_generation_shows_no_effect() -> None:
    granted = Granted(1, start=("b",), leave=("c",))
    assert has_effect(granted, pb.Generation(workers=["a", "b"]))
    assert not has_effect(granted, pb.Generation(workers=["a", "b"], is_revoked=True))
    assert not has_effect(granted, pb.Generation(workers=["a", "b", "c"]))
    assert not has_effect(granted, pb.Generation(workers=["a"]))
    assert not has_effect(granted, pb.Generation())


def test_a_run_that_stops_gives_up_a_coordinator_whose_nodes_refuse_connections(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path) as node:
        access = security.client_access(token_file=node.folder / TOKENS_NAME)
    nodes = [f"127.0.0.1:{port}" for port in free_ports(3)]
    with ActionPoller(nodes, access, "r", last_checkpoint=lambda: "the last checkpoint is step 20") as wishes:
        wishes.stopping()
        until(wishes.is_alone, "the coordinator is given up")
        (text,) = [text for text in wishes.news() if "stopping without it" in text]
    assert "0 of 3" in text
    assert "step 20" in text


def test_a_run_that_stops_keeps_a_coordinator_that_leads(node: EmbeddedNode) -> None:
    with desk(node) as wishes:
        wishes.stopping()
        number = ask(node, "add")
        assert heard(wishes) == [OperatorRequest(number, "add")]
        assert not wishes.is_alone()

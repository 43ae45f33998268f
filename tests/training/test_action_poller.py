"""Action poller: an operator's request reaches the launcher, and the launcher's answer the operator."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.fixtures.waiting import until

from paceline.coordinator.admin.launch import free_ports
from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.client.endpoints import Endpoints, open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import Coordinators, TokenFile
from paceline.coordinator.server.tokens import TOKENS_NAME
from paceline.launchers.supervision import Effect, Granted, OperatorRequest, Refused
from paceline.training.action_poller import EXECUTED_BY_CLIENT, ActionPoller, has_effect


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(tmp_path) as embedded_node:
        creating = pb.CreateRun(run="r", min_workers=1, max_workers=4, want_workers=1)
        embedded_node.client.write("Runs.Create", creating, pb.Run)
        yield embedded_node


def action_poller(node: EmbeddedNode) -> ActionPoller:
    return ActionPoller(endpoints_with_tokens([node.address], node.folder), "r")


def endpoints_with_tokens(addresses: Sequence[str], folder: Path) -> Endpoints:
    credentials = TokenFile(folder / TOKENS_NAME)
    return open_coordinators(Coordinators(addresses=tuple(addresses), credentials=credentials))


def request_action(node: EmbeddedNode, kind: str, **details: str) -> int:
    asking = pb.RequestAction(run="r", kind=kind, details=details)
    return node.client.write("Actions.Request", asking, pb.Action).action


def action(node: EmbeddedNode, number: int) -> pb.Action:
    listed = node.client.read("Actions.List", pb.ListActions(run="r"), pb.ActionList)
    return next(result for result in listed.actions if result.action == number)


REASON = "there is no room"


def polled_requests(poller: ActionPoller) -> list[OperatorRequest]:
    results: list[OperatorRequest] = []

    def any_came() -> bool:
        results.extend(poller.requests())
        return bool(results)

    until(any_came, "a request came")
    return results


def test_a_refusal_comes_back_with_its_reason(node: EmbeddedNode) -> None:
    with action_poller(node) as poller:
        number = request_action(node, "add", count="9")
        assert polled_requests(poller) == [OperatorRequest(number, "add", 9)]
        poller.answer(Refused(number, REASON))
        until(lambda: action(node, number).phase == pb.ACTION_REFUSED, "the refusal is in the log")
        assert action(node, number).steps[-1].note == REASON


def test_an_effect_is_seen_once_the_workers_train_so(node: EmbeddedNode) -> None:
    with action_poller(node) as poller:
        number = request_action(node, "add", count="1")
        polled_requests(poller)
        poller.answer(Granted(number, start=("worker-0",), reason="worker-0 added"))
        until(lambda: action(node, number).phase == pb.ACTION_ACCEPTED, "it is accepted")
        node.client.write("Members.Join", pb.JoinRun(run="r", worker="worker-0", role="worker"), pb.Worker)
        until(lambda: action(node, number).phase == pb.ACTION_EFFECT_SEEN, "its effect is seen")


def test_what_is_still_open_when_the_run_ends_has_failed(node: EmbeddedNode) -> None:
    with action_poller(node) as poller:
        number = request_action(node, "add")
        polled_requests(poller)
        poller.answer(Granted(number, start=("worker-0",)))
    assert action(node, number).phase == pb.ACTION_FAILED


def test_actions_of_other_components_are_ignored(node: EmbeddedNode) -> None:
    with action_poller(node) as poller:
        request_action(node, "pause")
        number = request_action(node, "remove", count="many")
        assert polled_requests(poller) == [OperatorRequest(number, "remove", 0)]


def test_a_stop_that_is_only_recorded_is_not_executed_again(node: EmbeddedNode) -> None:
    with action_poller(node) as poller:
        request_action(node, "stop", executor=EXECUTED_BY_CLIENT)
        number = request_action(node, "stop")
        assert polled_requests(poller) == [OperatorRequest(number, "stop")]


def test_a_stop_is_done_once_the_run_has_ended(node: EmbeddedNode) -> None:
    with action_poller(node) as poller:
        number = request_action(node, "stop")
        polled_requests(poller)
        poller.answer(Granted(number, effect=Effect.END))
        until(lambda: action(node, number).phase == pb.ACTION_ACCEPTED, "it is accepted")
        node.client.write("Runs.End", pb.EndRun(run="r", phase=pb.RUN_STOPPED), pb.Run)
    assert action(node, number).phase == pb.ACTION_EFFECT_SEEN


def test_a_stop_of_a_run_that_could_not_report_its_end_has_failed(node: EmbeddedNode) -> None:
    with action_poller(node) as poller:
        number = request_action(node, "stop")
        polled_requests(poller)
        poller.answer(Granted(number, effect=Effect.END))
    assert action(node, number).phase == pb.ACTION_FAILED


def newest_generation(node: EmbeddedNode) -> int:
    return node.client.read("Runs.Get", pb.GetRun(run="r"), pb.RunView).generation.number


def catalogue_checkpoint(node: EmbeddedNode, step: int) -> None:
    shard = pb.Shard(shard=0, uri=f"at-{step}", bytes=1, sha256="0" * 64)
    beginning = pb.BeginCheckpoint(run="r", generation=1, step=step, shards=1)
    node.client.write("Checkpoints.Begin", beginning, pb.Checkpoint)
    reporting = pb.ShardDurable(run="r", generation=1, step=step, shard=shard)
    node.client.write("Checkpoints.Report", reporting, pb.Checkpoint)


def test_a_checkpoint_is_done_once_a_newer_one_is_catalogued(node: EmbeddedNode) -> None:
    node.client.write("Members.Join", pb.JoinRun(run="r", worker="worker-0", role="worker"), pb.Worker)
    until(lambda: newest_generation(node) == 1, "the worker has a generation")
    catalogue_checkpoint(node, 3)
    with action_poller(node) as poller:
        number = request_action(node, "checkpoint")
        polled_requests(poller)
        poller.answer(Granted(number, effect=Effect.CHECKPOINT))
        until(lambda: action(node, number).phase == pb.ACTION_ACCEPTED, "it is accepted")
        catalogue_checkpoint(node, 4)
        until(lambda: action(node, number).phase == pb.ACTION_EFFECT_SEEN, "its effect is seen")


def test_a_revoked_generation_shows_no_effect() -> None:
    granted = Granted(1, start=("b",), leave=("c",))
    assert has_effect(granted, pb.Generation(workers=["a", "b"]))
    assert not has_effect(granted, pb.Generation(workers=["a", "b"], is_revoked=True))
    assert not has_effect(granted, pb.Generation(workers=["a", "b", "c"]))
    assert not has_effect(granted, pb.Generation(workers=["a"]))
    assert not has_effect(granted, pb.Generation())


def test_a_run_that_stops_gives_up_a_coordinator_whose_nodes_refuse_connections(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path) as node:
        folder = node.folder
    nodes = endpoints_with_tokens([f"127.0.0.1:{port}" for port in free_ports(3)], folder)
    with ActionPoller(nodes, "r", last_checkpoint=lambda: "the last checkpoint is step 20") as poller:
        poller.stopping()
        until(poller.is_alone, "the coordinator is given up")
        (text,) = [text for text in poller.take_messages() if "step 20" in text]
    assert "0 of 3" in text


def test_a_run_that_stops_keeps_a_coordinator_that_leads(node: EmbeddedNode) -> None:
    with action_poller(node) as poller:
        poller.stopping()
        number = request_action(node, "add")
        assert polled_requests(poller) == [OperatorRequest(number, "add")]
        assert not poller.is_alone()

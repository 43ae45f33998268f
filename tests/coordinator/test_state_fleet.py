"""The fleet and its offers: agents are members of a reserved record, and viewers read no secret."""

import pytest
from tests.fixtures.coordinator.commands import Cluster, changed

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.access_policy import Role, roles_for
from paceline.coordinator.state import queries
from paceline.coordinator.state.machine import CoordinatorState
from paceline.coordinator.state.model import COMMANDS, FLEET

SECRET = bytes(range(32))
AGENT = pb.JoinRun(run=FLEET, worker="host-1", role="agent", address="10.0.0.1", facts={"slots": "2"})
OFFER = pb.OfferRun(run="r", address="10.0.0.9:4000", certificate="PEM", secret=SECRET)


def test_the_first_agent_opens_the_fleet_which_is_not_listed_as_a_run() -> None:
    cluster = Cluster()
    agent = cluster.ok(AGENT, pb.Worker)
    assert (agent.role, agent.phase) == ("agent", pb.WORKER_JOINED)
    assert (FLEET, "host-1", agent.incarnation) in list(queries.living(cluster.state))
    assert list(queries.runs(cluster.state, with_ended=True).runs) == []


@pytest.mark.parametrize(
    "command",
    [
        pb.JoinRun(run=FLEET, worker="w", role="worker"),
        pb.CreateRun(run=FLEET, min_workers=1),
        pb.EndRun(run=FLEET, phase=pb.RUN_STOPPED),
        pb.OfferRun(run=FLEET, address="h:1", secret=SECRET),
    ],
)
def test_the_fleet_takes_agents_only_and_is_no_run(command: object) -> None:
    cluster = Cluster()
    cluster.ok(AGENT, pb.Worker)
    assert cluster.refused(command).why == pb.INVALID  # type: ignore[arg-type]  # one of the four


def test_a_refused_agent_opens_no_fleet() -> None:
    cluster = Cluster()
    assert cluster.refused(pb.JoinRun(run=FLEET, worker="w", role="worker")).why == pb.INVALID
    assert FLEET not in cluster.state.runs


def test_an_agent_is_no_member_of_a_run() -> None:
    cluster = Cluster()
    cluster.run()
    assert cluster.refused(pb.JoinRun(run="r", worker="w", role="agent")).why == pb.INVALID


def test_an_offer_lasts_as_long_as_its_run_and_survives_a_snapshot() -> None:
    cluster = Cluster()
    cluster.run()
    cluster.ok(OFFER, pb.Run)
    restored = CoordinatorState.restore(cluster.state.snapshot())
    assert list(queries.offers(restored).offers) == [OFFER]
    cluster.say(pb.EndRun(run="r", phase=pb.RUN_FINISHED))
    assert list(queries.offers(cluster.state).offers) == []


@pytest.mark.parametrize(
    "offer",
    [
        pb.OfferRun(run="r", address="h:1", secret=b"short"),
        pb.OfferRun(run="r", secret=SECRET),
        pb.OfferRun(run="r", address="h:1", secret=SECRET, certificate="x" * (17 << 10)),
    ],
)
def test_an_offer_without_address_or_with_a_wrong_secret_is_refused(offer: pb.OfferRun) -> None:
    cluster = Cluster()
    cluster.run()
    assert cluster.refused(offer).why == pb.INVALID


def test_an_offer_wakes_the_agents_and_shows_its_secret_to_no_viewer() -> None:
    cluster = Cluster()
    cluster.ok(AGENT, pb.Worker)
    cluster.run()
    applied = cluster.say(OFFER)
    assert [run.run for run in changed(applied, pb.Run)] == [FLEET]
    assert SECRET not in b"".join(change.SerializeToString() for change in applied.changes)
    assert SECRET not in applied.outcome.SerializeToString()
    view = queries.run(cluster.state, "r")
    assert SECRET not in view.SerializeToString()
    assert Role.VIEWER not in roles_for("/paceline.cluster.v1.Runs/Offers")


def test_a_living_command_is_not_replaced_and_a_lost_one_is() -> None:
    cluster = Cluster()
    joining = pb.JoinRun(run=COMMANDS, worker="store-1", role="command", facts={"host": "a", "pid": "7"})
    first = cluster.ok(joining, pb.Worker)
    refusal = cluster.refused(joining)
    assert (refusal.why, "process 7 on a" in refusal.what) == (pb.EXISTS, True)
    cluster.ok(pb.JoinRun(run=COMMANDS, worker="store-2", role="command"), pb.Worker)
    lost = pb.LoseWorker(run=COMMANDS, worker="store-1", incarnation=first.incarnation)
    assert cluster.ok(lost, pb.Worker).phase == pb.WORKER_LOST
    second = cluster.ok(joining, pb.Worker)
    assert second.incarnation > first.incarnation
    left = pb.LeaveRun(run=COMMANDS, worker="store-1", incarnation=first.incarnation)
    assert cluster.refused(left).why == pb.FENCED
    assert list(queries.runs(cluster.state, with_ended=True).runs) == []


@pytest.mark.parametrize("role", ["agent", "worker"])
def test_the_record_of_commands_takes_no_other_role(role: str) -> None:
    assert Cluster().refused(pb.JoinRun(run=COMMANDS, worker="w", role=role)).why == pb.INVALID

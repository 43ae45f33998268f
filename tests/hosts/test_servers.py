"""Parameter servers on hosts with nothing shared: they are apart, and the loss of one costs no update."""

from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline
from tests.fixtures.runs.host_runs import (
    fleet_on_hosts,
    host_of,
    kill_participant,
    servers,
    starts,
    until_guarded,
)

from paceline.faults.scenarios.host_fleet import FleetRun
from paceline.faults.scenarios.measurements import primary
from paceline.faults.scenarios.training import events_of

ENDLESS = ("--task", "xor", "--steps", "1000000", "--pace", "20ms", "--num-workers", "2")
MODES = ("asgd", "ssp", "dssp", "ps", "backup")


def promotions(run: FleetRun) -> int:
    return len(events_of(run.log.read(), "server_promoted"))


def until_promoted(run: FleetRun) -> None:
    before = promotions(run)
    run.until(lambda _: promotions(run) > before, "the backup took over")


def assert_replays(run_dir: Path) -> None:
    replayed = paceline("replay", str(run_dir))
    assert replayed.code == 0, replayed.out + replayed.err


def test_a_host_with_the_primary_vanishes_and_its_backup_takes_over(tmp_path: Path) -> None:
    with fleet_on_hosts(tmp_path / "hosts", slots=2) as fleet:
        run = fleet.start_training("--mode", "asgd", *ENDLESS)
        until_guarded(run)
        fleet.nodes.lose(host_of(run, primary(run.log.read())))
        until_promoted(run)
        until_guarded(run)
        run.stop()
    assert_nothing_was_lost(fleet.run_dir)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_a_worker_and_each_server_are_killed_and_an_agent_with_the_primary(tmp_path: Path, mode: str) -> None:
    with fleet_on_hosts(tmp_path / "hosts", slots=2) as fleet:
        run = fleet.start_training("--mode", mode, *ENDLESS)
        until_guarded(run)
        kill_participant(run, "worker-0")
        kill_participant(run, servers(run)[0])
        until_promoted(run)
        until_guarded(run)
        former = servers(run)[1]
        started = starts(run, former)
        kill_participant(run, former)
        run.until(lambda _: starts(run, former) > started, "the backup is replaced")
        until_guarded(run)
        struck = host_of(run, servers(run)[0])
        fleet.agents[struck].kill()
        until_promoted(run)
        fleet.start_agent(struck)
        until_guarded(run)
        run.stop()
    assert_nothing_was_lost(fleet.run_dir)
    assert_replays(fleet.run_dir)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["asgd", "ps"])
@pytest.mark.parametrize("is_mute", [True, False], ids=["mute", "deaf"])
def test_a_primary_cut_off_in_one_direction_acknowledges_nothing_after_the_promotion(
    tmp_path: Path, is_mute: bool, mode: str
) -> None:
    with fleet_on_hosts(tmp_path / "hosts", slots=2) as fleet:
        network = fleet.nodes.network
        run = fleet.start_training("--mode", mode, *ENDLESS)
        until_guarded(run)
        struck = host_of(run, servers(run)[0])
        if is_mute:
            network.mute(struck)
        else:
            network.deafen(struck)
        until_promoted(run)
        until_guarded(run)
        network.heal()
        run.until(lambda _: len(fleet.joined()) == 3, "the host is back")
        until_guarded(run)
        run.stop()
    assert_nothing_was_lost(fleet.run_dir)


@pytest.mark.soak
def test_a_backup_that_only_its_primary_does_not_reach_is_let_go_and_replaced(tmp_path: Path) -> None:
    with fleet_on_hosts(tmp_path / "hosts", slots=2) as fleet:
        network = fleet.nodes.network
        run = fleet.start_training("--mode", "ssp", *ENDLESS)
        until_guarded(run)
        leading, following = servers(run)
        started = starts(run, following)
        network.cut(host_of(run, leading), host_of(run, following))
        run.until(lambda _: starts(run, following) > started, "the backup is replaced")
        network.heal()
        until_guarded(run)
        assert promotions(run) == 0
        run.stop()
    assert_nothing_was_lost(fleet.run_dir)


@pytest.mark.soak
def test_when_both_servers_are_lost_the_next_one_begins_with_the_newest_checkpoint(tmp_path: Path) -> None:
    with fleet_on_hosts(tmp_path / "hosts", slots=2) as fleet:
        run = fleet.start_training("--mode", "asgd", "--checkpoint-every", "20", *ENDLESS)
        until_guarded(run)
        run.until(lambda history: len(events_of(history, "checkpoint")) > 1, "a checkpoint")
        for server in servers(run):
            kill_participant(run, server)
        run.until(lambda history: bool(events_of(history, "server_restored")), "a server is restored")
        until_guarded(run)
        history = run.stop()
    restored = events_of(history, "server_restored")
    assert int(str(restored[0].fields["version"])) >= 40, "not from the start"
    assert_nothing_was_lost(fleet.run_dir)

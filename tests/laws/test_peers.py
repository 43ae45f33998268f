"""The known deviations of other libraries are found, exactly these."""

import json
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from tests.fixtures.processes.command import paceline

from paceline.cli import laws as app_laws
from paceline.launchers.local import LocalLauncher
from paceline.laws.peers.runner import PEERS, SURPRISES, Peer, Verdict, check_peer
from paceline.laws.runner import cases


# torch: by the command, below.
@pytest.mark.parametrize(
    "peer", [peer for name, peer in PEERS.items() if name != "torch"], ids=lambda p: p.name
)
def test_a_library_deviates_as_recorded_and_in_no_other_way(peer: Peer, launcher: LocalLauncher) -> None:
    _needs(peer)
    results = list(check_peer(peer, launcher))
    surprises = {f"{r.subject}: {r.id} {r.verdict}": r.measured for r in results if r.verdict in SURPRISES}
    assert not surprises, f"{peer.name} {version(peer.module)}, looked at was {peer.looked_at}"
    result = sum(r.verdict is Verdict.DEVIATES for r in results)
    assert result == sum(len(trial.known) for trial in peer.trials)
    assert any(r.verdict is Verdict.HOLDS for r in results), "a library that breaks every law was not run"


def test_an_unrecorded_deviation_and_one_that_is_gone_are_surprises() -> None:
    torch = PEERS["torch"]
    laws = frozenset({"U3.localsgd", "U4.localsgd", "L7.localsgd"})
    trial = replace(torch.trials[0], only=laws, known={"U3": "it does not", "U4": "buffers stay"})
    results = check_peer(replace(torch, trials=(trial,)), None)
    verdicts = {result.id: result.verdict for result in results}
    assert verdicts == {
        "U3.localsgd": Verdict.GONE,
        "U4.localsgd": Verdict.DEVIATES,
        "L7.localsgd": Verdict.NEW,
    }


def test_what_is_known_names_laws_that_exist() -> None:
    for peer in PEERS.values():
        for trial in peer.trials:
            laws = {case.id.removesuffix(f".{trial.mode}") for case in cases(trial.mode)}
            assert set(trial.known) <= laws
            assert set(trial.not_asked).isdisjoint(trial.known)


def test_the_command_has_the_same_libraries() -> None:
    assert set(app_laws.PEERS) == set(PEERS)
    assert all(peer.name == peer.module for peer in PEERS.values())


def test_known_deviations_are_reported_and_are_no_failure() -> None:
    result = paceline("laws", "--json", "--peer", "torch")
    assert result.code == 0, result.out
    data = json.loads(result.out)["data"]
    assert data["surprises"] == []
    verdicts = [law["verdict"] for law in data["laws"]]
    assert verdicts.count("deviates") == sum(len(trial.known) for trial in PEERS["torch"].trials)
    by_law = {law["id"]: law for law in data["laws"]}
    assert by_law["L4"]["verdict"] == "deviates"
    assert "after steps 1, 5 and 9" in by_law["L4"]["note"]
    assert "[1, 5, 9]" in by_law["L4"]["measured"]
    assert by_law["L1.sgd"]["verdict"] == "holds"
    assert by_law["L3"]["verdict"] == "not asked"


def test_a_peer_brings_its_own_modes() -> None:
    result = paceline("laws", "--peer", "torch", "--mode", "ssgd")
    assert result.code == 3
    assert "leave out --mode" in result.err


def _needs(peer: Peer) -> None:
    if find_spec(peer.module) is None:
        pytest.skip(f"{peer.module} is not installed here: pip install 'paceline[peers]' to try it")

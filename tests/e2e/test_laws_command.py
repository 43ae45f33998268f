"""A user checks the laws of a mode from the command line."""

import json

from tests.fixtures.processes.command import paceline


def test_the_laws_of_asgd_hold_and_are_printed_as_json() -> None:
    result = paceline("laws", "--json", "--mode", "asgd")
    assert result.code == 0, result.out
    assert json.loads(result.out)["schema"] == "paceline.laws/1"
    data = result.data()
    assert data["broken"] == []
    assert {"A1", "A2", "A3", "A4", "A5", "A6", "Z1", "Z2", "U1.asgd", "U1.local.asgd"} <= {
        law["id"].removesuffix(".staleness-aware") for law in data["laws"]
    }
    for law in data["laws"]:
        assert set(law) == {"id", "mode", "what", "ok", "measured"}
        assert (law["mode"], law["ok"]) == ("asgd", True)
        assert law["measured"]


def test_an_alias_is_accepted_and_a_mistake_is_answered_with_the_modes() -> None:
    wrong = paceline("laws", "--mode", "spp")
    assert wrong.code == 3
    assert "'spp'" in wrong.err
    assert "ssgd" in wrong.err
    unlike = paceline("laws", "--mode", "tests.fixtures.strategies.broken_strategies:WrongSign")
    assert unlike.code == 3
    assert "--like ssgd" in unlike.err

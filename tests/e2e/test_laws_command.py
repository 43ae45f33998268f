"""Can a user check the laws of a mode from the command line?"""

import json

from tests.fixtures.command import paceline


def test_the_laws_of_ssp_hold_and_are_told_as_json() -> None:
    done = paceline("laws", "--json", "--mode", "ssp")
    assert done.code == 0, done.out
    assert json.loads(done.out)["schema"] == "paceline.laws/1"
    data = done.data()
    assert data["broken"] == []
    assert {"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P7b", "U1.ssp", "U1.local.ssp"} <= {
        law["id"] for law in data["laws"]
    }
    for law in data["laws"]:
        assert set(law) == {"id", "mode", "what", "ok", "measured"}
        assert (law["mode"], law["ok"]) == ("ssp", True)
        assert law["measured"]


def test_an_alias_is_understood_and_a_mistake_is_answered_with_the_modes() -> None:
    wrong = paceline("laws", "--mode", "spp")
    assert wrong.code == 3
    assert "there is no mode 'spp'" in wrong.err
    assert "ssgd" in wrong.err
    unlike = paceline("laws", "--mode", "tests.fixtures.broken:WrongSign")
    assert unlike.code == 3
    assert "--like ssgd" in unlike.err

"""All modes obey all laws, and the laws detect the mistakes they are made for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.launchers.local import LocalLauncher
from paceline.laws.lab import Lab
from paceline.laws.runner import LAWS, Case, cases, check

ROOT = Path(__file__).parents[2]
ALL = list(cases(None))


@pytest.mark.parametrize("case", ALL, ids=[case.id for case in ALL])
def test_law(case: Case, launcher: LocalLauncher) -> None:
    result = check(case, Lab(case.mode, case.subject, launcher))
    assert result.ok, f"{result.what}: {result.measured}"


def test_there_are_the_documented_laws() -> None:
    promised = [
        *(f"U{n}" for n in range(1, 7)),
        *(f"S{n}" for n in range(1, 7)),
        *(f"B{n}" for n in range(1, 4)),
        *(f"A{n}" for n in range(1, 7)),
        *(f"P{n}" for n in range(1, 9)),
        "P7b",
        *(f"R{n}" for n in range(1, 7)),
        *(f"L{n}" for n in range(1, 8)),
        "L9",
        *(f"H{n}" for n in range(1, 6)),
        *(f"{letter}{n}" for letter in "EF" for n in range(1, 5)),
        *(f"T{n}" for n in range(1, 14)),
        *(f"C{n}" for n in range(1, 13)),
        "D9",
        *(f"G{n}" for n in range(1, 6)),
        *(f"W{n}" for n in range(1, 8)),
    ]
    ids = {case.id.split(".")[0] for case in ALL}
    assert set(promised) <= ids
    assert len(ALL) >= 80
    assert len({case.id for case in ALL}) == len(ALL)


# subject, the mode it claims to be, laws it must break, laws it must still obey
BROKEN = [
    (
        "WrongSign",
        "ssgd",
        {"U2.ssgd", "U3.ssgd", "S1", "S2.ssgd"},
        {"U1.ssgd", "U4.ssgd", "U5.ssgd", "U6.ssgd"},
    ),
    ("SumNotMean", "ssgd", {"U2.ssgd", "S1", "S2.ssgd"}, {"U1.ssgd", "U3.ssgd", "U4.ssgd"}),
    (
        "PerParameterCounter",
        "localsgd",
        {"L4", "L4.post", "L5"},
        {"U1.localsgd", "U3.localsgd", "L1.sgd", "L3"},
    ),
    ("ApplyOnPush", "ssp", {"P3", "U6.ssp"}, {"P1", "P2", "P4", "P5", "U2.ssp", "U3.ssp"}),
    ("OffByOne", "ssp", {"P1", "P3", "U6.ssp"}, {"P4", "P5", "U2.ssp", "U3.ssp"}),
    ("DeafToAggregate", "ssgd", {"R2.ssgd", "R4.ssgd"}, {"R1.ssgd", "R6.ssgd", "U2.ssgd", "U4.ssgd", "S1"}),
    ("AboveItsRange", "dssp", {"P8", "P8.ssp"}, {"U1.dssp", "U2.dssp", "U3.dssp", "U7.dssp"}),
    ("SpringOnOneSide", "easgd", {"E1", "E4"}, {"U1.easgd", "U5.easgd", "U7.easgd", "E2", "E3"}),
    ("HalfABlock", "easgd", {"U7.easgd", "E2"}, {"U5.easgd", "E1", "E3", "E4"}),
    ("OneClientOneVote", "fedavg", {"F1", "F2"}, {"U1.fedavg", "U3.fedavg", "U4.fedavg", "F3", "F4"}),
    ("KeepsItsMoments", "fedavg", {"F4"}, {"U1.fedavg", "U2.fedavg", "F1", "F2", "F3"}),
    ("NoErrorMemory", "ssgd", {"C1.run"}, {"U1.ssgd", "U2.ssgd", "C3", "C6.run", "C12.equal.ssgd"}),
    ("ForgetsPlaces", "ssgd", {"C6.run"}, {"U1.ssgd", "U2.ssgd", "C1.run", "C3", "C9"}),
    ("ClipsLikeGrace", "ssgd", {"C9.clip"}, {"U1.ssgd", "C1.run", "C3", "C9"}),
    ("CountsLate", "backup", {"B2", "B3", "B4"}, {"U1.backup", "U2.backup", "U3.backup", "U7.backup", "B1"}),
    (
        "TakesOneTwice",
        "backup",
        {"U2.backup", "B1", "B1.ssgd", "B2"},
        {"U1.backup", "U3.backup", "U5.backup"},
    ),
    ("UnweightedCuts", "adaptive", {"W1", "W3"}, {"U1.adaptive", "U3.adaptive", "W2", "W4"}),
    ("Restless", "adaptive", {"W4"}, {"U1.adaptive", "U3.adaptive", "W3", "W6"}),
    ("LostUpdate", "asgd", {"U2.asgd", "U3.asgd", "A1", "A4"}, {"A2", "A3", "A5", "A6"}),
    ("EqualVoices", "gossip", {"G1", "G4", "G6.gossip"}, {"U1.gossip", "U3.gossip", "G3", "G9"}),
    ("StopsWhenHeard", "gossip", {"G9"}, {"U3.gossip", "G1", "G2", "G3", "G4", "G6.gossip"}),
    ("UnorderedLocks", "adpsgd", {"G5"}, {"U1.adpsgd", "U7.adpsgd", "G6.adpsgd", "G8"}),
]


@pytest.mark.parametrize(("subject", "mode", "broken", "kept"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_strategy_breaks_the_right_laws(
    subject: str, mode: str, broken: set[str], kept: set[str]
) -> None:
    tried = [case for case in cases(mode) if case.id in broken | kept and not case.law.starts_processes]
    results = {
        case.id: check(case, Lab(mode, f"tests.fixtures.strategies.broken_strategies:{subject}"))
        for case in tried
    }
    assert set(results) == broken | kept
    failed = {law for law, result in results.items() if not result.ok}
    assert broken <= failed, {law: results[law].measured for law in broken - failed}
    assert not kept & failed, {law: results[law].measured for law in kept & failed}


def test_the_command_reports_a_broken_strategy_of_the_users_own() -> None:
    command = [
        "laws",
        "--json",
        "--mode",
        "tests.fixtures.strategies.broken_strategies:HalfABlock",
        "--like",
        "easgd",
    ]
    result = subprocess.run(
        [sys.executable, "-m", "paceline", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 8, result.stderr
    answer = json.loads(result.stdout)
    assert {"U7.easgd", "E2"} <= set(answer["data"]["broken"])
    assert {"id", "what", "ok", "measured"} <= set(answer["data"]["laws"][0])


def test_every_law_states_what_it_is_about() -> None:
    assert all(law.what and law.modes for law in LAWS)

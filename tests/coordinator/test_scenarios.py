"""Raft transcripts: the scenarios of the paper's figures and of the thesis, as plain text.

`pytest tests/coordinator/test_scenarios.py --rewrite` updates them; explain each difference.
"""

from pathlib import Path

import pytest
from tests.raft_simulation.scenario import blocks, rewritten

FOLDER = Path(__file__).parent.parent / "scenarios" / "raft"
SCENARIOS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_transcript_is_as_it_was(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text()
    now = rewritten(before)
    if request.config.getoption("--rewrite"):
        path.write_text(now)
    else:
        assert now == before


def test_there_are_scenarios_and_each_states_what_it_shows() -> None:
    assert len(SCENARIOS) >= 14
    for path in SCENARIOS:
        assert path.read_text().startswith("# "), path.name


def test_a_transcript_that_differs_is_noticed() -> None:
    text = SCENARIOS[0].read_text()
    changed = text.replace("term 1", "term 2")
    assert rewritten(changed) != changed
    assert [block.before for block in blocks(rewritten(changed))] == [
        block.before for block in blocks(changed)
    ]

"""Plans of elastic runs name their servers: one, as every run has, is read; several are refused by name."""

from dataclasses import replace

from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.core.errors import DamagedRecordError
from paceline.plan.codec import dumps, loads
from paceline.plan.plan import Elastic

ELASTIC = Elastic(workers=2, min_workers=1, max_workers=2)


def test_a_plan_with_one_pair_of_servers_is_read() -> None:
    plan = replace(small_plan("asgd"), elastic=ELASTIC)
    text = dumps(plan)
    assert '"servers": 1' in text
    assert loads(text) == plan


def test_a_plan_of_servers_in_parts_is_refused(wording: Wording) -> None:
    text = dumps(replace(small_plan("asgd"), elastic=ELASTIC)).replace('"servers": 1', '"servers": 2')
    with wording.raises(DamagedRecordError):
        loads(text)

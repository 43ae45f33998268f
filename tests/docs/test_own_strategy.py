"""The guide's second strategy breaks the laws that the page names, and keeps the others."""

from pathlib import Path

import pytest
from docs.pages import ROOT, Save, orders

from paceline.laws.lab import Lab
from paceline.laws.runner import cases, check

PAGE = ROOT / "docs" / "guides" / "your-own-strategy.md"
BROKEN = {"U2.ssgd", "U3.ssgd", "S1", "S2.ssgd"}
KEPT = {"U1.ssgd", "U4.ssgd", "U5.ssgd", "U6.ssgd"}


def test_a_warm_up_breaks_the_law_of_plain_sgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for order in orders(PAGE.read_text(encoding="utf-8")):
        if isinstance(order, Save):
            (tmp_path / order.name).write_text(order.text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    tried = [case for case in cases("ssgd") if case.id in BROKEN | KEPT]
    results = {case.id: check(case, Lab("ssgd", "my_strategy:WarmUp")) for case in tried}
    assert {law for law, result in results.items() if not result.ok} == BROKEN
    assert set(results) == BROKEN | KEPT

"""The page shows what the log says: phase colours, accuracy, coordinator nodes, and small empty panels.

The runs are scripted, so no process trains.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.comparison.browser import open_browser
from tests.dashboard.made import MadeRun
from tests.dashboard.served import Opened, dashboard, needs_page, opened
from tests.fixtures.processes.command import ROOT
from tests.fixtures.waiting import until

from paceline.events.schema import CoordinatorRow

PALETTE = json.loads((ROOT / "src" / "paceline" / "core" / "palette.json").read_text())
MAX_EMPTY_PX = 60  # of a panel without content


@contextmanager
def shown(folder: Path, *args: str, page: str) -> Iterator[Opened]:
    needs_page()
    with (
        open_browser() as browser,
        dashboard(str(folder), *args) as served,
        opened(browser, f"{served.url}&page={page}") as found,
    ):
        yield found
        assert found.said == []


def evaluate(run: MadeRun, step: int, accuracy: float) -> None:
    metrics = json.dumps({"valid_loss": 1 - accuracy, "valid_accuracy": accuracy})
    run.workers[0].write("evaluated", step=step, samples=step, seconds=1.0, took_s=0.1, metrics=metrics)


def sample(run: MadeRun, address: str, node: int | None, role: str) -> None:
    """One sample of a coordinator node; node None: it is unreachable."""
    known = None if node is None else 1
    row = CoordinatorRow(
        run.clock.ns, address, node, role, True, known, known, known, known, 0, node is not None, None
    )
    run.launcher.write_rows("coordinators", [row])


@pytest.mark.timeout(300)
def test_accuracy_is_on_the_overview_and_in_the_comparison(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, accuracies in (("first", (0.5, 0.9, 0.8)), ("second", (0.4,))):
        run = MadeRun(runs / name)
        for number, accuracy in enumerate(accuracies, start=1):
            run.train(10)
            evaluate(run, 10 * number, accuracy)
        run.close("finished")
    (runs / "first" / "result.json").write_text(json.dumps({"metrics": {"test_accuracy": 0.75}}))
    with shown(runs / "first", page="overview") as found:
        tile = found.page.locator("[data-tile=Accuracy]")
        until(lambda: "75" in tile.locator(".value").inner_text(), "the accuracy of the finished model")
        assert "best 90" in tile.inner_text()
        assert "step 20" in tile.inner_text()
        found.go("Compare")
        last = found.page.locator("[data-compared=first] [data-column=accuracy]")
        until(lambda: last.count() == 1 and "75" in last.inner_text(), "the accuracy of the first run")
        best = found.page.locator("[data-compared=first] [data-column='best accuracy']")
        assert "90" in best.inner_text()
        assert "40" in found.page.locator("[data-compared=second] [data-column=accuracy]").inner_text()


@pytest.mark.timeout(300)
def test_a_dead_node_keeps_its_name_and_an_intended_delay_is_not_red(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "live")
    for second in range(3):
        run.train(10)
        for number in (1, 2, 3):
            is_dead = number == 2 and second > 0
            role = "leader" if number == 1 else "follower"
            sample(run, f"h:{number}", None if is_dead else number, "no answer" if is_dead else role)
    run.close("finished")
    with shown(run.folder, page="coordinator") as found:
        dead = found.page.locator("[data-node-row=node-2]")
        until(lambda: dead.count() == 1, "the dead node is listed by its name")
        assert "down" in dead.inner_text()
        assert found.page.locator("[data-node=node-2].down").count() == 1
        found.go("Timeline")
        swatch = found.page.locator("[data-phase-colour=delay] rect").first
        assert swatch.get_attribute("fill") == PALETTE["light"]["phases"]["delay"]
        found.page.keyboard.press("t")
        until(lambda: swatch.get_attribute("fill") == PALETTE["dark"]["phases"]["delay"], "in the dark")


@pytest.mark.timeout(300)
def test_a_panel_without_content_is_one_line(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "live")
    run.train(10)
    run.close("finished")
    with shown(run.folder, page="coordinator") as found:
        panels = found.page.locator(".panel.is-empty")
        assert panels.count() == 4  # nodes, generations, actions, supervisor
        heights = panels.evaluate_all("elements => elements.map(element => element.clientHeight)")
        assert max(heights) <= MAX_EMPTY_PX

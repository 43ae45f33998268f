"""A run's dashboard in a real browser: view it, inject faults, replay it.

One run serves all tests: four elastic workers that train until a test stops them.
"""

import json
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.comparison.browser import open_browser
from tests.dashboard.served import Opened, Served, dashboard, lines_of, needs_page, opened
from tests.fixtures.processes.command import Running, training
from tests.fixtures.waiting import descendants, kill, until, until_gone

PAGES = ("Overview", "Workers", "Timeline", "Coordinator", "Metrics", "Lab", "Compare")
# Judged once a second while a run goes on: a machine that stood still has judged less often.
OF_MOMENTS = {"alerts", "health", "trends"}
EVALUATED = ("--evaluate-every", "40")
# Fires at a change of the crew, and is over some seconds later by itself.
RULES = """\
version: 1
rules:
  - name: CrewChanged
    severity: warning
    component: workers
    all:
      - {metric: paceline_generation, reduce: increase, window: 8s, above: 0}
    summary: the crew changed {value} times
    description: A worker was lost, or joined.
"""


@pytest.mark.timeout(600)
def test_a_run_is_watched_broken_healed_stopped_and_replayed(tmp_path: Path) -> None:
    needs_page()
    run_dir, rules = tmp_path / "runs" / "live", tmp_path / "rules.yaml"
    rules.write_text(RULES)
    args = (
        "--task",
        "digits",
        "--elastic",
        "--num-workers",
        "4",
        "--pace",
        "30ms",
        "--dashboard",
        *EVALUATED,
    )
    with open_browser() as browser, training(run_dir, *args, participants=4) as run:
        with opened(browser, _address(run)) as page:
            _appears_and_moves(page)
            _says_that_its_dashboard_is_gone(page, run)
        with dashboard(str(run_dir), "--rules", str(rules)) as served:
            _has_no_gap(served)
            with opened(browser, served.url) as page:
                _worker_is_killed(page)
                _alert_is_known(page)
                _is_accessible_while_it_trains(page)  # meanwhile the alert comes to its end
                _alert_is_over(page)
                live = _is_stopped(page, run, run_dir)
            _is_accessible_in_the_end(browser, served.url)
            _tells_of_an_older_window(browser, served)
            _loads_nothing_else(page, served)
        with dashboard(str(run_dir), "--rules", str(rules)) as later, opened(browser, later.url) as page:
            ended = str(page.page.evaluate("window.__paceline.view()"))
        with dashboard(str(run_dir), "--replay", "--rules", str(rules)) as again:
            _shows_the_same(browser, again, live, ended)
        _waits_for_a_first_run(browser, tmp_path / "empty")


def _address(run: Running) -> str:
    """Where `train --dashboard` says that it is."""
    assert run.process.stderr is not None
    lines = iter(run.process.stderr.readline, "")
    text = next(line for line in lines if line.startswith(("dashboard: ", "no dashboard")))
    assert text.startswith("dashboard: "), text
    return text.split(": ", 1)[1].strip()


def _appears_and_moves(page: Opened) -> None:
    assert "token=" not in page.page.url  # the cookie has it, and the address bar no longer
    page.until("JSON.parse(window.__paceline.view()).progress.step > 5", "steps are made")
    loss, step = page.view()["loss"]["smooth"], page.view()["progress"]["step"]
    page.until(f"JSON.parse(window.__paceline.view()).loss.smooth < {loss}", "the loss falls")
    page.until(f"JSON.parse(window.__paceline.view()).progress.step > {step}", "the run goes on")
    assert page.page.locator(".cell").count() == 4
    accuracy = page.page.locator("[data-tile=Accuracy]")
    until(lambda: "best" in accuracy.inner_text(), "the last and the best accuracy are shown")
    until(lambda: page.page.locator("[data-link=live]").count() == 1, "it says that it is live")
    drawn = "(document.querySelector('canvas').getContext('2d').getImageData(0,0,400,40).data)"
    page.until(f"new Set({drawn}).size > 3", "phases are drawn")
    assert page.said == []


def _says_that_its_dashboard_is_gone(page: Opened, run: Running) -> None:
    """Stale, as it stands still; disconnected, as it is gone: and nothing of the run waits for it."""
    children = descendants(run.process.pid)
    results = [pid for pid, command in children.items() if "paceline dashboard" in command]
    assert results
    for pid in results:
        kill(pid, signal.SIGSTOP)
    page.until("window.__paceline.link() === 'stale'", "it says that it is stale")
    _is_clean(page, "stale")
    for pid in results:
        kill(pid)
    until_gone(results)
    page.until("window.__paceline.link() === 'lost'", "it says that the server does not answer")
    _is_clean(page, "disconnected")
    until(lambda: "retrying in" in page.page.locator("[data-link]").inner_text(), "and that it tries again")
    run.until_it_trains()


def _has_no_gap(served: Served) -> None:
    """Another dashboard knows every step, also those that were made while there was none."""

    def lanes() -> list[list[int]]:
        lanes = served.get("/api/v1/timeline?most=100000")["lanes"]
        return [[row[0] for row in lane["rows"]] for lane in lanes]

    until(lambda: len(lanes()) == 4 and min(map(len, lanes())) > 40, "all workers have written some steps")
    for numbers in map(set, lanes()):  # a step that was repeated by another generation is there twice
        assert numbers == set(range(min(numbers), max(numbers) + 1))


def _worker_is_killed(opened: Opened) -> None:
    page, before = opened.page, max(g["number"] for g in opened.view()["generations"])
    opened.go("Lab")
    page.locator("#fault-worker").select_option("worker-1")
    card = page.locator("[data-card=kill]")
    card.get_by_role("button").click()
    until(lambda: card.locator("[data-phase=effect_seen]").count() == 1, "the effect of the kill is seen")
    # Whether the limits were kept is the lab's and the benchmarks' to say; here each prediction is judged.
    until(lambda: card.locator("[data-state=open]").count() == 0, "all predictions are judged")
    kept = card.locator("li", has_text="no committed step is lost")
    assert kept.get_attribute("data-state") == "held"
    opened.go("Coordinator")
    row = page.locator(f"[data-generation='{before + 1}']")
    until(lambda: row.count() == 1, "the new generation is shown")
    until(lambda: float(row.get_attribute("data-recovery") or 0) > 0, "its recovery time is shown")
    assert row.locator("[aria-label*=detect]").count() == 1  # by stage
    until(lambda: page.locator("[data-leader]").count() == 1, "a node leads")


def _alert_is_known(opened: Opened) -> None:
    page = opened.page
    page.locator("#alerts").click()
    until(lambda: page.locator("[data-rule=CrewChanged]").count() >= 1, "the alert is known")
    page.keyboard.press("Escape")


def _alert_is_over(opened: Opened) -> None:
    page = opened.page
    page.locator("#alerts").click()
    until(lambda: page.locator("[data-rule=CrewChanged][data-state=resolved]").count() >= 1, "it is over")
    alert = next(
        a for a in opened.view()["alerts"] if a["rule"] == "CrewChanged" and a["state"] == "resolved"
    )
    assert alert["active_s"] is not None  # it has fired
    assert alert["resolved_s"] > alert["active_s"]
    page.keyboard.press("Escape")


def _is_stopped(opened: Opened, run: Running, run_dir: Path) -> str:
    """By its name, on the page; what is shown in the end."""
    page = opened.page
    opened.go("Overview")
    page.get_by_role("button", name="Stop …").click()
    page.get_by_label("To stop the run").fill(run_dir.name)
    page.get_by_role("button", name="Stop the run").click()
    assert run.process.wait(120) == 130  # as by Ctrl-C, with a checkpoint
    actions = (
        "JSON.parse(window.__paceline.view()).events.filter(e => e.kind === 'action').at(-1).fields.phase"
    )
    opened.until(f"{actions} === 'effect_seen'", "its end is seen")
    until(lambda: bool(opened.view()["seq"] == lines_of(run_dir)), "all is shown")
    assert opened.view()["state"] == "stopped"
    assert opened.said == []
    return str(page.evaluate("window.__paceline.view()"))


def _walk(tab: Opened, state: str, themes: int) -> None:
    """Every page, and what lies over them."""
    for name in PAGES:
        tab.go(name)
        if name == "Compare":
            until(lambda: tab.page.locator("[data-compared]").count() == 1, "the run is compared")
        _is_clean(tab, f"{name}, {state}", themes)
    tab.page.keyboard.press("?")
    tab.page.keyboard.press("a")
    until(lambda: tab.page.get_by_role("dialog").count() == 1, "the alerts lie over it")
    _is_clean(tab, f"help and alerts, {state}", themes)
    tab.page.keyboard.press("Escape")


def _is_clean(tab: Opened, where: str, themes: int = 2) -> None:
    for _ in range(themes):  # the other one, and back
        tab.page.keyboard.press("t")
        theme = tab.page.evaluate("document.documentElement.dataset.theme")
        assert tab.violations() == [], (where, theme)


def _is_accessible_while_it_trains(tab: Opened) -> None:
    _walk(tab, "live", themes=2)
    assert tab.said == []


def _is_accessible_in_the_end(browser: Browser, url: str) -> None:
    """What is over has other buttons; each page in one theme, since colours are what they were."""
    with opened(browser, url, "dark") as tab:
        assert tab.page.evaluate("document.documentElement.dataset.theme") == "dark"  # as the system is
        _walk(tab, "over", themes=1)
        tab.page.set_viewport_size({"width": 360, "height": 740})
        for number, name in enumerate(PAGES, start=1):
            tab.page.keyboard.press(str(number))
            tab.until(f"document.getElementById('page').dataset.page === '{name.lower()}'", name)
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360, name
        assert tab.said == []


def _tells_of_an_older_window(browser: Browser, served: Served) -> None:
    """A link leads to a page and a window; a lesson is about this run."""
    rows = served.get("/api/v1/timeline?most=100000")["lanes"][0]["rows"]
    from_s, to_s = (rows[len(rows) * share // 4][1] for share in (1, 2))  # steps are in it, and before it
    with opened(browser, f"{served.url}&page=timeline&w=worker-1") as tab:
        page, generations = tab.page, tab.view()["generations"]
        recovered = next(generation for generation in generations[1:] if generation["recovery"])
        page.goto(f"{page.url}&from={from_s:.2f}&to={to_s:.2f}")
        tab.until("!!document.querySelector('[data-changed]')", "what changed is told")
        until(lambda: "most changed" in page.locator("[data-changed]").inner_text(), "and what it was")
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV of this window").click()
        lines = download.value.path().read_text().splitlines()
        assert lines[0].startswith("worker,step,start_s,data_s")
        assert len(lines) > 4
        page.go_back()
        tab.go("Coordinator")
        page.locator("#lesson").click()
        words = page.get_by_label("Lesson").get_by_role("status")
        for _ in range(4):
            page.get_by_role("button", name="Next", exact=True).click()
        until(lambda: recovered["why"] in words.inner_text(), "it tells of this run's recovery")
        assert "w=worker-1" in page.url
        page.keyboard.press("K")
        assert page.locator(".confirm").count() == 0  # it is over: there is no process to kill
        assert tab.said == []


def _waits_for_a_first_run(browser: Browser, folder: Path) -> None:
    """Nothing is there yet: that is said, and a run that comes is shown."""
    folder.mkdir()
    with dashboard(str(folder)) as served:
        page = browser.new_page()
        page.goto(served.url)
        tab = Opened(page)
        tab.until("document.body.innerText.includes('has no run yet')", "it says so")
        assert tab.violations() == []
        page.close()


def _loads_nothing_else(opened: Opened, served: Served) -> None:
    assert {url for url in opened.asked if not url.startswith((served.origin, "data:", "blob:"))} == set()


def _shows_the_same(browser: Browser, served: Served, live: str, ended: str) -> None:
    with opened(browser, f"{served.url}&at=1000000") as tab:
        tab.until("window.__paceline.link() === 'paused'", "it stands still")
        _is_clean(tab, "a recording", themes=1)
        text = str(tab.page.evaluate("window.__paceline.view()"))
        want, seen = json.loads(live), json.loads(text)
        for name in want.keys() - OF_MOMENTS:
            assert seen[name] == want[name], name
        assert text == ended  # to the last byte
        end = tab.view()["now_s"]
        tab.page.get_by_label("To the beginning").click()
        tab.until(f"JSON.parse(window.__paceline.view()).now_s < {end / 2}", "the beginning is shown")
        tab.page.keyboard.press("]")
        tab.page.get_by_label("Play").click()
        tab.until("JSON.parse(window.__paceline.view()).progress.step > 3", "it plays")
        assert tab.said == []

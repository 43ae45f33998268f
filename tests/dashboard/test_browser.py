"""What does a person see who opens a run's dashboard, breaks it, and replays it? In a real browser.

One run serves all of it: four elastic workers that train until somebody stops them.
"""

import json
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.comparison.browser import open_browser
from tests.dashboard.served import Opened, Served, dashboard, lines_of, needs_page, opened
from tests.fixtures.command import Running, training
from tests.fixtures.waiting import descendants, kill, until, until_gone

PAGES = ("Overview", "Workers", "Timeline", "Coordinator", "Metrics", "Lab", "Compare")
# Judged once a second while a run goes on: a machine that stood still has judged less often.
OF_MOMENTS = {"alerts", "health", "trends"}
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
    description: Somebody was lost, or came.
"""


@pytest.mark.timeout(600)
def test_a_run_is_watched_broken_mended_stopped_and_replayed(tmp_path: Path) -> None:
    needs_page()
    run_dir, rules = tmp_path / "runs" / "live", tmp_path / "rules.yaml"
    rules.write_text(RULES)
    args = ("--task", "digits", "--elastic", "--num-workers", "4", "--pace", "30ms", "--dashboard")
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
            _asks_nobody_else(page, served)
        with dashboard(str(run_dir), "--rules", str(rules)) as later, opened(browser, later.url) as page:
            ended = str(page.page.evaluate("window.__paceline.view()"))
        with dashboard(str(run_dir), "--replay", "--rules", str(rules)) as again:
            _shows_the_same(browser, again, live, ended)
        _waits_for_a_first_run(browser, tmp_path / "empty")


def _address(run: Running) -> str:
    """Where `train --dashboard` says that it is."""
    assert run.process.stderr is not None
    lines = iter(run.process.stderr.readline, "")
    said = next(line for line in lines if line.startswith(("dashboard: ", "no dashboard")))
    assert said.startswith("dashboard: "), said
    return said.split(": ", 1)[1].strip()


def _appears_and_moves(page: Opened) -> None:
    assert "token=" not in page.page.url  # the cookie has it, and the address bar no longer
    page.until("JSON.parse(window.__paceline.view()).progress.step > 5", "steps are made")
    loss, step = page.view()["loss"]["smooth"], page.view()["progress"]["step"]
    page.until(f"JSON.parse(window.__paceline.view()).loss.smooth < {loss}", "the loss falls")
    page.until(f"JSON.parse(window.__paceline.view()).progress.step > {step}", "the run goes on")
    assert page.page.locator(".cell").count() == 4
    until(lambda: page.page.locator("[data-link=live]").count() == 1, "it says that it is live")
    drawn = "(document.querySelector('canvas').getContext('2d').getImageData(0,0,400,40).data)"
    page.until(f"new Set({drawn}).size > 3", "phases are drawn")
    assert page.said == []


def _says_that_its_dashboard_is_gone(page: Opened, run: Running) -> None:
    """Stale, as it stands still; disconnected, as it is gone: and nothing of the run waits for it."""
    children = descendants(run.process.pid)
    found = [pid for pid, command in children.items() if "paceline dashboard" in command]
    assert found
    for pid in found:
        kill(pid, signal.SIGSTOP)
    page.until("window.__paceline.link() === 'stale'", "it says that it is stale")
    _is_clean(page, "stale")
    for pid in found:
        kill(pid)
    until_gone(found)
    page.until("window.__paceline.link() === 'lost'", "it says that nobody answers")
    _is_clean(page, "disconnected")
    until(lambda: "retrying in" in page.page.locator("[data-link]").inner_text(), "and that it tries again")
    run.until_it_trains()


def _has_no_gap(served: Served) -> None:
    """Another dashboard knows every step, also those that were made while there was none."""

    def lanes() -> list[list[int]]:
        told = served.get("/api/v1/timeline?most=100000")["lanes"]
        return [[row[0] for row in lane["rows"]] for lane in told]

    until(lambda: len(lanes()) == 4 and min(map(len, lanes())) > 40, "everybody has written some steps")
    for numbers in map(set, lanes()):  # one that was begun anew with another crew is there twice
        assert numbers == set(range(min(numbers), max(numbers) + 1))


def _worker_is_killed(opened: Opened) -> None:
    page, before = opened.page, max(g["number"] for g in opened.view()["generations"])
    opened.go("Lab")
    page.locator("#victim").select_option("worker-1")
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
    until(lambda: page.locator("[data-leader]").count() == 1, "somebody leads")


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
    page.get_by_label("To stop it").fill(run_dir.name)
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


def _walk(found: Opened, state: str, themes: int) -> None:
    """Every page, and what lies over them."""
    for name in PAGES:
        found.go(name)
        if name == "Compare":
            until(lambda: found.page.locator("[data-compared]").count() == 1, "the run is compared")
        _is_clean(found, f"{name}, {state}", themes)
    found.page.keyboard.press("?")
    found.page.keyboard.press("a")
    until(lambda: found.page.get_by_role("dialog").count() == 1, "the alerts lie over it")
    _is_clean(found, f"help and alerts, {state}", themes)
    found.page.keyboard.press("Escape")


def _is_clean(found: Opened, where: str, themes: int = 2) -> None:
    for _ in range(themes):  # the other one, and back
        found.page.keyboard.press("t")
        theme = found.page.evaluate("document.documentElement.dataset.theme")
        assert found.violations() == [], (where, theme)


def _is_accessible_while_it_trains(found: Opened) -> None:
    _walk(found, "live", themes=2)
    assert found.said == []


def _is_accessible_in_the_end(browser: Browser, url: str) -> None:
    """What is over has other buttons; each page in one theme, since colours are what they were."""
    with opened(browser, url, "dark") as found:
        assert found.page.evaluate("document.documentElement.dataset.theme") == "dark"  # as the system is
        _walk(found, "over", themes=1)
        found.page.set_viewport_size({"width": 360, "height": 740})
        for number, name in enumerate(PAGES, start=1):
            found.page.keyboard.press(str(number))
            found.until(f"document.getElementById('page').dataset.page === '{name.lower()}'", name)
            assert found.page.evaluate("document.documentElement.scrollWidth") <= 360, name
        assert found.said == []


def _tells_of_an_older_window(browser: Browser, served: Served) -> None:
    """A link leads to a page and a window; a lesson is about this run."""
    rows = served.get("/api/v1/timeline?most=100000")["lanes"][0]["rows"]
    from_s, to_s = (rows[len(rows) * share // 4][1] for share in (1, 2))  # steps are in it, and before it
    with opened(browser, f"{served.url}&page=timeline&w=worker-1") as found:
        page, generations = found.page, found.view()["generations"]
        recovered = next(generation for generation in generations[1:] if generation["recovery"])
        page.goto(f"{page.url}&from={from_s:.2f}&to={to_s:.2f}")
        found.until("!!document.querySelector('[data-changed]')", "what changed is told")
        until(lambda: "most changed" in page.locator("[data-changed]").inner_text(), "and what it was")
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV of this window").click()
        lines = download.value.path().read_text().splitlines()
        assert lines[0].startswith("worker,step,start_s,data_s")
        assert len(lines) > 4
        page.go_back()
        found.go("Coordinator")
        page.locator("#lesson").click()
        words = page.get_by_label("Lesson").get_by_role("status")
        for _ in range(4):
            page.get_by_role("button", name="Next", exact=True).click()
        until(lambda: recovered["why"] in words.inner_text(), "it tells of this run's recovery")
        assert "w=worker-1" in page.url
        page.keyboard.press("K")
        assert page.locator(".confirm").count() == 0  # it is over: there is nobody to kill
        assert found.said == []


def _waits_for_a_first_run(browser: Browser, folder: Path) -> None:
    """Nothing is there yet: that is said, and a run that comes is shown."""
    folder.mkdir()
    with dashboard(str(folder)) as served:
        page = browser.new_page()
        page.goto(served.url)
        found = Opened(page)
        found.until("document.body.innerText.includes('has no run yet')", "it says so")
        assert found.violations() == []
        page.close()


def _asks_nobody_else(opened: Opened, served: Served) -> None:
    assert {url for url in opened.asked if not url.startswith((served.origin, "data:", "blob:"))} == set()


def _shows_the_same(browser: Browser, served: Served, live: str, ended: str) -> None:
    with opened(browser, f"{served.url}&at=1000000") as found:
        found.until("window.__paceline.link() === 'paused'", "it stands still")
        _is_clean(found, "a recording", themes=1)
        text = str(found.page.evaluate("window.__paceline.view()"))
        want, seen = json.loads(live), json.loads(text)
        for name in want.keys() - OF_MOMENTS:
            assert seen[name] == want[name], name
        assert text == ended  # to the last byte
        end = found.view()["now_s"]
        found.page.get_by_label("To the beginning").click()
        found.until(f"JSON.parse(window.__paceline.view()).now_s < {end / 2}", "the beginning is shown")
        found.page.keyboard.press("]")
        found.page.get_by_label("Play").click()
        found.until("JSON.parse(window.__paceline.view()).progress.step > 3", "it plays")
        assert found.said == []

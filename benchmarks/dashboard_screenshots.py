"""Screenshots of every dashboard page, light and dark, of a paced run with a straggler and a killed worker.

`make screenshots` writes them to screenshots/; they are for manual review.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.dashboard_load import Server, served
from paceline.core.clock import SystemClock, monotonic_s

FOLDER = Path("screenshots")
PAGES = ("Overview", "Workers", "Timeline", "Coordinator", "Metrics", "Lab", "Compare")
WITHIN_S = 120.0
SETTLE_MS = 1500
# Steps of some milliseconds that compute, so that phases are visible.
TASK = (
    "--task",
    "xor",
    "--task-option",
    "hidden=700",
    "--task-option",
    "layers=2",
    "--task-option",
    "lr=0.01",
)
PACED = ("--task", "digits", "--pace", "25ms", "--straggler", "worker=1,factor=1.6", "--evaluate-every", "50")


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    raise SystemExit("no browser here; install it with: apt-get install chromium")


def shoot(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place)
        _train(runs / "asgd-4w", TASK, "--mode", "asgd", "--num-workers", "4", "--steps", "300").wait()
        _train(runs / "alone", PACED[:4], "--mode", "single", "--steps", "100").wait()
        bounded = (
            "--num-workers",
            "4",
            "--staleness",
            "3",
            "--steps",
            "300",
            "--straggler",
            "worker=1,factor=2",
        )
        _train(runs / "ssp-4w", TASK, "--mode", "ssp", *bounded).wait()
        _repeat(runs)
        elastic = ("--elastic", "--num-workers", "4", "--checkpoint-every", "400", "--steps", "1000000")
        run = _train(runs / "ssgd-4w", PACED, "--mode", "ssgd", *elastic, "--gradient-norm-every", "5")
        try:
            with served(runs / "ssgd-4w") as server, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
                _break_it(server)
                for scheme in ("light", "dark"):
                    _pages(browser, server, scheme, folder)
                browser.close()
        finally:
            run.terminate()
            run.wait()


def _train(run_dir: Path, task: tuple[str, ...], *args: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "paceline", "train", *task, *args, "--run-dir", str(run_dir), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _until((run_dir / "events.jsonl").exists, "the run has begun")
    return process


def _repeat(runs: Path) -> None:
    """One and two workers in three rounds, which is enough for an interval."""
    for seed in range(3):
        for workers in (1, 2):
            size = ("--num-workers", str(workers), "--seed", str(seed), "--steps", "60")
            _train(runs / f"ssgd-{workers}w-{seed}", PACED[:2], "--mode", "ssgd", *size).wait()


def _break_it(server: Server) -> None:
    """A worker is killed once all train, and another one slowed after that."""
    _until(lambda: _view(server)["counts"]["alive"] == 4, "all train")
    SystemClock().sleep(8)
    _send_request(server, {"key": "screenshot-kill", "action": "kill", "worker": "worker-2"})
    _until(lambda: len(_view(server)["generations"]) > 2, "it was replaced")
    SystemClock().sleep(4)
    _send_request(
        server, {"key": "screenshot-slow", "action": "slow", "worker": "worker-1", "factor": 4, "for_s": 60}
    )
    SystemClock().sleep(6)


def _pages(browser: Browser, server: Server, scheme: str, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{server.url}&theme={scheme}")
    _until(
        lambda: bool(page.evaluate("!!window.__paceline && window.__paceline.frames() > 2")), "it is shown"
    )
    for name in PAGES:
        page.locator("nav a", has_text=name).click()
        if name == "Workers":
            page.get_by_role("button", name="worker-1", exact=True).click()
        if name == "Compare":
            for run in ("ssgd-1w-0", "ssgd-2w-0"):
                page.locator("main button", has_text=run).click()
        page.wait_for_timeout(SETTLE_MS)
        _save(page, folder / f"{name.lower()}-{scheme}.png")
        if name == "Timeline":
            _closer(page, folder / f"timeline-close-{scheme}.png")
        if name == "Coordinator":
            _lesson(page, folder / f"lesson-{scheme}.png")
    page.locator("#alerts").click()
    page.wait_for_timeout(SETTLE_MS)
    _save(page, folder / f"alerts-{scheme}.png")
    page.goto(f"{server.url.partition('?')[0]}?run=ssp-4w&page=timeline&theme={scheme}")
    page.wait_for_timeout(2 * SETTLE_MS)
    _save(page, folder / f"timeline-ssp-{scheme}.png")
    page.goto(f"{server.url.partition('?')[0]}?run=ssgd-4w&theme={scheme}")
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("nav a", has_text="Overview").click()
    page.wait_for_timeout(SETTLE_MS)
    _save(page, folder / f"telephone-{scheme}.png")
    page.close()


def _closer(page: Page, path: Path) -> None:
    """Zoomed in to the barriers, with the heat map of gradient norms."""
    page.locator("#heat").select_option("gradient norm")
    for _ in range(5):
        page.locator("#zoom-in").click()
    page.wait_for_timeout(SETTLE_MS)
    _save(page, path)
    page.keyboard.press("L")
    page.locator("#heat").select_option("step time")


def _lesson(page: Page, path: Path) -> None:
    page.locator("#lesson").click()
    for _ in range(4):
        page.get_by_role("button", name="Next", exact=True).click()
    _save(page, path)
    page.get_by_role("button", name="Close").click()


def _save(page: Page, path: Path) -> None:
    page.screenshot(path=path)
    print(path, flush=True)


def _view(server: Server) -> Any:  # Any: JSON
    return _send_request(server, None)["view"]


def _send_request(server: Server, body: dict[str, object] | None) -> Any:  # Any: JSON
    host, port = server.address
    token = server.url.partition("token=")[2]
    path, data = ("snapshot", None) if body is None else ("actions", json.dumps(body).encode())
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asking = urllib.request.Request(f"http://{host}:{port}/api/v1/{path}", data=data, headers=headers)
    with urllib.request.urlopen(asking, timeout=60) as answer:
        return json.loads(answer.read())


def _until(is_true: Callable[[], bool], description: str) -> None:
    deadline_s = monotonic_s() + WITHIN_S
    while not is_true():
        if monotonic_s() > deadline_s:
            raise SystemExit(f"waited {WITHIN_S:g} s, and still not: {description}")
        SystemClock().sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    shoot(parser.parse_args().folder)


if __name__ == "__main__":
    main()

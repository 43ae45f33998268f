"""Dashboard cost and latency (`make bench-dashboard`; on an idle machine).

From the end of a step to its pixels in a real browser, with 64 and with 256 workers that
make ten steps a second; the size of the first load; whether viewers that do not read make the
server grow; the effect on training when its dashboard is killed, and what the next one lacks; and
the cost of a dashboard, its metrics and one viewer to training, in turns with and without: where
cores are free, as on a machine whose devices compute, and where workers fill them all. The collector
samples in both; its own cost is in `make bench-watch`.
"""

import argparse
import gzip
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.dashboard_cost import share_kept
from benchmarks.dashboard_killed import SIDE_S, survived
from benchmarks.dashboard_load import Writer, growth, served
from benchmarks.report import Ratio, tell_and_write
from paceline.core.clock import SystemClock
from paceline.dashboard.launch import PAGE

if TYPE_CHECKING:
    from playwright.sync_api import Page

RESULTS = Path(__file__).parent / "results" / "dashboard.json"
FIRST_LOAD_KB = 80.0
GOALS_MS = {64: 100.0, 256: 150.0}
HZ = 10.0
STRETCHES = 3  # intervals of the time in which the page is observed
COUNTED = 0.98  # share of the planned steps; the rest is the writer's delay
STALLED = 20
KILLS = 3
GROWTH_MB = 10.0


def first_load() -> Ratio:
    packed = sum(len(gzip.compress((PAGE / name).read_bytes(), 9)) for name in ("app.js", "app.css"))
    detail = "script and style, gzipped"
    return Ratio(
        name="first load, kB", goal=FIRST_LOAD_KB, at_least=False, rounds=(packed / 1000,), detail=detail
    )


def latency(workers: int, seconds: float) -> Ratio:
    """p95 of the steps that were made, in each of three stretches."""
    from playwright.sync_api import sync_playwright

    from benchmarks.dashboard_screenshots import chromium

    with (
        tempfile.TemporaryDirectory() as folder,
        Writer(Path(folder) / "run", workers, hz=HZ) as writer,
        served(writer.folder) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(server.url)
        while not page.evaluate("!!window.__paceline && window.__paceline.frames() > 5"):
            SystemClock().sleep(0.1)
        stretches = [_drawn_ms(page, seconds / STRETCHES) for _ in range(STRETCHES)]
        browser.close()
    made = workers * HZ * seconds / STRETCHES
    p50, p95, p99 = ([_quantile_ms(stretch, made, q) for stretch in stretches] for q in (0.5, 0.95, 0.99))
    drawn = sum(map(len, stretches))
    return Ratio(
        name=f"sample → pixels, p95 ms, {workers} workers × {HZ:g} Hz",
        goal=GOALS_MS.get(workers, 150.0),
        at_least=False,
        rounds=tuple(p95),
        detail=f"p50 {statistics.median(p50):.0f}, p99 {statistics.median(p99):.0f};"
        f" {drawn} steps drawn of about {made * STRETCHES:.0f}",
    )


def _drawn_ms(page: "Page", seconds: float) -> list[float]:
    """How late each step was that was drawn in this time."""
    page.evaluate("window.__latencies = []; undefined")
    SystemClock().sleep(seconds)
    return sorted(float(value) for value in page.evaluate("window.__latencies"))


def _quantile_ms(results: list[float], made: float, share: float) -> float:
    """Quantile over all steps that were made: a step that was never drawn counts as the latest."""
    place = int(max(len(results), made * COUNTED) * share)
    return results[place] if place < len(results) else math.inf


def stalling(seconds: float) -> Ratio:
    """How much more a server grows whose viewers do not read than one whose viewer does."""
    with tempfile.TemporaryDirectory() as folder, Writer(Path(folder) / "run", 64, hz=HZ) as writer:
        result = growth(writer.folder, STALLED, seconds)
    return Ratio(
        name=f"memory that {STALLED} stalled viewers cost, MB",
        goal=GROWTH_MB,
        at_least=False,
        rounds=(result.stalled - result.reading,),
        detail=f"{result.began:.0f} MB, {result.ended:.0f} MB after {seconds:g} s;"
        f" {result.reading:.0f} MB is the run's history: so much grows a server whose one viewer reads",
    )


def kept(rounds: int, steps: int, *, is_busy: bool) -> Ratio:
    pairs = share_kept(rounds, steps, is_busy=is_busy)
    with_it, without = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    where = "workers fill all cores" if is_busy else "cores are free"
    return Ratio(
        name=f"throughput when watched, {where}",
        goal=0.98,
        at_least=True,
        rounds=tuple(ours / plain for ours, plain in pairs),
        detail=f"dashboard, metrics, a viewer: {with_it:.0f} samples/s, without {without:.0f}",
    )


def killed(rounds: int) -> Iterator[Ratio]:
    """kill -9 of the dashboard, in the middle of training."""
    results = [survived() for _ in range(rounds)]
    yield Ratio(
        name="steps after its dashboard was killed ÷ before",
        goal=0.98,
        at_least=True,
        rounds=tuple(result.after / result.before for result in results),
        detail=f"in {SIDE_S:g} s each",
    )
    yield Ratio(
        name="steps that another dashboard lacks",
        goal=0,
        at_least=False,
        rounds=tuple(float(result.missing) for result in results),
        detail=f"of {results[-1].seen}",
    )


def measure(options: argparse.Namespace) -> Iterator[Ratio]:
    yield first_load()
    for workers in options.workers:
        yield latency(workers, options.seconds)
    yield stalling(options.stall_seconds)
    yield from killed(KILLS)
    for is_busy in (False, True):
        yield kept(options.rounds, options.steps, is_busy=is_busy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--stall-seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    tell_and_write(measure(options), options.output)


if __name__ == "__main__":
    main()

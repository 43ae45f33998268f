"""What does watching cost, and how late is it? `make bench-dashboard`; on an idle machine.

From the end of a step to its pixels in a real browser, with 64 and with 256 workers that
make ten steps a second; the size of the first load; what a dashboard, its metrics and one
viewer take from training, in turns with and without; and whether viewers that do not
read make the server grow.
"""

import argparse
import gzip
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.dashboard_cost import share_kept
from benchmarks.dashboard_load import Writer, served, stalled
from benchmarks.report import Ratio, write
from paceline.clock import SystemClock
from paceline.dashboard.settings import PAGE

RESULTS = Path(__file__).parent / "results" / "dashboard.json"
FIRST_LOAD_KB = 80.0
GOALS_MS = {64: 100.0, 256: 150.0}
STALLED = 20
GROWTH_MB = 10.0


def first_load() -> Ratio:
    packed = sum(len(gzip.compress((PAGE / name).read_bytes(), 9)) for name in ("app.js", "app.css"))
    detail = "script and style, gzipped"
    return Ratio(
        name="first load, kB", goal=FIRST_LOAD_KB, at_least=False, rounds=(packed / 1000,), detail=detail
    )


def latency(workers: int, seconds: float) -> Ratio:
    """p95 of the steps that were drawn, in one stretch."""
    from playwright.sync_api import sync_playwright

    from benchmarks.dashboard_screenshots import chromium

    with (
        tempfile.TemporaryDirectory() as folder,
        Writer(Path(folder) / "run", workers, hz=10.0) as writer,
        served(writer.folder) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(server.url)
        while not page.evaluate("!!window.__paceline && window.__paceline.frames() > 5"):
            SystemClock().sleep(0.1)
        page.evaluate("window.__latencies = []; undefined")
        SystemClock().sleep(seconds)
        found = sorted(float(value) for value in page.evaluate("window.__latencies"))
        browser.close()
    p50, p95, p99 = (found[int(len(found) * share)] for share in (0.5, 0.95, 0.99))
    expected = workers * 10 * seconds
    return Ratio(
        name=f"sample → pixels, p95 ms, {workers} workers × 10 Hz",
        goal=GOALS_MS.get(workers, 150.0),
        at_least=False,
        rounds=(p95,),
        detail=f"p50 {p50:.0f}, p99 {p99:.0f}; {len(found)} steps drawn of about {expected:.0f}",
    )


def stalling(seconds: float) -> Ratio:
    """How much the server grows while viewers do not read."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Writer(Path(folder) / "run", 64, hz=10.0) as writer,
        served(writer.folder) as server,
    ):
        before, after = stalled(server, STALLED, seconds)
    return Ratio(
        name=f"memory that {STALLED} stalled viewers cost, MB",
        goal=GROWTH_MB,
        at_least=False,
        rounds=(after - before,),
        detail=f"{before:.0f} MB, {after:.0f} MB after {seconds:g} s",
    )


def measure(options: argparse.Namespace) -> Iterator[Ratio]:
    yield first_load()
    for workers in options.workers:
        yield latency(workers, options.seconds)
    yield stalling(options.stall_seconds)
    pairs = share_kept(options.rounds, options.steps)
    with_it, without = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    yield Ratio(
        name="throughput with dashboard, metrics and a viewer",
        goal=0.98,
        at_least=True,
        rounds=tuple(ours / plain for ours, plain in pairs),
        detail=f"{with_it:.0f} samples/s, without {without:.0f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--stall-seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    ratios = []
    for ratio in measure(options):
        ratios.append(ratio)
        print(ratio.line(), flush=True)
    write(ratios, options.output)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()

"""Memory of a run's view over made-up hours of training, fed in a minute.

`python -m benchmarks.watch_memory --workers 64 --minutes 10` feeds a view the events that as many
workers would have written, ten steps a second each, and prints its memory at
intervals; `--where` names the source lines that hold it.
"""

import argparse
import gc
import json
import tracemalloc
from collections.abc import Iterator, Mapping

import psutil

from paceline.events.schema import SCHEMA, HostRow, LinkRow, ProcessRow
from paceline.monitoring.view.run_view import RunView
from paceline.plan.plan import Plan

T0_NS = 5_000_000_000_000
UNIX_S = 1_800_000_000.0
HZ = 10


def second(number: int, workers: int, hz: int) -> Iterator[str]:
    """Lines that a run writes in one second: steps of each worker, samples of launcher and workers."""
    for rank in range(workers):
        for part in range(hz):
            yield _steps(rank, number * hz + part, 1 / hz)
    at_ns = T0_NS + (number + 1) * 1_000_000_000
    noise = (number * 7919 % 1000) / 1000
    for rank in range(workers):
        link = (
            at_ns,
            f"host-{rank // 8}",
            3,
            0.001 + noise / 1e4,
            0.004 + noise / 1e4,
            number * 10,
            number // 50,
        )
        yield _line(f"worker-{rank}", "links", 1, dict(zip(LinkRow._fields, link, strict=True)))
    processes = [
        (at_ns, f"worker-{r}", r, 10**8 + r * number, 0.5 + noise / 2, False) for r in range(workers)
    ]
    columns = {n: list(c) for n, c in zip(ProcessRow._fields, zip(*processes, strict=True), strict=True)}
    yield _line("watch", "processes", workers, columns)
    host = (at_ns, "host-0", noise, 1.0, 10**9, 4 * 10**9, 10**10, 10**11, *(number * 1000,) * 7)
    yield _line("watch", "hosts", 1, dict(zip(HostRow._fields, host, strict=True)))


def _steps(rank: int, step: int, period_s: float) -> str:
    part = round(period_s * 1e8) + (step * 7919 + rank * 104_729) % 100_000
    columns: dict[str, object] = {
        "step": step,
        "position": step,
        "start_ns": T0_NS + round(step * period_s * 1e9),
        **{f"{name}_ns": part for name in ("data", "forward", "backward", "wait", "comm", "apply")},
        "delay_ns": 0,
        "codec_ns": 0,
        "loss": 2.0 / (1 + step / 500) + part / 1e9,
        "samples": 8,
        "bytes_out": 1000,
        "bytes_in": 1000,
        "own_norm": 1.0 + part / 1e9,
    }
    return _line(f"worker-{rank}", "steps", 1, columns)


def _line(who: str, kind: str, rows: int, columns: Mapping[str, object]) -> str:
    return json.dumps({"kind": kind, "who": who, "rows": rows, "columns": columns})


def a_view(workers: int) -> RunView:
    plan = Plan(
        run="made-up",
        task="digits",
        mode="ssgd",
        num_workers=workers,
        steps=10**8,
        batch_sizes=(8,) * workers,
    )
    view = RunView(plan)
    header = {"schema": SCHEMA, "run": "made-up", "plan": "p", "t0_ns": T0_NS, "started_unix_s": UNIX_S}
    view.take(json.dumps(header))
    for rank in range(workers):
        started = {"kind": "worker_started", "who": f"worker-{rank}", "at_ns": T0_NS, "pid": rank, "clock": 0}
        view.take(json.dumps(started))
    return view


def resident_mb() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the made-up run")
    parser.add_argument("--hz", type=int, default=HZ, help="steps of a worker in a second")
    parser.add_argument("--every", type=int, default=60, help="seconds between two lines")
    parser.add_argument("--where", action="store_true", help="which lines of the source hold it (slow)")
    options = parser.parse_args()
    if options.where:
        tracemalloc.start()
    view = a_view(options.workers)
    began_mb = resident_mb()
    print(f"{'minutes':>8}{'resident MB':>13}{'grown MB':>10}", flush=True)
    for number in range(round(options.minutes * 60)):
        for line in second(number, options.workers, options.hz):
            view.take(line)
        if (number + 1) % options.every == 0:
            now_mb = resident_mb()
            print(f"{(number + 1) / 60:>8.1f}{now_mb:>13.1f}{now_mb - began_mb:>10.1f}", flush=True)
    if options.where:
        for stat in tracemalloc.take_snapshot().statistics("lineno")[:20]:
            print(f"{stat.size / 1e6:>8.2f} MB {stat.count:>9} {stat.traceback[0]}")


if __name__ == "__main__":
    main()

"""All core figures in one run: `make bench-core`. Prints a line each, writes JSON.

Nothing here passes or fails a test: a missed goal is reported, and the exit
code stays 0.
"""

import argparse
from itertools import chain
from pathlib import Path

from benchmarks import (
    instrumentation,
    parameter_store,
    script_overhead,
    ssgd_vs_ddp,
    start_up,
    straggler_rates,
)
from benchmarks.report import tell_and_write
from paceline.launchers.local import LocalLauncher

RESULTS = Path(__file__).parent / "results" / "core.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with LocalLauncher() as launcher:
        measured = chain(
            start_up.measure(options.rounds),
            ssgd_vs_ddp.measure(launcher, options.rounds),
            parameter_store.measure(options.rounds),
            straggler_rates.measure(launcher, options.rounds),
            instrumentation.measure(launcher, options.rounds),
            script_overhead.measure(launcher, options.rounds),
        )
        tell_and_write(measured, options.output)


if __name__ == "__main__":
    main()

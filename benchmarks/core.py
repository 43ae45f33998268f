"""All core figures in one run: `make bench-core`. Prints a line each, writes JSON.

Nothing here passes or fails a test: a missed goal is reported, and the exit
code stays 0.
"""

import argparse
from pathlib import Path

from benchmarks import instrumentation, parameter_store, ssgd_vs_ddp, start_up, straggler_rates
from benchmarks.report import Ratio, write
from paceline.launchers.local import LocalLauncher

RESULTS = Path(__file__).parent / "results" / "core.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    ratios: list[Ratio] = []
    with LocalLauncher() as launcher:
        for measured in (
            start_up.measure(options.rounds),
            ssgd_vs_ddp.measure(launcher, options.rounds),
            parameter_store.measure(options.rounds),
            straggler_rates.measure(launcher, options.rounds),
            instrumentation.measure(launcher, options.rounds),
        ):
            for ratio in measured:
                ratios.append(ratio)
                print(ratio.line(), flush=True)
    write(ratios, options.output)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()

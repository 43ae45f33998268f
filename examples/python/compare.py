"""Compare two strategies on equal work, with confidence intervals and a recommendation.

Every strategy processes the same number of samples; one worker of four is three times slower.
The baseline `single` (one worker) always runs too. `comparison/report.html` has the plots.
"""

import paceline

comparison = paceline.compare(
    "xor",
    modes=["ssgd", "asgd"],  # synchronous SGD (all-reduce), asynchronous SGD
    workers=4,
    steps=60,
    repeats=3,  # the minimum for confidence intervals
    pace="5ms",
    straggler="worker=1,factor=3",
)
print(comparison.headline)
for label, cell in comparison.cells.items():
    speedup = cell.speedup
    interval = "" if speedup.low is None else f" (95 %: {speedup.low:.2f} to {speedup.high:.2f})"
    print(f"{label:10} speedup {speedup.value:.2f}{interval}, efficiency {cell.efficiency.value:.0%}")
for warning in comparison.warnings:
    print("warning:", warning)
print("report:", comparison.report)

"""Accuracy of the advisor: its pick from the plan against fifty worker pools, really run (`make bench-grid`).

In each cell the advisor picks first, from the plan, with nothing recorded.
Then every mode that could be advised really trains XOR on that pool, with
equal samples in all; the time is from the first step's start to the last one's
end. If the pick is not alone in front, it and the two fastest are run twice
more, and medians are compared. Where slowness is random, advice is about the
mean over many draws and one draw is weak evidence: every mode that is not
far behind is run with further seeds, and means are compared. The pick is right
if it is the best mode or within 2 % of it; its regret is how much longer it
took than the best.

The result file is written after every cell, and the same command resumes where
it was interrupted.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from benchmarks.clusters import Cell, cells
from benchmarks.report import Ratio, write
from benchmarks.runs import TRIED, plan_for, processors, really_run
from paceline.events.summary import summarise
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Plan
from paceline.simulate.advice import MIN_DIFFERENCE, REPEATS, Advice, advise
from paceline.simulate.predict import predict
from paceline.simulate.profile import Profile, profile_from_plan
from paceline.simulate.strategy_models import (
    Asynchronous,
    Candidate,
    ElasticAveraging,
    SingleWorker,
    StrategyModel,
    candidates,
    default_options,
    strategy_model_of,
)

RESULTS = Path(__file__).parent / "results" / "grid.json"
RUN_S = 1.0  # approximate duration of ssgd, long enough to make start-up negligible
FEWEST, MOST = 24, 160  # steps
# diloco and fedavg have the schedule of localsgd by default.
RACED = tuple(mode for mode in TRIED if mode not in ("diloco", "fedavg"))
CLOSE, AGAIN = 0.10, 2  # of the two fastest, those this close to the best are run so often more
NOT_FAR_BEHIND, DRAWS = 0.5, 5  # where slowness is random: modes this close are run with this many draws


class Row(TypedDict):
    cell: str
    steps: int
    advised: str
    is_clear: bool  # for the advisor
    predicted_s: dict[str, float]
    measured_s: dict[str, list[float]]
    best: str
    regret: float
    right: bool


def examine(launcher: LocalLauncher, cell: Cell) -> Row:
    steps = _steps(cell)
    allowed = _allowed(cell)
    advice = _advice(cell, steps, allowed)
    pick = advice.advised.candidate.mode
    tried = [c.mode for c in allowed if c.mode in RACED or c.mode == pick]
    measured = {mode: [_seconds(launcher, cell, mode, steps)] for mode in tried}
    if cell.is_random:
        for draw in range(1, DRAWS):
            for mode in _not_far_behind(measured, pick):
                measured[mode].append(_seconds(launcher, cell, mode, steps, draw=draw))
    else:
        for _ in range(AGAIN):
            for mode in _in_front(measured, pick):
                measured[mode].append(_seconds(launcher, cell, mode, steps))
    took_s = _compared(measured, is_random=cell.is_random)
    best = min(took_s, key=lambda mode: took_s[mode])
    regret = took_s[pick] / took_s[best] - 1
    return Row(
        cell=cell.name,
        steps=steps,
        advised=pick,
        is_clear=advice.is_clear,
        predicted_s={r.compared.candidate.mode: r.compared.prediction.total_s for r in advice.ranking},
        measured_s=measured,
        best=best,
        regret=regret,
        right=pick == best or regret <= MIN_DIFFERENCE,
    )


def _in_front(measured: dict[str, list[float]], pick: str) -> list[str]:
    """The two fastest by their first run, if they are close, and the pick; empty, if that is alone."""
    fastest = sorted(measured, key=lambda mode: measured[mode][0])[:2]
    limit_s = measured[fastest[0]][0] * (1 + CLOSE)
    close = [mode for mode in fastest if measured[mode][0] <= limit_s]
    return [] if close == [pick] else list(dict.fromkeys((*close, pick)))


def _not_far_behind(measured: dict[str, list[float]], pick: str) -> list[str]:
    limit_s = min(times[0] for times in measured.values()) * (1 + NOT_FAR_BEHIND)
    return [mode for mode, times in measured.items() if times[0] <= limit_s or mode == pick]


def _compared(measured: dict[str, list[float]], *, is_random: bool) -> dict[str, float]:
    """What is compared: one time for each mode that was run as often as any."""
    middle = statistics.mean if is_random else statistics.median
    most = max(map(len, measured.values()))
    return {mode: middle(times) for mode, times in measured.items() if len(times) == most or not is_random}


def _steps(cell: Cell) -> int:
    plan = plan_for("ssgd", cell.config(steps=100))
    prediction = predict(
        _profile(plan), strategy_model_of(plan.mode, plan.strategy), steps=100, seed=plan.seed
    )
    return min(MOST, max(FEWEST, round(RUN_S / prediction.total_s * 100)))


def _allowed(cell: Cell) -> list[Candidate]:
    settings, plan = cell.settings, plan_for("ssgd", cell.config(steps=1))
    options = replace(default_options(plan), staleness=settings.bound, sync_every=settings.period)
    result = candidates(options, plan.num_workers)
    result = [c for c in result if c.model != SingleWorker()]  # a cluster is given
    return [c for c in result if not (settings.is_bounded and _never_waits(c.model))]


def _never_waits(way: StrategyModel) -> bool:
    return way == Asynchronous(None) or isinstance(way, ElasticAveraging)


def _advice(cell: Cell, steps: int, allowed: list[Candidate]) -> Advice:
    plan = plan_for("ssgd", cell.config(steps=steps))
    seeds = range(plan.seed, plan.seed + REPEATS)
    return advise(_profile(plan), allowed, steps=steps, seeds=seeds)


def _profile(plan: Plan) -> Profile:
    """Input of `paceline advise`: the plan and the number of processors."""
    return profile_from_plan(plan, processors=processors())


def _seconds(launcher: LocalLauncher, cell: Cell, mode: str, steps: int, *, draw: int = 0) -> float:
    seed = cell.seed + draw * REPEATS  # beyond the seeds that advice was made from
    plan = plan_for(mode, replace(cell, seed=seed).config(steps=steps))
    return summarise(really_run(launcher, plan)).training_s


def _line(number: int, count: int, row: Row) -> str:
    times = ", ".join(f"{m} {statistics.mean(t):.2f}" for m, t in row["measured_s"].items())
    verdict = "right" if row["right"] else f"WRONG, best {row['best']}"
    return (
        f"{number:>3}/{count}  {row['cell']:<62} advised {row['advised']:<9} {verdict:<20}"
        f" regret {row['regret']:6.1%}   {times}"
    )


def _ratios(rows: list[Row]) -> list[Ratio]:
    regrets = [row["regret"] for row in rows]
    detail = f"{len(rows)} clusters, modes {', '.join(RACED)}"
    shares = (
        ("winner right: share of clusters", 0.9, True, statistics.mean(row["right"] for row in rows)),
        ("regret of the pick, mean", 0.05, False, statistics.mean(regrets)),
        ("regret of the pick, worst", 0.05, False, max(regrets)),
    )
    return [
        Ratio(name=name, goal=goal, at_least=at_least, rounds=(value,), detail=detail)
        for name, goal, at_least, value in shares
    ]


def _earlier(path: Path) -> dict[str, Row]:
    """Cells that this file already holds, if the same modes were tried."""
    if not path.exists():
        return {}
    data = json.loads(path.read_text())
    return {row["cell"]: row for row in data["cells"]} if data.get("modes") == list(RACED) else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=50, help="a quick look: so many, spread over the grid")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="run also what the result file already holds")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    every = [cell for cell in cells() if options.only in cell.name]
    if not every:
        parser.error(f"no cell's name contains {options.only!r}")
    count = max(1, min(options.cells, len(every)))
    chosen = [every[i * len(every) // count] for i in range(count)]
    known = {} if options.fresh else _earlier(options.output)
    rows: list[Row] = []
    try:
        with LocalLauncher() as launcher:
            for number, cell in enumerate(chosen, 1):
                row = known.get(cell.name) or examine(launcher, cell)
                rows.append(row)
                print(_line(number, count, row), flush=True)
                write(_ratios(rows), options.output, modes=list(RACED), cells=rows)
    except KeyboardInterrupt:
        print(f"interrupted after {len(rows)} of {count} clusters; the same command goes on")
    for ratio in _ratios(rows) if rows else ():
        print(ratio.line())
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()

"""How is a benchmark run? Every contender in every round, one after another, and everything is written.

The folder: `runs/` with a folder for each turn, `baseline_results.json`, `NAME_results_Nworkers.json`,
`comparison.json` and `.csv`, `plots/`, `report.html`. Half a benchmark leaves its finished turns, and no
comparison. See docs/guides/benchmark.md.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.app.compare_plan import order_of
from paceline.app.machine import look_at_machine
from paceline.benchmark.compare import compare
from paceline.benchmark.compared import Benchmark
from paceline.benchmark.files import forget, write_all
from paceline.benchmark.measured import Measured, write
from paceline.clock import monotonic_s, unix_now_s
from paceline.disk import exclusive
from paceline.errors import ConfigError, Problem

BASELINE = "baseline"
MEASURED = "measured.json"

Note = Callable[[str], None]  # one line for a person


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Who takes part. `run` trains once, in this folder with this seed, and says what it saw."""

    name: str  # of its files; the baseline's is BASELINE
    title: str
    run: Callable[[Path, int, Note], Measured]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """What is told before each turn."""

    title: str
    number: int  # from 1, of all turns
    count: int
    left_s: float | None  # a guess; None: nothing is known yet


def benchmark(
    contenders: Sequence[Contender],
    out: Path,
    *,
    task: str,
    subject: str,
    repeats: int,
    seed: int,
    tell: Callable[[Coming], None],
    note: Note,
) -> Benchmark:
    """Run everybody `repeats` times, in turns, write it all into `out`, and answer with what was found."""
    by_name = {one.name: one for one in contenders}
    order = order_of(list(by_name), repeats, seed)
    folders = {(name, n): out / "runs" / f"{name}-{n + 1}" for n, names in enumerate(order) for name in names}
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out):
        for folder in folders.values():
            _may_be_replaced(folder)
        forget(out)  # else half a benchmark would leave the comparison of an earlier one
        machine, began_s, done = look_at_machine(), monotonic_s(), 0
        runs: dict[str, list[Measured]] = {name: [] for name in by_name}
        for number, names in enumerate(order):
            for name in names:
                left_s = (monotonic_s() - began_s) / done * (len(folders) - done) if done else None
                done += 1
                tell(Coming(title=by_name[name].title, number=done, count=len(folders), left_s=left_s))
                found = _turn(by_name[name], folders[name, number], seed + number, note)
                runs[name].append(found)
        found_out = compare(runs, baseline=BASELINE, subject=subject, task=task, machine=machine)
        write_all(found_out, out)
        return found_out


def _turn(one: Contender, folder: Path, seed: int, note: Note) -> Measured:
    if folder.exists():
        shutil.rmtree(folder)  # `_may_be_replaced` has seen that it is one of ours
    folder.mkdir(parents=True)
    (folder / MEASURED).write_text("{}\n")  # so that half a turn is known as one of ours too
    started_s = unix_now_s()
    measured = replace(one.run(folder, seed, note), name=one.name, title=one.title, started_unix_s=started_s)
    write(measured, folder / MEASURED)
    return measured


def _may_be_replaced(folder: Path) -> None:
    if folder.exists() and not (folder / MEASURED).is_file():
        what = f"{folder} is there, but is no turn of a benchmark, so it is not replaced"
        raise ConfigError([Problem(what, "name another folder with --out", "--out")])

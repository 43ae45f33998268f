"""Parts of the course about performance: one worker, four, a straggler, staleness, the report."""

from paceline.comparison.schema import Cell
from paceline.comparison.statistics import MIN_ROUNDS
from paceline.learn.lesson import (
    Answer,
    ChoiceAnswer,
    Facts,
    Finding,
    NotSeenError,
    Part,
    Prediction,
    Question,
    exactly,
    is_expected_run,
    is_finished,
    quotient,
    rounded,
)

WHERE = (("a", "data"), ("b", "forward and backward"), ("c", "delay"), ("d", "wait"))
_PHASES = {"a": ("data",), "b": ("forward", "backward"), "c": ("delay",), "d": ("wait",)}


def _check(facts: Facts) -> list[Finding]:
    alone = facts.run("alone")
    paced = Finding(
        alone.pace_s > 0,
        f"a step of {alone.folder} lasts at least {alone.pace_s * 1000:g} ms",
        "add --pace as on the page: without it the results depend on the load of your machine",
    )
    return [is_expected_run("alone", alone, mode="single", workers=1), is_finished(alone), paced]


def _most(facts: Facts) -> Answer:
    phases = facts.run("alone").phases_s
    return ChoiceAnswer(key=max(_PHASES, key=lambda key: sum(phases.get(name, 0.0) for name in _PHASES[key])))


ONE_WORKER = Part(
    number=1,
    title="One worker: the baseline",
    minutes=8,
    page="part-1.md",
    see="One process trains, and its run folder records every step.",
    prediction=Prediction(
        text="A step uses 32 samples and lasts at least 25 ms. What throughput, in samples/s, will the run "
        "report?",
        seen=lambda facts: f"{facts.run('alone').samples_per_s:.0f} samples/s",
    ),
    runs=("alone",),
    new_runs=("alone",),
    check=_check,
    questions=(
        Question(
            text="How many samples did the run use in total?",
            right=lambda facts: exactly(facts.run("alone").samples),
            hint="steps times samples per step; also `samples` in runs/alone/result.json",
        ),
        Question(
            text="Which phase took most of the worker's time?",
            right=_most,
            hint="the line `workers' time` of the run's summary",
            options=WHERE,
        ),
    ),
    moral="A number means nothing without a baseline to compare it with.",
)


def _speedup(facts: Facts) -> float:
    return facts.run("four").samples_per_s / facts.run("alone").samples_per_s


def _four_workers_check(facts: Facts) -> list[Finding]:
    alone = facts.run("alone")
    four = facts.run("four")
    return [is_expected_run("four", four, mode="ssgd", workers=4, like=alone), is_finished(four)]


def _speedup_answer(facts: Facts) -> Answer:
    return quotient(facts.run("four").samples_per_s, facts.run("alone").samples_per_s, asked=0.1)


def _efficiency_answer(facts: Facts) -> Answer:
    alone = facts.run("alone")
    four = facts.run("four")
    # From a speedup that was itself rounded to one digit after the point.
    return quotient(
        four.samples_per_s * 100, alone.samples_per_s * four.workers, asked=1 + 0.1 * 100 / four.workers
    )


FOUR_WORKERS = Part(
    number=2,
    title="Four workers: speedup and efficiency",
    minutes=9,
    page="part-2.md",
    see="Four processes average their gradients at every step (synchronous SGD).",
    prediction=Prediction(
        text="Four workers do the work of part 1 together. What speedup in samples/s will they reach?",
        seen=lambda facts: f"{_speedup(facts):.2f}",
    ),
    runs=("alone", "four"),
    new_runs=("four",),
    check=_four_workers_check,
    questions=(
        Question(
            text="What is the speedup: throughput of `four` over throughput of `alone` (one decimal)?",
            right=_speedup_answer,
            hint="divide the two numbers of the line `throughput`; 1.2k means 1200",
        ),
        Question(
            text="What is the efficiency, in percent: speedup over workers?",
            right=_efficiency_answer,
            hint="divide your speedup by 4, times 100; 100 % would be a speedup of 4",
        ),
        Question(
            text="How many updates of the parameters did `four` make?",
            right=lambda facts: exactly(facts.run("four").updates),
            hint="the workers average their gradients first: one update per step of the run",
        ),
    ),
    moral="Four workers used the same samples in less time, and made a quarter of the updates.",
)


SLOW = {1: 3.0}
WORKERS = tuple((str(worker), f"worker-{worker}") for worker in range(4))


def _straggler_check(facts: Facts) -> list[Finding]:
    four = facts.run("four")
    slow = facts.run("slow")
    others = [seconds for worker, seconds in slow.own_s.items() if worker not in SLOW]
    times = slow.own_s[1] / max(others) if 1 in slow.own_s and others else 0.0
    made = Finding(
        times > 1,
        f"worker-1 took {times:.1f} times as long for a gradient as the slowest of the others",
        "the load of the machine hid the straggler: run the commands of parts 1 to 3 again with --pace 100ms",
    )
    return [
        is_expected_run("slow", slow, mode="ssgd", workers=4, slow=SLOW, like=four),
        is_finished(slow),
        made,
    ]


def _slowdown_answer(facts: Facts) -> Answer:
    return quotient(facts.run("four").samples_per_s, facts.run("slow").samples_per_s, asked=0.1)


def _least_waiting(facts: Facts) -> Answer:
    wait_s = facts.run("slow").wait_s
    return ChoiceAnswer(key=str(min(wait_s, key=lambda worker: wait_s[worker])))


def _waiting_share(facts: Facts) -> Answer:
    phases = facts.run("slow").phases_s
    return rounded(100 * phases["wait"] / sum(phases.values()), 1.0)


STRAGGLER = Part(
    number=3,
    title="One slow worker",
    minutes=9,
    page="part-3.md",
    see="The run of part 2 with a straggler: one of the four workers is three times as slow.",
    prediction=Prediction(
        text="One of four workers is three times as slow. How many times as long does the whole run take?",
        seen=lambda facts: (
            f"{facts.run('four').samples_per_s / facts.run('slow').samples_per_s:.2f} times as long"
        ),
    ),
    runs=("four", "slow"),
    new_runs=("slow",),
    check=_straggler_check,
    questions=(
        Question(
            text="What is the throughput of `four` over that of `slow` (one decimal)?",
            right=_slowdown_answer,
            hint="divide the line `throughput` of `four` by that of `slow`",
        ),
        Question(
            text="Which worker waited least?",
            right=_least_waiting,
            hint="the column `wait` of `paceline status runs/slow`",
            options=WORKERS,
        ),
        Question(
            text="Which share of all workers' time was waiting, in percent?",
            right=_waiting_share,
            hint="`wait` in the line `workers' time` of the run's summary",
        ),
    ),
    moral="A worker that waits for the slowest at every step runs at the pace of the slowest.",
)


WHICH = (("a", "apart: asgd, no waiting"), ("b", "bound: ssp, at most two steps ahead"))


def _mean(facts: Facts, name: str) -> float:
    mean = facts.run(name).stale_mean
    if mean is None:
        raise NotSeenError(
            f"{facts.run(name).folder} has no staleness", "its mode must be asgd or ssp, as on the page"
        )
    return mean


def _staleness_check(facts: Facts) -> list[Finding]:
    slow = facts.run("slow")
    apart = facts.run("apart")
    bound = facts.run("bound")
    expected = [
        is_expected_run("apart", apart, mode="asgd", workers=4, slow=SLOW, like=slow),
        is_expected_run("bound", bound, mode="ssp", workers=4, slow=SLOW, like=slow),
    ]
    if not all(finding.ok for finding in expected):
        return expected
    limit = bound.bound
    assert limit is not None, "ssp without a bound is asgd, which was excluded above"
    assert bound.gap_max is not None, "every server measures gaps"
    kept = Finding(
        bound.gap_max <= limit,
        f"applied gradients of {bound.folder} were at most {bound.gap_max} steps ahead; the bound is {limit}",
        "this is a bug in paceline: please report it, and keep the folder",
    )
    measured = Finding(
        _mean(facts, "apart") > 0,
        f"mean staleness of {apart.folder}: {apart.stale_mean:.2f}",
    )
    return [*expected, is_finished(apart), is_finished(bound), measured, kept]


def _gain(facts: Facts) -> Answer:
    return quotient(facts.run("apart").samples_per_s, facts.run("slow").samples_per_s, asked=0.1)


def _closer(facts: Facts) -> Answer:
    slow = facts.run("slow").samples_per_s
    away = {key: abs(facts.run(name).samples_per_s - slow) for key, name in (("a", "apart"), ("b", "bound"))}
    return ChoiceAnswer(key=min(away, key=lambda key: away[key]))


STALENESS = Part(
    number=4,
    title="Staleness: asynchronous updates",
    minutes=10,
    page="part-4.md",
    see="The same straggler under asynchronous SGD: without a bound, then with a bound on a worker's lead.",
    prediction=Prediction(
        text="Four workers without waiting. How many updates by other workers happen, on average, between "
        "reading the parameters and applying the gradient?",
        seen=lambda facts: f"{_mean(facts, 'apart'):.2f} on average",
    ),
    runs=("slow", "apart", "bound"),
    new_runs=("apart", "bound"),
    check=_staleness_check,
    questions=(
        Question(
            text="What was the mean staleness of `apart` (one decimal)?",
            right=lambda facts: rounded(_mean(facts, "apart"), 0.1),
            hint="the line `staleness` of its summary; also in `paceline learn check 4`",
        ),
        Question(
            text="What is the throughput of `apart` over that of `slow` (one decimal)?",
            right=_gain,
            hint="divide the line `throughput` of `apart` by that of `slow`",
        ),
        Question(
            text="Which of the two runs has nearly the throughput of `slow`?",
            right=_closer,
            hint="compare the lines `throughput` of `slow`, `apart` and `bound`",
            options=WHICH,
        ),
    ),
    moral="Not waiting costs staleness; a bound on it does not help against a persistent straggler.",
)


MODES = (("a", "single"), ("b", "ssgd"), ("c", "ssp"), ("d", "asgd"))
WORDS = (
    ("a", "significantly faster"),
    ("b", "significantly slower"),
    ("c", "no significant difference"),
    ("d", "inconclusive"),
)


def _cell(facts: Facts, mode: str) -> Cell:
    cells = facts.comparison().cells.values()
    cell = next((cell for cell in cells if cell.mode == mode), None)
    if cell is None:
        raise NotSeenError(f"the comparison has no mode {mode}", "compare the modes of the page")
    return cell


def _report_check(facts: Facts) -> list[Finding]:
    compared = facts.compared
    comparison = facts.comparison()
    assert compared is not None, "there is a comparison"
    missing = [mode for _, mode in MODES if mode not in {cell.mode for cell in comparison.cells.values()}]
    runs = sum(len(cell.runs) for cell in comparison.cells.values())
    return [
        Finding(not missing, f"compared: {', '.join(comparison.cells)}", f"add --modes {','.join(missing)}"),
        Finding(
            comparison.repeats >= MIN_ROUNDS,
            f"{comparison.repeats} repeats, {runs} runs",
            f"intervals need --repeats {MIN_ROUNDS} or more (the same command adds the missing runs)",
        ),
        Finding(compared.has_page, "comparison/report.html exists", "paceline report comparison"),
    ]


def _recommended(facts: Facts) -> Answer:
    comparison = facts.comparison()
    mode = comparison.cells[comparison.verdict.use].mode
    return ChoiceAnswer(key=next(key for key, name in MODES if name == mode))


def _words(facts: Facts) -> Answer:
    described = _cell(facts, "asgd").speed_in_words
    return ChoiceAnswer(key=next((key for key, words in WORDS if words in described), "d"))


REPORT = Part(
    number=8,
    title="Read the report",
    minutes=9,
    page="part-8.md",
    see="The strategies of parts 1 to 4 in one comparison: repeated runs, confidence intervals, a verdict.",
    prediction=Prediction(
        text="One of four workers is three times as slow. Which mode will the report recommend?",
        options=MODES,
        seen=lambda facts: facts.comparison().verdict.use,
    ),
    runs=(),
    new_runs=(),
    check=_report_check,
    questions=(
        Question(
            text="Which mode does the report recommend?",
            right=_recommended,
            hint="the first sentence of comparison/report.html; `verdict` in comparison/comparison.json",
            options=MODES,
        ),
        Question(
            text="What is the efficiency of asgd with four workers, in percent?",
            right=lambda facts: rounded(100 * _cell(facts, "asgd").efficiency.value, 1.0),
            hint="the table of the report, column efficiency",
        ),
        Question(
            text="How does the report describe the speed of asgd, compared with one worker?",
            right=_words,
            hint="the text next to its speedup; it depends on the interval, not on the value alone",
            options=WORDS,
        ),
    ),
    is_compared=True,
    moral="Trust a speedup whose interval excludes 1, over several repeats, on equal work.",
)

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
        "give --pace as the page does: without it your machine decides what you see",
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
    see="One process trains, and its folder remembers every step.",
    prediction=Prediction(
        text="A step uses 32 samples and lasts 25 ms. How many samples a second will the run report?",
        seen=lambda facts: f"{facts.run('alone').samples_per_s:.0f} samples/s",
    ),
    runs=("alone",),
    new_runs=("alone",),
    check=_check,
    questions=(
        Question(
            text="How many samples did the run see in all?",
            right=lambda facts: exactly(facts.run("alone").samples),
            hint="steps times samples of a step; `samples` in runs/alone/result.json says it too",
        ),
        Question(
            text="Which phase took most of the worker's time?",
            right=_most,
            hint="read the line `workers' time` of the run's last words",
            options=WHERE,
        ),
    ),
    moral="A number means nothing without the baseline that it is compared with.",
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
    see="Four processes average their gradients at every step, and do the work of part 1 together.",
    prediction=Prediction(
        text="How many times as many samples a second as one worker will four workers make?",
        seen=lambda facts: f"{_speedup(facts):.2f} times",
    ),
    runs=("alone", "four"),
    new_runs=("four",),
    check=_four_workers_check,
    questions=(
        Question(
            text="What is the speedup: throughput of `four` over throughput of `alone` (one digit after "
            "the point)?",
            right=_speedup_answer,
            hint="divide the two numbers of the line `throughput`; 1.2k means 1200",
        ),
        Question(
            text="What is the efficiency, in percent: speedup over workers?",
            right=_efficiency_answer,
            hint="100 % would be a speedup of 4; take your speedup, divide by 4, times 100",
        ),
        Question(
            text="How often did the parameters change in `four`?",
            right=lambda facts: exactly(facts.run("four").updates),
            hint="four workers average before they change anything: one change for each step of the run",
        ),
    ),
    moral="Four workers did the same samples in less time, and changed the model a quarter as often.",
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
        f"worker-1 needed {times:.1f} times as long for a gradient as the slowest of the others",
        "the machine was busier than the straggler was slow: type the command again with a longer --pace, "
        "and those of parts 1 and 2 too",
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
    see="The run of part 2 again, with one of the four workers three times as slow.",
    prediction=Prediction(
        text="One of four workers needs three times as long. How many times as long does the whole run take?",
        seen=lambda facts: (
            f"{facts.run('four').samples_per_s / facts.run('slow').samples_per_s:.2f} times as long"
        ),
    ),
    runs=("four", "slow"),
    new_runs=("slow",),
    check=_straggler_check,
    questions=(
        Question(
            text="What is the throughput of `four` over that of `slow` (one digit after the point)?",
            right=_slowdown_answer,
            hint="divide the two lines `throughput`: `four` above, `slow` below",
        ),
        Question(
            text="Which worker waited least?",
            right=_least_waiting,
            hint="the column `wait` of `paceline status runs/slow`",
            options=WORKERS,
        ),
        Question(
            text="How much of all workers' time was waiting, in percent?",
            right=_waiting_share,
            hint="the line `workers' time` of the run's last words",
        ),
    ),
    moral="Whoever must meet the slowest at every step works at the slowest one's pace.",
)


WHICH = (("a", "apart: asgd, nobody waits"), ("b", "bound: ssp, two steps ahead at most"))


def _mean(facts: Facts, name: str) -> float:
    mean = facts.run(name).stale_mean
    if mean is None:
        raise NotSeenError(
            f"{facts.run(name).folder} measured no staleness", "its mode must be asgd or ssp: see the page"
        )
    return mean


def _staleness_check(facts: Facts) -> list[Finding]:
    slow = facts.run("slow")
    apart = facts.run("apart")
    bound = facts.run("bound")
    found = [
        is_expected_run("apart", apart, mode="asgd", workers=4, slow=SLOW, like=slow),
        is_expected_run("bound", bound, mode="ssp", workers=4, slow=SLOW, like=slow),
    ]
    if not all(one.ok for one in found):
        return found
    limit = bound.bound
    assert limit is not None, "ssp without a bound is asgd, which was asked for above"
    assert bound.gap_max is not None, "every server measures gaps"
    kept = Finding(
        bound.gap_max <= limit,
        f"no gradient that counted in {bound.folder} was more than {limit} steps ahead: {bound.gap_max}",
        "this is a fault of paceline itself; keep the folder",
    )
    measured = Finding(
        _mean(facts, "apart") > 0,
        f"gradients of {apart.folder} were stale: {apart.stale_mean:.2f} on average",
    )
    return [*found, is_finished(apart), is_finished(bound), measured, kept]


def _gain(facts: Facts) -> Answer:
    return quotient(facts.run("apart").samples_per_s, facts.run("slow").samples_per_s, asked=0.1)


def _closer(facts: Facts) -> Answer:
    slow = facts.run("slow").samples_per_s
    away = {key: abs(facts.run(name).samples_per_s - slow) for key, name in (("a", "apart"), ("b", "bound"))}
    return ChoiceAnswer(key=min(away, key=lambda key: away[key]))


STALENESS = Part(
    number=4,
    title="Staleness: nobody waits",
    minutes=10,
    page="part-4.md",
    see="The same slow worker, in a mode where nobody waits, and in one where nobody may run far ahead.",
    prediction=Prediction(
        text="Four workers, nobody waits. How many updates by others happen, on average, between reading the "
        "parameters and applying a gradient?",
        seen=lambda facts: f"{_mean(facts, 'apart'):.2f} on average",
    ),
    runs=("slow", "apart", "bound"),
    new_runs=("apart", "bound"),
    check=_staleness_check,
    questions=(
        Question(
            text="How stale were the gradients of `apart` on average (one digit after the point)?",
            right=lambda facts: rounded(_mean(facts, "apart"), 0.1),
            hint="the line `staleness` of its last words; `paceline learn check 4` shows it too",
        ),
        Question(
            text="What is the throughput of `apart` over that of `slow` (one digit after the point)?",
            right=_gain,
            hint="divide the two lines `throughput`: `apart` above, `slow` below",
        ),
        Question(
            text="Which of the two is as slow as `slow`, or nearly?",
            right=_closer,
            hint="compare the three lines `throughput`; who may run ahead only so far must stop in the end",
            options=WHICH,
        ),
    ),
    moral="Not waiting is paid for in staleness; a bound on it does not help against a lasting straggler.",
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
    found = next((cell for cell in cells if cell.mode == mode), None)
    if found is None:
        raise NotSeenError(f"the comparison has no mode {mode}", "compare the modes that the page names")
    return found


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
            f"intervals need --repeats {MIN_ROUNDS} or more (the same command adds the missing ones)",
        ),
        Finding(compared.has_page, "comparison/report.html is there", "paceline report comparison"),
    ]


def _recommended(facts: Facts) -> Answer:
    comparison = facts.comparison()
    mode = comparison.cells[comparison.verdict.use].mode
    return ChoiceAnswer(key=next(key for key, name in MODES if name == mode))


def _words(facts: Facts) -> Answer:
    said = _cell(facts, "asgd").speed_in_words
    return ChoiceAnswer(key=next((key for key, words in WORDS if words in said), "d"))


REPORT = Part(
    number=8,
    title="Read the report",
    minutes=9,
    page="part-8.md",
    see="All that you saw, measured side by side, several times, with intervals and a verdict.",
    prediction=Prediction(
        text="With one worker three times as slow: which mode will the report recommend?",
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
            text="Compared with one worker, asgd was …?",
            right=_words,
            hint="the words beside its speedup; they follow from the interval, not from the number",
            options=WORDS,
        ),
    ),
    is_compared=True,
    moral="Believe an interval that leaves out 1, over several repeats, on equal work; nothing less.",
)

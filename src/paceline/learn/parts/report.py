"""Part 8: claims of a report, and how far its intervals support them."""

from paceline.learn.facts import Facts, NotSeenError
from paceline.learn.judge import rounded
from paceline.learn.lesson import Answer, Finding, One, Part, Prediction, Question
from paceline.report.comparison import Cell
from paceline.report.statistics import LEAST_ROUNDS

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


def _check(facts: Facts) -> list[Finding]:
    compared, comparison = facts.compared, facts.comparison()
    assert compared is not None, "there is a comparison"
    missing = [mode for _, mode in MODES if mode not in {cell.mode for cell in comparison.cells.values()}]
    runs = sum(len(cell.runs) for cell in comparison.cells.values())
    return [
        Finding(not missing, f"compared: {', '.join(comparison.cells)}", f"add --modes {','.join(missing)}"),
        Finding(
            comparison.repeats >= LEAST_ROUNDS,
            f"{comparison.repeats} repeats, {runs} runs",
            f"intervals need --repeats {LEAST_ROUNDS} or more (the same command adds the missing ones)",
        ),
        Finding(compared.has_page, "comparison/report.html is there", "paceline report comparison"),
    ]


def _recommended(facts: Facts) -> Answer:
    comparison = facts.comparison()
    mode = comparison.cells[comparison.verdict.use].mode
    return One(key=next(key for key, name in MODES if name == mode))


def _words(facts: Facts) -> Answer:
    said = _cell(facts, "asgd").speed_in_words
    return One(key=next((key for key, words in WORDS if words in said), "d"))


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
    check=_check,
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

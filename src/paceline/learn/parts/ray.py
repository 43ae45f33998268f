"""Parts of the track with Ray about benchmarks: Keras and Ray Train, the dashboard, more workers.

Parts about runs and failures: ray_failures.py.

The evidence is that of the learner's folders: runs by their event logs, benchmarks by what each side
measured. It is the same for a cluster of `paceline ray up` and for Minikube, whose results are copied out.
"""

from paceline.comparison.benchmark.schema import Benchmark, Row
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
    half_shown,
    rounded,
)
from paceline.learn.lesson import NumberAnswer as Number


def _side(benchmark: Benchmark) -> Row:
    """Ray Train's."""
    return benchmark.rows[benchmark.subject]


def _benchmark_of(facts: Facts, name: str) -> Finding:
    row = _side(facts.benchmark(name))
    return Finding(
        row.framework == "keras" and row.cluster is not None,
        f"{name}: Keras alone, and with {row.workers} workers of Ray Train",
        "run `paceline benchmark keras` as on the page, not another benchmark",
    )


def _has_workers(facts: Facts, name: str, least: int, most: int) -> Finding:
    row = _side(facts.benchmark(name))
    return Finding(
        least <= row.workers <= most,
        f"{name} has {row.workers} workers",
        f"run the command with --out {name} exactly as on the page",
    )


def _steady_rates(facts: Facts, name: str) -> tuple[float, float]:
    """Steady speedup and efficiency, in percent."""
    row = _side(facts.benchmark(name))
    if row.speedup_steady is None or row.efficiency_steady is None:
        raise NotSeenError(f"{name} has no steady rate", "train for two epochs or more, as on the page")
    return row.speedup_steady.value, 100 * row.efficiency_steady.value


def _two_check(facts: Facts) -> list[Finding]:
    benchmark = facts.benchmark("two")
    _steady_rates(facts, "two")
    return [
        _benchmark_of(facts, "two"),
        _has_workers(facts, "two", 2, 2),
        Finding(
            benchmark.global_batch is not None,
            f"the global batch is {benchmark.global_batch} on both sides",
            "run the command as on the page",
        ),
    ]


TWO_WORKERS = Part(
    number=12,
    title="Baseline against two workers",
    minutes=12,
    page="ray-2.md",
    see="The same network by `model.fit` in one process, and by Ray Train with two workers.",
    prediction=Prediction(
        text="The same epochs by one process and by two workers. What total speedup is reported?",
        seen=lambda facts: f"{_side(facts.benchmark('two')).speedup_total.value:.2f}",
    ),
    runs=(),
    new_runs=(),
    benchmarks=("two",),
    new_benchmarks=("two",),
    check=_two_check,
    questions=(
        Question(
            text="What is the speedup of the total time?",
            right=lambda facts: _shown(_side(facts.benchmark("two")).speedup_total.value),
            hint="the row `Ray Train`, under `total time`; also `speedup` in two/comparison.json",
        ),
        Question(
            text="What is its efficiency, in percent?",
            right=lambda facts: rounded(100 * _side(facts.benchmark("two")).efficiency_total.value, 1),
            hint="speedup divided by workers, times 100; next to the speedup in the table",
        ),
        Question(
            text="How many images does each of the two workers use in a step?",
            right=lambda facts: exactly(_side(facts.benchmark("two")).worker_batch),
            hint="the global batch is shared; `batch_size_per_worker` in two/ray_results_2workers.json",
        ),
    ),
    moral="Speedup is baseline time over distributed time, for the same model, images and global batch.",
)


def _shown(value: float) -> Answer:
    return Number(value=value, give=max(half_shown(value), 0.005))


def _start_s(facts: Facts) -> float:
    start_s = _side(facts.benchmark("two")).first_step_s
    if start_s is None:
        raise NotSeenError("the start of Ray Train was not measured", "run the benchmark of part 12 again")
    return start_s


def _rate_answer(facts: Facts) -> Answer:
    return _shown(_steady_rates(facts, "two")[0])


APPROACHES = (
    ("a", "the speedup of the total time"),
    ("b", "the speedup of the steady rate"),
    ("c", "the number of workers"),
)

STARTUP = Part(
    number=13,
    title="Where the time went",
    minutes=8,
    page="ray-3.md",
    see="The benchmark of part 12, divided into start and training.",
    prediction=Prediction(
        text="What share of Ray Train's total time was over before its first step began, in percent?",
        seen=lambda facts: f"{100 * _start_s(facts) / _side(facts.benchmark('two')).total_s:.0f} %",
    ),
    runs=(),
    new_runs=(),
    benchmarks=("two",),
    check=lambda facts: [_benchmark_of(facts, "two")],
    questions=(
        Question(
            text="How many seconds did Ray Train need until its first step?",
            right=lambda facts: Number(value=_start_s(facts), give=max(0.5, half_shown(_start_s(facts)))),
            hint="the column `start`; also `seconds_to_first_step` in two/ray_results_2workers.json",
        ),
        Question(
            text="What is the speedup of the steady rate?",
            right=_rate_answer,
            hint="the row `Ray Train` of the table, under `steady rate`",
        ),
        Question(
            text="Which value does the speedup of a run of a hundred times as many epochs approach?",
            right=lambda _: ChoiceAnswer(key="b"),
            hint="the start happens once; what does a long run consist of?",
            options=APPROACHES,
        ),
    ),
    moral="Startup is paid once: a short run measures the start, a long one the steady rate.",
)


def _cluster_answer(facts: Facts, field: str) -> Answer:
    cluster = _side(facts.benchmark("watched")).cluster
    if cluster is None:
        raise NotSeenError("watched has no facts of the cluster", "run the command of the page again")
    return exactly(cluster.nodes if field == "nodes" else cluster.cpus)


def _nodes_seen(facts: Facts) -> str:
    cluster = _side(facts.benchmark("watched")).cluster
    return "" if cluster is None else f"{cluster.nodes} nodes"


def _watched_check(facts: Facts) -> list[Finding]:
    cluster = _side(facts.benchmark("watched")).cluster
    nodes = 0 if cluster is None else cluster.nodes
    several = Finding(
        nodes > 1,
        f"the cluster had {nodes} node{'s' if nodes != 1 else ''}",
        "start it as on the page of part 11, and set RAY_ADDRESS: a Ray of the command's own has one node",
    )
    return [_benchmark_of(facts, "watched"), several]


RAY_DASHBOARD = Part(
    number=14,
    title="Read the Ray dashboard",
    minutes=10,
    page="ray-4.md",
    see="Nodes, actors and logs of a training run, in the dashboard of Ray.",
    prediction=Prediction(
        text="How many nodes does the page Cluster of the dashboard list?",
        seen=_nodes_seen,
    ),
    runs=(),
    new_runs=(),
    benchmarks=("watched",),
    new_benchmarks=("watched",),
    check=_watched_check,
    questions=(
        Question(
            text="How many nodes are alive?",
            right=lambda facts: _cluster_answer(facts, "nodes"),
            hint="the page Cluster; also `ray_cluster_nodes` in watched/ray_results_2workers.json",
        ),
        Question(
            text="How many CPUs do they offer to Ray in total?",
            right=lambda facts: _cluster_answer(facts, "cpus"),
            hint="`Resource status` on the page Overview, or `ray status`: used CPUs / all CPUs",
        ),
        Question(
            text="How many worker actors does Ray Train have?",
            right=lambda facts: exactly(_side(facts.benchmark("watched")).workers),
            hint="the page Actors, state ALIVE: the class name contains RayTrainWorker",
        ),
    ),
    moral="A cluster offers logical CPUs; whether a core is behind each is another question.",
)

HIGHER_LOWER = (("a", "higher"), ("b", "lower"), ("c", "the same, rounded to whole percent"))


def _efficiency_change(facts: Facts) -> Answer:
    two = round(_steady_rates(facts, "two")[1])
    more = round(_steady_rates(facts, "more")[1])
    if more == two:
        return ChoiceAnswer(key="c")
    return ChoiceAnswer(key="a" if more > two else "b")


def _more_check(facts: Facts) -> list[Finding]:
    two = facts.benchmark("two")
    more = facts.benchmark("more")
    like = Finding(
        _side(two).epochs == _side(more).epochs and two.task == more.task,
        f"two and more: {two.task}, {_side(more).epochs:g} epochs",
        "use the epochs and the data of part 12",
    )
    return [_benchmark_of(facts, "more"), _has_workers(facts, "more", 3, 16), like]


MORE_WORKERS = Part(
    number=15,
    title="Scale the workers",
    minutes=12,
    page="ray-5.md",
    see="A larger cluster, and the benchmark of part 12 with more workers.",
    prediction=Prediction(
        text="What efficiency of the steady rate do more workers reach, in percent?",
        seen=lambda facts: f"{_steady_rates(facts, 'more')[1]:.0f} %",
    ),
    runs=(),
    new_runs=(),
    benchmarks=("two", "more"),
    new_benchmarks=("more",),
    check=_more_check,
    questions=(
        Question(
            text="What is the speedup of the steady rate now?",
            right=lambda facts: _shown(_steady_rates(facts, "more")[0]),
            hint="the row `Ray Train` of the table, under `steady rate`",
        ),
        Question(
            text="How many images does each worker use in a step now?",
            right=lambda facts: exactly(_side(facts.benchmark("more")).worker_batch),
            hint="the global batch divided by the workers",
        ),
        Question(
            text="Compared with `two`, is the efficiency of the steady rate higher or lower?",
            right=_efficiency_change,
            hint="the last two columns of both tables, before the accuracy",
            options=HIGHER_LOWER,
        ),
    ),
    moral="More workers share the same batch: each has less to compute, and as much to send.",
)

VERDICTS = (
    ("a", "yes, already for this number of epochs"),
    ("b", "not for this one, but for enough epochs"),
    ("c", "no, for no number of epochs"),
)


def _verdict(facts: Facts) -> str:
    row = _side(facts.benchmark("two"))
    if row.speedup_total.value > 1:
        return "a"
    return "b" if _steady_rates(facts, "two")[0] > 1 else "c"


def _fastest(facts: Facts) -> Answer:
    rows = [row for name in ("two", "more") for row in facts.benchmark(name).rows.values()]
    return exactly(min(rows, key=lambda row: row.total_s).workers)


def _points(facts: Facts) -> Answer:
    difference = _side(facts.benchmark("two")).quality_difference
    if difference is None:
        raise NotSeenError("two has no accuracies to compare", "run the benchmark of part 12 again")
    return rounded(100 * difference.value, 0.1)


DECISION = Part(
    number=18,
    title="Decide",
    minutes=8,
    page="ray-8.md",
    see="The reports of both benchmarks, and the decision whether to distribute.",
    prediction=Prediction(
        text="By your benchmark `two`: are two workers faster than one process?",
        options=VERDICTS,
        seen=lambda facts: dict(VERDICTS)[_verdict(facts)],
    ),
    runs=(),
    new_runs=(),
    benchmarks=("two", "more"),
    check=lambda facts: [_benchmark_of(facts, "two"), _benchmark_of(facts, "more")],
    questions=(
        Question(
            text="Are two workers faster than one process?",
            right=lambda facts: ChoiceAnswer(key=_verdict(facts)),
            hint="compare both speedups of `two` with 1: the total is this run, the steady rate a long one",
            options=VERDICTS,
        ),
        Question(
            text="With how many workers was the total time shortest, in both benchmarks (1 is `model.fit`)?",
            right=_fastest,
            hint="the column `total` of both tables",
        ),
        Question(
            text="By how many points did the test accuracy of Ray Train differ in `two` (one decimal)?",
            right=_points,
            hint="the last column of the table; negative if Ray Train was worse",
        ),
    ),
    moral="Distribute if the steady speedup pays for the start, and the accuracy is the same.",
)

"""Parts of the track with Ray about runs and failures: actors, a killed worker, a killed node.

Parts about benchmarks: ray.py.
"""

from paceline.core.errors import ExitCode
from paceline.learn.lesson import (
    Answer,
    Facts,
    Finding,
    NotSeenError,
    Part,
    Prediction,
    Question,
    RunFacts,
    exactly,
    is_expected_run,
    is_finished,
    quotient,
)

RAY = "ray"


def _on_ray(run: RunFacts) -> Finding:
    return Finding(
        run.launcher == RAY,
        f"{run.folder} was started by launcher {run.launcher}",
        "run its command again with --launcher ray, as on the page",
    )


def _first_check(facts: Facts) -> list[Finding]:
    plain = facts.run("plain")
    ray = facts.run("on-ray")
    return [
        is_expected_run("plain", plain, mode="ssgd", workers=2),
        is_expected_run("on-ray", ray, mode="ssgd", workers=2, like=plain),
        is_finished(ray),
        _on_ray(ray),
    ]


FIRST_RAY_RUN = Part(
    number=11,
    title="A first run on a Ray cluster",
    minutes=10,
    page="ray-1.md",
    see="The same run twice: with processes of this machine, and with Ray actors on two nodes.",
    prediction=Prediction(
        text="Steps last at least 25 ms in both runs. What is the throughput on Ray over that without?",
        seen=lambda facts: f"{facts.run('on-ray').samples_per_s / facts.run('plain').samples_per_s:.2f}",
    ),
    runs=("plain", "on-ray"),
    new_runs=("plain", "on-ray"),
    check=_first_check,
    questions=(
        Question(
            text="What is that quotient in your runs (one decimal)?",
            right=lambda facts: quotient(
                facts.run("on-ray").samples_per_s, facts.run("plain").samples_per_s, asked=0.1
            ),
            hint="divide the two numbers of the line `throughput`; 1.2k means 1200",
        ),
        Question(
            text="How many samples did the run on Ray use in total?",
            right=lambda facts: exactly(facts.run("on-ray").samples),
            hint="`samples` in runs/on-ray/result.json; both workers together",
        ),
    ),
    moral="Ray starts the workers; what they compute, and how they synchronize, is the same as without it.",
)


AFTER_KILL = (
    ("a", "the command ends with an error"),
    ("b", "the other worker finishes the training alone"),
    ("c", "a new worker takes its place, and the training goes on"),
)


def _broken_check(facts: Facts) -> list[Finding]:
    broken = facts.benchmarks.get("broken")
    if broken is None:
        raise NotSeenError("there is no benchmark in broken", "run the command of the page with --out broken")
    failed = Finding(
        broken.result is None,
        "broken has no comparison: the benchmark did not reach its end",
        "it finished before the kill: run it again, and kill a worker while it trains",
    )
    died = Finding(
        bool(broken.dead_worker),
        f"the log of Ray Train: {broken.dead_worker or 'no worker has died'}",
        "kill the process of a worker (kill -9), not the command, while Ray Train is in an epoch",
    )
    return [failed, died]


KILLED_TRAIN_WORKER = Part(
    number=16,
    title="Kill a worker of Ray Train",
    minutes=10,
    page="ray-6.md",
    see="`kill -9` of one of two workers of Ray Train, in the middle of an epoch.",
    prediction=Prediction(
        text="One of two workers of Ray Train is killed. What happens?",
        options=AFTER_KILL,
        seen=lambda facts: "a" if all(finding.ok for finding in _broken_check(facts)) else "see below",
    ),
    runs=(),
    new_runs=(),
    benchmarks=("broken",),
    new_benchmarks=("broken",),
    check=_broken_check,
    questions=(
        Question(
            text="What was the exit code of the command?",
            right=lambda _: exactly(int(ExitCode.TRAINING_FAILED)),
            hint="echo $? right after the command; the page prints it",
        ),
        Question(
            text="How many of the two sides, `model.fit` and Ray Train, have a result in broken/runs?",
            right=lambda facts: exactly(len(facts.benchmarks["broken"].traces if facts.benchmarks else ())),
            hint="a measured.json that is more than {} is a result",
        ),
    ),
    moral="An all-reduce needs all workers: without a retry, one lost worker ends the training.",
)


def _survivor_check(facts: Facts) -> list[Finding]:
    run = facts.run("survivor")
    lost = Finding(
        bool(run.lost),
        f"lost in {run.folder}: {', '.join(run.lost) or 'no worker'}",
        "run it again, and kill a raylet while it trains, as on the page",
    )
    continued = Finding(
        len(run.generations) > 1,
        f"generations of {run.folder}: {', '.join(map(str, run.generations))}",
        "wait until the run reports a step after the loss before you stop it",
    )
    proofs = [
        Finding(ok, what, "this is a bug in paceline: please report it, and keep the folder")
        for ok, what in run.proofs
    ]
    expected = is_expected_run("survivor", run, mode="ssgd", workers=2, is_elastic=True)
    return [expected, _on_ray(run), lost, continued, *proofs]


def _last_generation(facts: Facts) -> Answer:
    generations = facts.run("survivor").generations
    if not generations:
        raise NotSeenError("the run has no generations", "start it with --elastic, as on the page")
    return exactly(max(generations))


def _lost_worker(facts: Facts) -> Answer:
    lost = facts.run("survivor").lost
    if not lost:
        raise NotSeenError("no worker was lost", "kill a raylet while the run trains")
    return exactly(int(lost[0].rpartition("-")[2]))


KILLED_RAYLET = Part(
    number=17,
    title="Kill a node under an elastic run",
    minutes=10,
    page="ray-7.md",
    see="An elastic run on two nodes, and the raylet of one of them killed with all its processes.",
    prediction=Prediction(
        text="A node of the cluster is killed in the middle of a step. How many steps are lost or repeated?",
        seen=lambda facts: (
            "0: every step was committed exactly once"
            if facts.run("survivor").proofs and all(ok for ok, _ in facts.run("survivor").proofs)
            else "see the findings below"
        ),
    ),
    runs=("survivor",),
    new_runs=("survivor",),
    check=_survivor_check,
    questions=(
        Question(
            text="Which worker was lost first (its number)?",
            right=_lost_worker,
            hint="the line `was lost` of `paceline events runs/survivor`",
        ),
        Question(
            text="What is the number of the last generation of the run?",
            right=_last_generation,
            hint="the lines `enters generation` of `paceline events runs/survivor`",
        ),
    ),
    moral="With work that belongs to the run, the loss of a node costs seconds; without, it costs the run.",
)

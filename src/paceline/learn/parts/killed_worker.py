"""Part 5: what happens to a run when a worker is killed?"""

from paceline.learn.asked_for import is_as_asked
from paceline.learn.facts import Facts, NotSeenError
from paceline.learn.judge import exactly
from paceline.learn.lesson import Answer, Finding, One, Part, Prediction, Question

FROM = (
    ("a", "from a checkpoint on disk"),
    ("b", "from the memory of a worker that lived"),
    ("c", "from nobody: it began anew"),
)


def _check(facts: Facts) -> list[Finding]:
    run = facts.run("struck")
    killed = Finding(
        bool(run.lost),
        f"killed in {run.folder}: {', '.join(run.lost) or 'nobody'}",
        "run it again, and `paceline workers kill runs/… worker-1` while it trains",
    )
    rose = Finding(
        len(run.generations) > 1,
        f"generations of {run.folder}: {', '.join(map(str, run.generations))}",
        "wait until `paceline workers list` shows a new generation before you stop the run",
    )
    proofs = [
        Finding(ok, what, "this is a fault of paceline itself; keep the folder") for ok, what in run.proofs
    ]
    return [is_as_asked("struck", run, mode="ssgd", workers=3, is_elastic=True), killed, rose, *proofs]


def _last(facts: Facts) -> Answer:
    generations = facts.run("struck").generations
    if not generations:
        raise NotSeenError("that run has no generations", "begin it with --elastic, as on the page")
    return exactly(max(generations))


def _source(facts: Facts) -> Answer:
    run = facts.run("struck")
    if len(run.generations) < 2:
        raise NotSeenError("no worker was replaced yet", "kill one while the run trains, and wait a moment")
    return One(key="b" if run.healed_from else "a")


KILLED_WORKER = Part(
    number=5,
    title="Kill a worker",
    minutes=10,
    page="part-5.md",
    see="kill -9 of a worker while it trains: the others go on, and a new one takes its place.",
    prediction=Prediction(
        text="A worker is killed in the middle of a step. How many steps of the run are lost?",
        seen=lambda facts: (
            "none: every step counts exactly once"
            if facts.run("struck").proofs and all(ok for ok, _ in facts.run("struck").proofs)
            else "see below"
        ),
    ),
    runs=("struck",),
    new_runs=("struck",),
    check=_check,
    questions=(
        Question(
            text="Which generation was the last of the run?",
            right=_last,
            hint="the lines `enters generation` of `paceline events runs/struck`",
        ),
        Question(
            text="Where did the new worker get the parameters from?",
            right=_source,
            hint="is a checkpoint read before the new generation? docs/concepts/generations.md, point 3",
            options=FROM,
        ),
    ),
    moral="Work belongs to the run and not to a worker: who dies takes nothing along.",
)

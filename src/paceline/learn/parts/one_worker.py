"""Part 1: what does one worker do, and what does its record say?"""

from paceline.learn.asked_for import is_as_asked, is_finished
from paceline.learn.facts import Facts
from paceline.learn.judge import exactly
from paceline.learn.lesson import Answer, Finding, One, Part, Prediction, Question

WHERE = (("a", "data"), ("b", "forward and backward"), ("c", "delay"), ("d", "wait"))
_PHASES = {"a": ("data",), "b": ("forward", "backward"), "c": ("delay",), "d": ("wait",)}


def _check(facts: Facts) -> list[Finding]:
    alone = facts.run("alone")
    paced = Finding(
        alone.pace_s > 0,
        f"a step of {alone.folder} lasts at least {alone.pace_s * 1000:g} ms",
        "give --pace as the page does: without it your machine decides what you see",
    )
    return [is_as_asked("alone", alone, mode="single", workers=1), is_finished(alone), paced]


def _most(facts: Facts) -> Answer:
    phases = facts.run("alone").phases_s
    return One(key=max(_PHASES, key=lambda key: sum(phases.get(name, 0.0) for name in _PHASES[key])))


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

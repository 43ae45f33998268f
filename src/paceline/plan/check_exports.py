"""Can a run's record go where the user says? Packages are looked for, nothing is asked."""

from collections import Counter

from paceline.config.facts import Facts
from paceline.config.train_config import TrainConfig
from paceline.errors import Problem


def check_exports(config: TrainConfig, facts: Facts) -> list[Problem]:
    targets, where = config.export or (), config.origin("export")
    problems = []
    for target in targets:
        missing = [name for name in target.packages if name not in facts.packages]
        if missing:
            what = f"export {target.kind} needs {' and '.join(missing)}, which cannot be imported here"
            problems.append(Problem(what, target.install, where))
    for kind, count in Counter(target.kind for target in targets).items():
        if count > 1:
            hint = f"keep one of them, and export the finished run again: paceline export RUN --to {kind}=…"
            problems.append(Problem(f"export {kind} is said {count} times", hint, where))
    if targets and config.events == "off":
        hint = "leave events out, or leave export out"
        problems.append(Problem("export reads the event log, but events is off", hint, where))
    if config.alerts is not None and config.events == "off":
        hint = "leave events out, or leave alerts out"
        what = "alerts are found in the event log, but events is off"
        problems.append(Problem(what, hint, config.origin("alerts")))
    return problems

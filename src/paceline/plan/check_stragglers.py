"""What is wrong with the straggler rules, given how many workers there are?"""

import math

from paceline.config.stragglers import rule_text
from paceline.config.train_config import TrainConfig
from paceline.errors import Problem
from paceline.sync.stragglers import StragglerRule


def check_stragglers(config: TrainConfig, num_workers: int | None) -> list[Problem]:
    """`num_workers` is None while it is itself wrong; then no rule can name a worker too many."""
    return [
        Problem(f"straggler {rule_text(rule)}: {what}", hint, config.origin(f"straggler[{number}]"))
        for number, rule in enumerate(config.straggler or ())
        for what, hint in _faults(rule, num_workers)
    ]


def _faults(rule: StragglerRule, num_workers: int | None) -> list[tuple[str, str]]:
    faults = []
    if rule.worker is not None and num_workers is not None and not 0 <= rule.worker < num_workers:
        hint = f"workers are numbered 0 to {num_workers - 1}"
        faults.append((f"there is no worker {rule.worker} among {num_workers}", hint))
    if not (math.isfinite(rule.factor) and rule.factor >= 1):
        hint = "write how many times as long a step takes, such as factor=3"
        faults.append((f"factor is {rule.factor:g}, but it must be 1 or more", hint))
    if not (math.isfinite(rule.delay_s) and rule.delay_s >= 0):
        hint = "write for example delay=50ms"
        faults.append((f"delay is {rule.delay_s:g}s, but it must be 0 or more", hint))
    if not 0 < rule.probability <= 1:
        hint = "write a probability such as p=0.05"
        faults.append((f"p is {rule.probability:g}, but it must be more than 0 and at most 1", hint))
    if rule.first_step < 0:
        faults.append((f"from is {rule.first_step}, but steps start at 0", "write for example from=100"))
    if rule.ramp < 0:
        hint = "write in how many steps the factor is reached, such as over=100"
        faults.append((f"over is {rule.ramp}, but it must be 0 or more", hint))
    if rule.end_step is not None and rule.end_step <= rule.first_step:
        hint = "`to` is not included, so it must be more than `from`"
        faults.append((f"it ends at step {rule.end_step} before it begins", hint))
    return faults

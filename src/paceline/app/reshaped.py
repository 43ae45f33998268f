"""Can a run go on with another number of workers? Only where its checkpoints are parts of one state.

Which samples a step takes is decided by the global batch alone, so that stays
what it was, and is dealt out anew: two workers with 32 samples each become one
with 64. So no sample is lost or seen twice, and the mean of a step is the same
but for the order of summing.
"""

from dataclasses import replace

from paceline.errors import ConfigError, Problem
from paceline.plan.catalog import MODES, is_split
from paceline.plan.plan import Plan


def with_workers(plan: Plan, num_workers: int) -> Plan:
    """The same work for so many workers."""
    if num_workers == plan.num_workers:
        return plan
    if not is_split(plan.mode):
        can = ", ".join(mode.name for mode in MODES.values() if mode.is_split)
        what = f"num_workers cannot be changed when a run of mode {plan.mode} is resumed"
        hint = f"leave it out, or start a new run; only checkpoints of {can} fit any number of workers"
        raise ConfigError([Problem(what, hint)])
    size, rest = divmod(plan.global_batch, num_workers)
    if rest:
        fitting = [str(n) for n in range(1, plan.global_batch + 1) if plan.global_batch % n == 0]
        what = f"{num_workers} workers cannot share the {plan.global_batch} samples of a step equally"
        raise ConfigError([Problem(what, f"set num_workers to one of {', '.join(fitting[:12])}")])
    return replace(plan, num_workers=num_workers, batch_sizes=(size,) * num_workers)

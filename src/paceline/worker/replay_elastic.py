"""Does an elastic run, whoever died in it, lead to what its shards lead to undisturbed?

Its shards are run again as that many workers who all live. Every recorded loss
is compared, also of attempts that were given up: whoever computed a shard, and
however often, must have found the same.
"""

import dataclasses

from paceline.events.read import History
from paceline.plan.plan import Plan
from paceline.worker.participant import state_hash
from paceline.worker.verdict import Verdict, same_bits
from paceline.worker.virtual import run_virtual


def replay_elastic(plan: Plan, history: History, recorded: str) -> Verdict:
    rows = [(rank, row) for rank, found in history.steps.items() for row in found]
    steps = 1 + max(row.position // plan.num_workers for _, row in rows if row.synced)
    again = run_virtual(dataclasses.replace(plan, steps=steps, elastic=None))
    for error in again.errors:
        if error is not None:
            raise error
    final = state_hash(again.final_state())
    parted = None
    for rank, row in sorted(rows, key=lambda found: found[1].position):
        step, shard = divmod(row.position, plan.num_workers)
        loss = again.history.steps[shard][step].loss if step < steps else row.loss
        if not same_bits(loss, row.loss):
            place = f"worker-{rank}, shard {shard} of step {step}"
            parted = f"{place}: the loss is {loss!r} where {row.loss!r} was recorded"
            break
    if parted is None and final != recorded:
        parted = f"every loss agrees, but the final parameters hash to {final[:16]}…, not {recorded[:16]}…"
    return Verdict(parted is None, steps, steps * plan.num_workers, final, parted)

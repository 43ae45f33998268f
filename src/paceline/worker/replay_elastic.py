"""Does an elastic run, whoever died in it, lead to what its shards lead to undisturbed?

Its shards are run again as that many workers who all live. Every recorded loss
is compared, also of attempts that were given up: whoever computed a shard, and
however often, must have found the same. In mode adaptive they are run in the
ways that were decided on; what somebody made in a way that the others never
took up is left out. Clients of fedavg are at different steps, so there it is
rounds that are counted.
"""

import dataclasses
from functools import partial

from paceline.events.read import History
from paceline.events.ways import Ways, ways_of
from paceline.plan.plan import Plan
from paceline.plan.rounds import draws_of
from paceline.strategies.adaptive import Adaptive
from paceline.sync.setting import Terms
from paceline.worker.participant import state_hash
from paceline.worker.verdict import Verdict, same_bits
from paceline.worker.virtual import VirtualRun, run_virtual


def replay_elastic(plan: Plan, history: History, recorded: str) -> Verdict:
    rows = [(rank, row) for rank, found in history.steps.items() for row in found]
    steps = 1 + max(row.position // plan.num_workers for _, row in rows if row.synced)
    ways = ways_of(history.plain, steps) if plan.mode == "adaptive" else None
    if plan.mode == "fedavg":
        again = _in_rounds(plan, 1 + max(row.version for _, row in rows if row.synced))
    elif ways is not None:
        again = _as_decided(plan, steps, ways)
    else:
        again = run_virtual(dataclasses.replace(plan, steps=steps, elastic=None))
    for error in again.errors:
        if error is not None:
            raise error
    final = state_hash(again.final_state())
    parted = None
    for rank, row in sorted(rows, key=lambda found: found[1].position):
        step, shard = divmod(row.position, plan.num_workers)
        made = again.history.steps.get(shard, [])
        loss = made[step].loss if step < len(made) else row.loss
        is_counted = ways is None or ways.counts(f"worker-{rank}", row.start_ns, step)
        if is_counted and not same_bits(loss, row.loss):
            place = f"worker-{rank}, shard {shard} of step {step}"
            parted = f"{place}: the loss is {loss!r} where {row.loss!r} was recorded"
            break
    if parted is None and final != recorded:
        parted = f"every loss agrees, but the final parameters hash to {final[:16]}…, not {recorded[:16]}…"
    gradients = sum(map(len, again.history.steps.values()))
    return Verdict(parted is None, steps, gradients, final, parted)


def _in_rounds(plan: Plan, rounds: int) -> VirtualRun:
    """Stopped after so many rounds, by a client of the last one."""
    draws, last = draws_of(plan), 0
    while draws.number < rounds:
        last = min(draws.current())
        draws.finish()
    plain = dataclasses.replace(plan, elastic=None)
    return run_virtual(plain, stops_after={last: draws.done[last]} if draws.current() else {})


def _as_decided(plan: Plan, steps: int, ways: Ways) -> VirtualRun:
    """A worker for each shard, and all as planned, but for the way."""
    options = plan.strategy
    terms = Terms(allowed=options.adaptive, batch_sizes=plan.batch_sizes, period=options.sync_every)
    settings = {step: terms.as_planned(way) for step, way in ways.switches}
    plain = dataclasses.replace(plan, steps=steps, elastic=None)
    return run_virtual(plain, kind=partial(Adaptive, recorded=settings))

"""Z: what an asynchronous server does about stale gradients."""

import torch
from torch import Tensor

from paceline.laws.lab import RANDOM_SPEEDS, Lab, final_hash, ledger, ledger_places, run, sequential
from paceline.laws.law import Finding, Law, bit_equal
from paceline.laws.witness import Witness
from paceline.plan.plan import AsgdVariant, Plan, StrategyOptions
from paceline.sync.samples import SampleStream, slice_of
from paceline.worker.participant import state_hash
from paceline.worker.virtual import VirtualRun
from paceline.worker.wiring import build_task

AWARE = StrategyOptions(asgd=AsgdVariant.STALENESS_AWARE)
VARIANTS = (
    AWARE,
    StrategyOptions(asgd=AsgdVariant.DC, dc_lambda=0.5),
    StrategyOptions(asgd=AsgdVariant.RINGMASTER, max_staleness=2),
)


def z1_a_fresh_gradient_is_left_alone(lab: Lab) -> Finding:
    """With one worker nothing is ever stale, so every variant is the optimizer itself."""
    plan = lab.plan(num_workers=1, lr_scale=1.0)
    reference = state_hash(sequential(plan, torch.optim.SGD, lr=0.1))
    hashes = {o.asgd.value: final_hash(lab.plan(num_workers=1, lr_scale=1.0, strategy=o)) for o in VARIANTS}
    other = [name for name, found in hashes.items() if found != reference]
    return Finding(not other, f"{len(hashes)} variants against torch.optim.SGD; different: {other}")


def z2_the_rate_is_divided_by_the_staleness(lab: Lab) -> Finding:
    """Both in the log and in the parameters, where the ledger shows what each gradient did."""
    plan = ledger(lab.plan(num_workers=4, steps=10, stragglers=RANDOM_SPEEDS, strategy=AWARE))
    done = run(plan)
    entries, places = done.final_state()["entries"], ledger_places(plan)
    at = {share_position(rank, step, plan): place for (rank, step), place in places.items()}
    applied = [row for row in done.history.server if row.op == "apply"]
    in_log = [r for r in applied if r.rate_factor != 1.0 / max(1, r.staleness)]
    in_state = [r for r in applied if float(entries[at[r.position]]) != -plan.lr_scale * r.rate_factor]
    most = max(row.staleness for row in applied)
    ok = not in_log and not in_state and most > 1
    return Finding(
        ok, f"{len(applied)} updates up to staleness {most}; wrong: {len(in_log)}, {len(in_state)}"
    )


def share_position(rank: int, step: int, plan: Plan) -> int:
    return step * plan.num_workers + rank


def z3_no_compensation_is_asgd(lab: Lab) -> Finding:
    none = StrategyOptions(asgd=AsgdVariant.DC, dc_lambda=0.0)
    one = final_hash(lab.plan(steps=20, stragglers=RANDOM_SPEEDS, strategy=none))
    return bit_equal(
        one, final_hash(lab.plan(steps=20, stragglers=RANDOM_SPEEDS)), of="λ = 0, and plain asgd"
    )


def z3_the_delay_of_each_worker_is_compensated(lab: Lab) -> Finding:
    """Against the formula, followed by hand along the log; one copy for all workers must not do."""
    strength = 0.8
    options = StrategyOptions(asgd=AsgdVariant.DC, dc_lambda=strength)
    plan = lab.plan(num_workers=3, steps=15, stragglers=RANDOM_SPEEDS, strategy=options)
    done = run(plan)
    ours = _flat(done.final_state())
    right = float((ours - _by_hand(plan, done, strength, copies_per_worker=True)).abs().max())
    shared = float((ours - _by_hand(plan, done, strength, copies_per_worker=False)).abs().max())
    ok = right <= 1e-12 and shared > 1e-9
    return Finding(ok, f"differs by {right:.1e} from the formula, by {shared:.1e} with one copy for all")


def _by_hand(plan: Plan, done: VirtualRun, strength: float, *, copies_per_worker: bool) -> Tensor:
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model, samples = task.model(), task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    now = _flat(model.state_dict())
    read: dict[int, Tensor] = {}
    gradients: dict[int, Tensor] = {}
    for row in done.history.server:
        who = row.rank if copies_per_worker else 0
        if row.op == "read":
            read[who] = now.clone()
            torch.nn.utils.vector_to_parameters(now, model.parameters())
            model.zero_grad()
            position = divmod(row.position, plan.num_workers)
            batch = samples.batch(stream.take(*slice_of(position[1], position[0], plan.batch_sizes)))
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            gradients[row.rank] = torch.cat(
                [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
            )
        elif row.op == "apply":
            g = gradients[row.rank]
            now = now - 0.1 * plan.lr_scale * (g + strength * g * g * (now - read[who]))
    return now


def _flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


def z4_ringmaster_applies_nothing_too_stale(lab: Lab) -> Finding:
    options = StrategyOptions(asgd=AsgdVariant.RINGMASTER, max_staleness=3)
    plan = ledger(lab.plan(num_workers=4, steps=20, stragglers=RANDOM_SPEEDS, strategy=options))
    witness = Witness.of(4)
    done = run(plan, wrap_store=witness.wrap)
    rows = done.history.server
    applied = [r for r in rows if r.op == "apply"]
    discarded = [r for r in rows if r.op == "discard"]
    pushed = sum(act.what == "push" for act in witness.acts)
    most = max(r.staleness for r in applied)
    once = bool((done.final_state()["entries"] == -plan.lr_scale).all())
    ok = most < 3 and pushed == len(applied) + len(discarded) and bool(discarded) and once
    return Finding(
        ok, f"{pushed} gradients = {len(applied)} applied (staleness ≤ {most}) + {len(discarded)} discarded"
    )


def z4_without_a_limit_ringmaster_is_asgd(lab: Lab) -> Finding:
    options = StrategyOptions(asgd=AsgdVariant.RINGMASTER, max_staleness=None)
    one = final_hash(lab.plan(steps=20, stragglers=RANDOM_SPEEDS, strategy=options))
    return bit_equal(
        one, final_hash(lab.plan(steps=20, stragglers=RANDOM_SPEEDS)), of="no limit, and plain asgd"
    )


ONLY = ("asgd",)
LAWS = (
    Law(
        "Z1",
        "a gradient that is not stale is applied as it is, by every variant",
        ONLY,
        z1_a_fresh_gradient_is_left_alone,
    ),
    Law(
        "Z2",
        "staleness-aware: the applied rate is η/max(1,τ), in the log and in effect",
        ONLY,
        z2_the_rate_is_divided_by_the_staleness,
    ),
    Law(
        "Z3",
        "dc: the compensation uses what this very worker read",
        ONLY,
        z3_the_delay_of_each_worker_is_compensated,
    ),
    Law("Z3.zero", "dc: with λ = 0 it is asgd, bit by bit", ONLY, z3_no_compensation_is_asgd),
    Law(
        "Z4",
        "ringmaster: nothing as stale as the limit is applied, and nothing is lost",
        ONLY,
        z4_ringmaster_applies_nothing_too_stale,
    ),
    Law(
        "Z4.unlimited",
        "ringmaster: without a limit it is asgd, bit by bit",
        ONLY,
        z4_without_a_limit_ringmaster_is_asgd,
    ),
)

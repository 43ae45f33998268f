"""A: asynchronous SGD, no worker waits. E: elastic averaging, workers tied to a centre by springs."""

import torch
from torch import Tensor

from paceline.laws.lab import (
    PACE_S,
    RANDOM_SPEEDS,
    Finding,
    Lab,
    Law,
    bit_equal,
    final_hash,
    ledger,
    ledger_places,
    run,
    sequential,
)
from paceline.laws.witness import Witness
from paceline.plan.plan import AsgdVariant, OptimizerChoice, Plan, StrategyOptions
from paceline.strategies.port import ServerSide
from paceline.strategies.server_updates import Exchange
from paceline.sync.assignment import WorkUnit
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.samples import SampleStream, slice_of
from paceline.transport.ports import Slots
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay
from paceline.worker.wiring import build_task, set_up_torch, strategy_class

SEEDS = range(6)


def a1_one_worker_is_sequential_adam(lab: Lab) -> Finding:
    plan = lab.plan(num_workers=1, lr_scale=1.0, optimizer=OptimizerChoice(name="adam", lr=0.01))
    return bit_equal(
        final_hash(plan), state_hash(sequential(plan, torch.optim.Adam, lr=0.01)), of="asgd, Adam"
    )


def a2_staleness_sums_to_t_times_n_minus_1(lab: Lab) -> Finding:
    """After T updates, with all N at work: applied staleness + ages in flight = T·(N-1), exactly."""
    checked = 0
    wrong = []
    for seed in SEEDS:
        plan = lab.plan(num_workers=4, steps=25, stragglers=RANDOM_SPEEDS, seed=seed)
        version = 0
        applied = 0
        read = dict[int, int]()
        for row in run(plan).history.server:
            if row.op == "apply":
                version = row.version
                applied = applied + row.staleness
                del read[row.rank]
            if row.op != "read":
                continue
            read[row.rank] = row.version
            if len(read) == 4:
                checked += 1
                in_flight = sum(version - v for v in read.values())
                wrong += [(seed, version)] if applied + in_flight != version * 3 else []
    return Finding(not wrong, f"{checked} moments of {len(SEEDS)} runs; wrong: {wrong[:3]}")


def a3_the_log_has_no_gap(lab: Lab) -> Finding:
    """Staleness is never negative, a worker's versions never go back, every version is made once."""
    witness = Witness.of(3)
    history = run(lab.plan(steps=30, stragglers=RANDOM_SPEEDS), wrap_store=witness.wrap).history
    applied = [r for r in history.server if r.op == "apply"]
    versions = [r.version for r in applied]
    read = {
        rank: [a.version for a in witness.acts if a.what == "pull" and a.rank == rank] for rank in range(3)
    }
    ok = (
        versions == list(range(1, len(applied) + 1))
        and all(r.staleness >= 0 and r.staleness == r.version - 1 - r.read_version for r in applied)
        and all(versions_read == sorted(versions_read) for versions_read in read.values())
        and len(applied) == sum(a.what == "push" for a in witness.acts)
    )
    return Finding(ok, f"{len(applied)} updates, versions {versions[0]} … {versions[-1]}")


def a4_the_log_replays_to_the_same_bits(lab: Lab) -> Finding:
    for seed in SEEDS:
        plan = lab.plan(steps=20, stragglers=RANDOM_SPEEDS, seed=seed)
        done = run(plan)
        verdict = replay(plan, done.history, state_hash(done.final_state()))
        if not verdict.is_equal:
            return Finding(False, f"seed {seed}: {verdict.parted}")
    return Finding(True, f"{len(SEEDS)} schedules replayed, bitwise equal")


def a5_the_rate_is_the_sum_of_the_workers_rates(lab: Lab) -> Finding:
    factors = (1.0, 1.5, 2.0, 3.0)
    rules = tuple(StragglerRule(worker=w, factor=f) for w, f in enumerate(factors))
    history = run(lab.plan(num_workers=4, steps=400, stragglers=rules)).history
    end_ns = history.steps[0][-1].start_ns  # while the fastest still works, all do
    done = sum(1 for r in history.server if r.op == "apply" and r.at_ns <= end_ns)
    rate = done / (end_ns / 1e9)
    limit = sum(1 / (PACE_S * f) for f in factors)
    return Finding(0.98 <= rate / limit <= 1.001, f"{rate / limit:.4f} of Σ 1/tᵢ")


def a6_equal_speeds_give_staleness_n_minus_1(lab: Lab) -> Finding:
    history = run(lab.plan(num_workers=4, steps=10)).history
    staleness = [r.staleness for r in history.server if r.op == "apply"]
    return Finding(
        staleness[:3] == [0, 1, 2] and set(staleness[3:]) == {3}, f"staleness {staleness[:6]} … for N = 4"
    )


ONLY = ("asgd",)
LAWS = (
    Law(
        "A1",
        "with one worker asgd is the sequential optimizer, also for Adam",
        ONLY,
        a1_one_worker_is_sequential_adam,
    ),
    Law(
        "A2",
        "applied staleness plus ages in flight is exactly T·(N-1)",
        ONLY,
        a2_staleness_sums_to_t_times_n_minus_1,
    ),
    Law(
        "A3",
        "versions have no gap, staleness is never negative, pushes equal updates",
        ONLY,
        a3_the_log_has_no_gap,
    ),
    Law(
        "A4",
        "replaying the log in sequence reproduces the parameters bitwise",
        ONLY,
        a4_the_log_replays_to_the_same_bits,
    ),
    Law(
        "A5",
        "the rate is at least 0.98 of, and never above, the sum of the workers' rates",
        ONLY,
        a5_the_rate_is_the_sum_of_the_workers_rates,
    ),
    Law(
        "A6",
        "equal speeds in turn give every update staleness N-1",
        ONLY,
        a6_equal_speeds_give_staleness_n_minus_1,
    ),
)


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
    other = [name for name, digest in hashes.items() if digest != reference]
    return Finding(not other, f"{len(hashes)} variants against torch.optim.SGD; different: {other}")


def z2_the_rate_is_divided_by_the_staleness(lab: Lab) -> Finding:
    """Both in the log and in the parameters, where the ledger shows what each gradient did."""
    plan = ledger(lab.plan(num_workers=4, steps=10, stragglers=RANDOM_SPEEDS, strategy=AWARE))
    done = run(plan)
    entries = done.final_state()["entries"]
    places = ledger_places(plan)
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
    compensated = final_hash(lab.plan(steps=20, stragglers=RANDOM_SPEEDS, strategy=none))
    return bit_equal(
        compensated, final_hash(lab.plan(steps=20, stragglers=RANDOM_SPEEDS)), of="λ = 0, and plain asgd"
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
    return Finding(ok, f"differs by {right:.1e} from the formula, by {shared:.1e} with one shared copy")


def _by_hand(plan: Plan, done: VirtualRun, strength: float, *, copies_per_worker: bool) -> Tensor:
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model = task.model()
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    now = _flat(model.state_dict())
    read: dict[int, Tensor] = {}
    gradients: dict[int, Tensor] = {}
    for row in done.history.server:
        copy = row.rank if copies_per_worker else 0
        if row.op == "read":
            read[copy] = now.clone()
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
            now = now - 0.1 * plan.lr_scale * (g + strength * g * g * (now - read[copy]))
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
    own_hash = final_hash(lab.plan(steps=20, stragglers=RANDOM_SPEEDS, strategy=options))
    return bit_equal(
        own_hash, final_hash(lab.plan(steps=20, stragglers=RANDOM_SPEEDS)), of="no limit, and plain asgd"
    )


STALENESS_ONLY = ("asgd",)
STALENESS_LAWS = (
    Law(
        "Z1",
        "a gradient that is not stale is applied unchanged by every variant",
        STALENESS_ONLY,
        z1_a_fresh_gradient_is_left_alone,
    ),
    Law(
        "Z2",
        "staleness-aware: the applied rate is η/max(1,τ), in the log and in effect",
        STALENESS_ONLY,
        z2_the_rate_is_divided_by_the_staleness,
    ),
    Law(
        "Z3",
        "dc: the compensation uses the parameters that this worker read",
        STALENESS_ONLY,
        z3_the_delay_of_each_worker_is_compensated,
    ),
    Law("Z3.zero", "dc: with λ = 0 it is bitwise equal to asgd", STALENESS_ONLY, z3_no_compensation_is_asgd),
    Law(
        "Z4",
        "ringmaster: no gradient at or above the limit is applied, and none is lost",
        STALENESS_ONLY,
        z4_ringmaster_applies_nothing_too_stale,
    ),
    Law(
        "Z4.unlimited",
        "ringmaster: without a limit it is bitwise equal to asgd",
        STALENESS_ONLY,
        z4_without_a_limit_ringmaster_is_asgd,
    ),
)


PULLED = StrategyOptions(sync_every=4, elasticity=0.9)
INDEPENDENT = StrategyOptions(sync_every=4, elasticity=0.0)


def e1_an_exchange_loses_nothing(lab: Lab) -> Finding:
    """Over a whole run: what the workers gave away, pushed minus received, is how far the centre moved."""
    plan = lab.plan(steps=14, strategy=PULLED, stragglers=RANDOM_SPEEDS)
    witness = Witness.of(plan.num_workers)
    slots_of = dict[int, Slots]()
    pushed = dict[int, Tensor]()
    given = torch.zeros(0, dtype=torch.float64)
    first = torch.zeros(0, dtype=torch.float64)

    def on_pull(rank: int, slots: Slots) -> None:
        nonlocal given, first
        if not slots_of:
            first = slots.parameters.clone()
            given = torch.zeros_like(slots.parameters)
        slots_of[rank] = slots
        if rank in pushed:
            given += pushed.pop(rank) - slots.parameters

    def on_push(rank: int) -> None:
        pushed[rank] = slots_of[rank].gradients.clone()

    witness.on_pull = on_pull
    witness.on_push = on_push
    done = run(plan, wrap_store=witness.wrap)
    for rank, vector in pushed.items():  # after its last exchange a worker is let go and pulls no more
        given += vector - slots_of[rank].parameters
    assert done.server is not None, "easgd has a centre"
    end = done.server.arena.layout.tail_start
    away = done.server.arena.state - first - given
    moved = float((done.server.arena.state - first)[:end].abs().max())
    worst = float(away[:end].abs().max())
    exchanges = sum(row.op == "apply" for row in done.history.server)
    return Finding(
        worst <= 1e-12 and moved > 1e-6,
        f"{exchanges} exchanges; the centre moved by {moved:.2g}, all but {worst:.1e} from workers",
    )


def e2_without_elasticity_everyone_is_alone(lab: Lab) -> Finding:
    momentum = OptimizerChoice(name="momentum", lr=0.1)
    plan = lab.plan(steps=14, strategy=INDEPENDENT, stragglers=RANDOM_SPEEDS, optimizer=momentum)
    done = run(plan)
    shares = {rank: [row.position for row in rows] for rank, rows in done.history.steps.items()}
    different = [
        rank
        for rank, positions in shares.items()
        if state_hash(_alone(plan, positions)) != state_hash(done.replicas[rank].arena.named_state())
    ]
    centre_moved = state_hash(done.final_state()) != state_hash(_alone(plan, []))
    once = sorted(p for own in shares.values() for p in own) == list(range(plan.total_gradients))
    counts = {rank: len(positions) for rank, positions in sorted(shares.items())}
    return Finding(
        not different and not centre_moved and once,
        f"steps by worker {counts}; every work unit once: {once}; different from torch alone: {different}; "
        f"the centre moved: {centre_moved}",
    )


def e3_consensus_is_a_fixed_point(lab: Lab) -> Finding:
    """In a run in which no worker learns, and in one exchange."""
    at_rest = lab.plan(strategy=PULLED, optimizer=OptimizerChoice(name="sgd", lr=0.0))
    done = run(at_rest)
    hashes = bit_equal(
        state_hash(done.final_state()), state_hash(_alone(at_rest, [])), of="centre before, after"
    )
    centre = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    after, answer = _swapped(_exchange(lab), centre, centre)
    still = torch.equal(after, centre) and torch.equal(answer, centre)
    return Finding(hashes.ok and still, f"{hashes.measured}; an exchange of equals changes nothing: {still}")


def e4_the_sum_does_not_depend_on_the_order(lab: Lab) -> Finding:
    """The centre itself does: the later worker meets a centre that has moved."""
    rng = torch.Generator().manual_seed(5)
    centre, first, other = (torch.randn(64, dtype=torch.float64, generator=rng) for _ in range(3))
    exchange = _exchange(lab)
    between, one_first = _swapped(exchange, centre, first)
    end, other_second = _swapped(exchange, between, other)
    between, other_first = _swapped(exchange, centre, other)
    turned, one_second = _swapped(exchange, between, first)
    before = centre + first + other
    sums = [end + one_first + other_second, turned + other_first + one_second]
    worst = max(float((total - before).abs().max()) for total in sums)
    difference = float((end - turned).abs().max())
    return Finding(
        worst <= 1e-12 and difference > 1e-3,
        f"the total changes by at most {worst:.1e}; the centres of the two orders differ by {difference:.2g}",
    )


def _exchange(lab: Lab) -> Exchange:
    plan = lab.plan(strategy=PULLED)
    side: type[ServerSide] = strategy_class(plan.mode)
    exchange = side.exchange(plan)
    assert exchange is not None, "elastic averaging is an exchange"
    return exchange


def _swapped(exchange: Exchange, centre: Tensor, pushed: Tensor) -> tuple[Tensor, Tensor]:
    """(the centre, the worker) after the exchange; the vectors given stay as they are."""
    moved = centre.clone()
    answer = torch.empty_like(centre)
    exchange.swap(moved, pushed.clone(), answer)
    return moved, answer


def _alone(plan: Plan, positions: list[int]) -> dict[str, Tensor]:
    """What torch computes on these shares, one after another, in a single worker."""
    set_up_torch(plan)
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model = task.model()
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for position in positions:
        share = WorkUnit.at(position, plan.num_workers)
        batch = samples.batch(stream.take(*slice_of(share.rank, share.step, plan.batch_sizes)))
        optimizer.zero_grad()
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


EASGD = ("easgd",)
AVERAGING_LAWS: tuple[Law, ...] = (
    Law(
        "E1",
        "an exchange conserves the sum of worker and centre",
        EASGD,
        e1_an_exchange_loses_nothing,
    ),
    Law(
        "E2",
        "without elasticity every worker trains alone on its work units, bitwise; each is done once",
        EASGD,
        e2_without_elasticity_everyone_is_alone,
    ),
    Law("E3", "consensus is a fixed point", EASGD, e3_consensus_is_a_fixed_point),
    Law(
        "E4",
        "the sum over workers and centre does not depend on the order of exchanges; the centre does",
        EASGD,
        e4_the_sum_does_not_depend_on_the_order,
    ),
)

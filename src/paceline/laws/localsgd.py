"""L: LocalSGD, a few steps alone, then an average."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from paceline.laws.lab import (
    LEDGER,
    PASSING,
    QUADRATIC,
    RANDOM_SPEEDS,
    Finding,
    Lab,
    Law,
    distance,
    run,
    within,
)
from paceline.plan.plan import OptimizerChoice, Plan, StrategyOptions
from paceline.sync.assignment import WorkUnit
from paceline.sync.averaging import Rounds, clients_per_round
from paceline.sync.samples import SampleStream, slice_of
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica
from paceline.worker.wiring import build_task, set_up_torch

EVERY_STEP = StrategyOptions(sync_every=1)
LINEAR = {"sgd": 0.0, "momentum": 0.0, "nesterov": 0.0, "l2": 0.01}


def l1_period_one_is_synchronous(name: str) -> Callable[[Lab], Finding]:
    def check(lab: Lab) -> Finding:
        choice = OptimizerChoice(name="momentum" if name == "l2" else name, lr=0.1, weight_decay=LINEAR[name])
        local = run(lab.plan(optimizer=choice, strategy=EVERY_STEP))
        return within(distance(local, run(lab.other("ssgd", optimizer=choice))), 1e-12)

    return check


def l2_but_not_for_adam(lab: Lab) -> Finding:
    choice = OptimizerChoice(name="adam", lr=0.05)
    difference = distance(
        run(lab.plan(optimizer=choice, strategy=EVERY_STEP)), run(lab.other("ssgd", optimizer=choice))
    )
    return Finding(difference > 1e-6, f"they differ by {difference:.2e}, as expected")


def l2_nor_with_clipping(lab: Lab) -> Finding:
    difference = distance(
        run(lab.plan(clip_norm=0.3, strategy=EVERY_STEP)), run(lab.other("ssgd", clip_norm=0.3))
    )
    return Finding(difference > 1e-6, f"they differ by {difference:.2e}, as expected")


def l3_averaged_moments_are_equal(lab: Lab) -> Finding:
    options = StrategyOptions(sync_every=4, average_optimizer_state=True)
    done = run(lab.plan(optimizer=OptimizerChoice(name="adam", lr=0.05), strategy=options))
    hashes = {state_hash(replica.optimizer_state()) for replica in done.replicas.values()}
    return Finding(len(hashes) == 1, f"{len(hashes)} different Adam states over {len(done.replicas)} workers")


def l4_syncs_come_when_they_should(lab: Lab) -> Finding:
    plan = lab.plan(steps=10, strategy=StrategyOptions(sync_every=4))
    seen: dict[int, set[str]] = {}

    def note(_: int, steps: int, replica: Replica) -> None:
        seen.setdefault(steps, set()).add(state_hash(replica.arena.named_state()))

    run(plan, after_step=note)
    equal_after = sorted(steps for steps, hashes in seen.items() if len(hashes) == 1)
    return Finding(equal_after == [4, 8, 10], f"with H = 4 and 10 steps all are equal after {equal_after}")


def l4_post_local_syncs_every_step_at_first(lab: Lab) -> Finding:
    plan = lab.plan(steps=10, strategy=StrategyOptions(sync_every=4, post_local_after=3))
    synced = [r.step + 1 for r in run(plan).history.steps[0] if r.synced]
    return Finding(synced == [1, 2, 3, 7, 10], f"with t' = 3 and H = 4 it syncs after {synced}")


def l5_bytes_are_one_hth(lab: Lab) -> Finding:
    rarely = run(lab.plan(steps=12, strategy=StrategyOptions(sync_every=4)))
    always = run(lab.plan(steps=12, strategy=EVERY_STEP))
    ssgd = run(lab.other("ssgd", steps=12))
    sent, own, theirs = (
        sum(r.bytes_out for rows in done.history.steps.values() for r in rows)
        for done in (rarely, always, ssgd)
    )
    # ssgd's vector is padded, and carries buffers and the stop request; sending less is allowed.
    return Finding(sent * 4 == own <= theirs, f"{sent} bytes · 4 against {own} with H = 1, {theirs} of ssgd")


def l6_equal_hessians_do_not_drift(lab: Lab) -> Finding:
    plan = lab.plan(task=QUADRATIC, steps=21, strategy=StrategyOptions(sync_every=7))
    return within(distance(run(plan), run(lab.other("ssgd", task=QUADRATIC, steps=21))), 1e-12)


def l7_storage_is_never_rebound(lab: Lab) -> Finding:
    """Shared memory, flat views and captured graphs hold addresses; averaging must write to them."""
    moved: dict[str, int] = {}

    def note(_: int, steps: int, replica: Replica) -> None:
        arena = replica.arena
        for piece, parameter in zip(arena.layout.parameters, arena.module.parameters(), strict=True):
            if parameter.data_ptr() != piece.view(arena.state).data_ptr():
                moved.setdefault(piece.name, steps)

    run(lab.plan(), after_step=note)
    return Finding(not moved, f"parameters with new storage (name: since step): {moved}")


def l9_without_a_gradient_it_is_averaged_too(lab: Lab) -> Finding:
    """A part of the model that got its last gradient a step before the averaging must not be left out."""
    seen: dict[int, dict[str, set[str]]] = {}

    def note(_: int, steps: int, replica: Replica) -> None:
        for name, tensor in replica.arena.named_state().items():
            seen.setdefault(steps, {}).setdefault(name, set()).add(state_hash({name: tensor}))

    done = run(lab.plan(task=PASSING), after_step=note)
    synced = [r.step + 1 for r in done.history.steps[0] if r.synced]
    left_out = {name for step in synced for name, hashes in seen[step].items() if len(hashes) > 1}
    return Finding(
        bool(synced) and not left_out, f"averaged after steps {synced}; not averaged: {sorted(left_out)}"
    )


ONLY = ("localsgd",)
AVERAGING = ("localsgd", "diloco")
LAWS = (
    *(
        Law(
            f"L1.{name}",
            f"averaging after every step is synchronous SGD, for {name}",
            ONLY,
            l1_period_one_is_synchronous(name),
        )
        for name in LINEAR
    ),
    Law("L2.adam", "averaging after every step is not synchronous SGD for Adam", ONLY, l2_but_not_for_adam),
    Law(
        "L2.clipping",
        "averaging after every step is not synchronous SGD with clipping",
        ONLY,
        l2_nor_with_clipping,
    ),
    Law(
        "L3",
        "with the optimizer's state averaged, Adam's moments agree after a sync",
        ONLY,
        l3_averaged_moments_are_equal,
    ),
    Law(
        "L4",
        "replicas are equal after steps H, 2H, … and the last, and only then",
        ONLY,
        l4_syncs_come_when_they_should,
    ),
    Law(
        "L4.post",
        "post-local SGD syncs every step at first, then every H",
        ONLY,
        l4_post_local_syncs_every_step_at_first,
    ),
    Law("L5", "bytes are those of synchronous SGD divided by H", ONLY, l5_bytes_are_one_hth),
    Law(
        "L6",
        "with equal Hessians the average is exactly synchronous SGD's, for any H",
        ONLY,
        l6_equal_hessians_do_not_drift,
    ),
    Law(
        "L7",
        "averaging writes into the existing storage and never rebinds it",
        AVERAGING,
        l7_storage_is_never_rebound,
        per_mode=True,
    ),
    Law(
        "L9",
        "parameters without a gradient in the averaging step are averaged too",
        AVERAGING,
        l9_without_a_gradient_it_is_averaged_too,
        per_mode=True,
    ),
)


ALL_DRAWN = StrategyOptions(sync_every=4)
HALF = StrategyOptions(sync_every=3, clients_per_round=0.5)
ONE_OF_FOUR = StrategyOptions(sync_every=3, clients_per_round=0.25)


def f1_with_full_participation_it_is_localsgd(lab: Lab) -> Finding:
    changes = {"steps": 14, "batch_sizes": (4, 4, 4), "task_options": {"batch_norm": True}}
    federated = run(lab.plan(strategy=ALL_DRAWN, stragglers=RANDOM_SPEEDS, **changes))
    theirs = run(lab.other("localsgd", strategy=ALL_DRAWN, **changes))
    same = state_hash(federated.final_state()) == state_hash(theirs.final_state())
    weighted = {**changes, "batch_sizes": (2, 3, 7)}
    federated = run(lab.plan(strategy=ALL_DRAWN, **weighted))
    difference = distance(federated, run(lab.other("localsgd", strategy=ALL_DRAWN, **weighted)))
    return Finding(
        same and difference <= 1e-12,
        f"equal batches: bitwise equal: {same}; unequal batches: difference {difference:.1e}",
    )


def f2_clients_count_by_the_samples_they_used(lab: Lab) -> Finding:
    """Of a ledger at rate 1: a sample's entry is what its client counted in that round, by its batch."""
    worst = 0.0
    for fraction in (1.0, 0.5):
        options = replace(ALL_DRAWN, clients_per_round=fraction)
        batches = (1, 2, 5)
        plan = lab.plan(task=LEDGER, batch_sizes=batches, strategy=options, steps=10)
        plan = replace(plan, task_options={"num_samples": plan.total_samples})
        entries = run(plan).final_state()["entries"]
        expected = torch.zeros_like(entries)
        stream = SampleStream(num_samples=plan.total_samples, seed=plan.seed)
        for begins, drawn in _rounds(plan):
            used = {rank: batches[rank] * steps for rank, steps in drawn.items()}
            for rank, steps in drawn.items():
                for step in range(begins[rank], begins[rank] + steps):
                    samples = torch.from_numpy(stream.take(*slice_of(rank, step, batches)))
                    expected[samples] = -used[rank] / sum(used.values()) / batches[rank]
        worst = max(worst, float((entries - expected).abs().max()))
    return within(worst, 1e-12)


def f3_the_draw_depends_on_seed_and_round_alone(lab: Lab) -> Finding:
    wrong = []
    rounds = 0
    for seed in range(6):
        plan = lab.plan(num_workers=5, steps=10, strategy=HALF, seed=seed)
        seen = _clients_by_round(run(replace(plan, stragglers=RANDOM_SPEEDS)))
        if seen != _clients_by_round(run(plan)):
            wrong.append(f"seed {seed}: speeds change the sampling")
        for number, (begins, drawn) in enumerate(_rounds(plan)):
            working = sum(begin < plan.steps for begin in begins)
            if seen.get(number) != set(drawn) or len(drawn) != min(3, working):
                wrong.append(f"seed {seed}, round {number}: {seen.get(number)} of {working}")
        rounds += len(seen)
        done = run(plan).history.steps
        if {(rank, row.step) for rank, rows in done.items() for row in rows} != {
            (rank, step) for rank in range(5) for step in range(plan.steps)
        }:
            wrong.append(f"seed {seed}: not every work unit is done once")
    return Finding(not wrong, f"{rounds} rounds of 3 of 5 clients; wrong: {wrong[:3]}")


def f4_one_client_at_a_time_is_sequential(lab: Lab) -> Finding:
    """With momentum, which a client forgets after its round."""
    momentum = OptimizerChoice(name="momentum", lr=0.1)
    plan = lab.plan(num_workers=4, steps=10, strategy=ONE_OF_FOUR, optimizer=momentum)
    ours = run(plan).final_state()
    theirs = _one_after_another(plan)
    worst = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    return within(worst, 1e-12)


def _rounds(plan: Plan) -> list[tuple[list[int], dict[int, int]]]:
    """(first step of every worker, steps of the drawn) for each round, as the rule says."""
    options = plan.strategy
    rounds = Rounds(
        plan.seed,
        plan.num_workers,
        plan.steps,
        options.sync_every,
        clients_per_round(options.clients_per_round, plan.num_workers),
    )
    rounds_drawn = []
    while drawn := rounds.current():
        rounds_drawn.append((list(rounds.done), drawn))
        rounds.finish()
    return rounds_drawn


def _clients_by_round(done: VirtualRun) -> dict[int, set[int]]:
    """Who really made steps in each round."""
    seen: dict[int, set[int]] = {}
    for rank, rows in done.history.steps.items():
        for row in rows:
            seen.setdefault(row.version, set()).add(rank)
    return seen


def _one_after_another(plan: Plan) -> dict[str, Tensor]:
    """torch alone, on the shares of each round's client, with a new optimizer for each."""
    set_up_torch(plan)
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model = task.model()
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    for begins, drawn in _rounds(plan):
        ((rank, steps),) = drawn.items()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(begins[rank], begins[rank] + steps):
            share = WorkUnit(rank, step)
            optimizer.zero_grad()
            batch = samples.batch(stream.take(*slice_of(share.rank, share.step, plan.batch_sizes)))
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


FEDERATED_ONLY = ("fedavg",)
FEDERATED_LAWS = (
    Law(
        "F1",
        "with full participation and SGD it equals localsgd",
        FEDERATED_ONLY,
        f1_with_full_participation_it_is_localsgd,
    ),
    Law(
        "F2",
        "a client is weighted by its samples of the round",
        FEDERATED_ONLY,
        f2_clients_count_by_the_samples_they_used,
    ),
    Law(
        "F3",
        "client sampling depends on seed and round only; every work unit is done once",
        FEDERATED_ONLY,
        f3_the_draw_depends_on_seed_and_round_alone,
    ),
    Law(
        "F4",
        "one client per round is sequential training on the clients' work units",
        FEDERATED_ONLY,
        f4_one_client_at_a_time_is_sequential,
    ),
)

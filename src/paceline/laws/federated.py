"""F: federated averaging, rounds of drawn clients."""

from dataclasses import replace

import torch
from torch import Tensor

from paceline.laws.lab import LEDGER, RANDOM_SPEEDS, Lab, distance, run
from paceline.laws.law import Finding, Law, within
from paceline.plan.plan import OptimizerChoice, Plan, StrategyOptions
from paceline.sync.assignment import Share
from paceline.sync.clients import Rounds, clients_per_round
from paceline.sync.samples import SampleStream, slice_of
from paceline.worker.participant import state_hash
from paceline.worker.virtual import VirtualRun
from paceline.worker.wiring import build_task, set_up_torch

ALL_DRAWN = StrategyOptions(sync_every=4)
HALF = StrategyOptions(sync_every=3, clients_per_round=0.5)
ONE_OF_FOUR = StrategyOptions(sync_every=3, clients_per_round=0.25)


def f1_with_everybody_it_is_localsgd(lab: Lab) -> Finding:
    changes = {"steps": 14, "batch_sizes": (4, 4, 4), "task_options": {"batch_norm": True}}
    mine = run(lab.plan(strategy=ALL_DRAWN, stragglers=RANDOM_SPEEDS, **changes))
    theirs = run(lab.other("localsgd", strategy=ALL_DRAWN, **changes))
    same = state_hash(mine.final_state()) == state_hash(theirs.final_state())
    weighted = {**changes, "batch_sizes": (2, 3, 7)}
    mine = run(lab.plan(strategy=ALL_DRAWN, **weighted))
    apart = distance(mine, run(lab.other("localsgd", strategy=ALL_DRAWN, **weighted)))
    return Finding(
        same and apart <= 1e-12, f"equal batches: bits equal: {same}; unequal batches: {apart:.1e} apart"
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
                    mine = torch.from_numpy(stream.take(*slice_of(rank, step, batches)))
                    expected[mine] = -used[rank] / sum(used.values()) / batches[rank]
        worst = max(worst, float((entries - expected).abs().max()))
    return within(worst, 1e-12)


def f3_the_draw_depends_on_seed_and_round_alone(lab: Lab) -> Finding:
    wrong, rounds = [], 0
    for seed in range(6):
        plan = lab.plan(num_workers=5, steps=10, strategy=HALF, seed=seed)
        seen = _clients_by_round(run(replace(plan, stragglers=RANDOM_SPEEDS)))
        if seen != _clients_by_round(run(plan)):
            wrong.append(f"seed {seed}: speeds change the draw")
        for number, (begins, drawn) in enumerate(_rounds(plan)):
            working = sum(begin < plan.steps for begin in begins)
            if seen.get(number) != set(drawn) or len(drawn) != min(3, working):
                wrong.append(f"seed {seed}, round {number}: {seen.get(number)} of {working}")
        rounds += len(seen)
        done = run(plan).history.steps
        if {(rank, row.step) for rank, rows in done.items() for row in rows} != {
            (rank, step) for rank in range(5) for step in range(plan.steps)
        }:
            wrong.append(f"seed {seed}: not every share is done once")
    return Finding(not wrong, f"{rounds} rounds of 3 of 5 clients; wrong: {wrong[:3]}")


def f4_one_client_at_a_time_is_sequential(lab: Lab) -> Finding:
    """With momentum, which a client forgets after its round."""
    momentum = OptimizerChoice(name="momentum", lr=0.1)
    plan = lab.plan(num_workers=4, steps=10, strategy=ONE_OF_FOUR, optimizer=momentum)
    ours, theirs = run(plan).final_state(), _one_after_another(plan)
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
    found = []
    while drawn := rounds.current():
        found.append((list(rounds.done), drawn))
        rounds.finish()
    return found


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
    model, samples = task.model(), task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    for begins, drawn in _rounds(plan):
        ((rank, steps),) = drawn.items()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(begins[rank], begins[rank] + steps):
            share = Share(rank, step)
            optimizer.zero_grad()
            batch = samples.batch(stream.take(*slice_of(share.rank, share.step, plan.batch_sizes)))
            task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


ONLY = ("fedavg",)
LAWS = (
    Law("F1", "with everybody in every round and SGD it is localsgd", ONLY, f1_with_everybody_it_is_localsgd),
    Law(
        "F2",
        "a client counts by the samples it used in the round",
        ONLY,
        f2_clients_count_by_the_samples_they_used,
    ),
    Law(
        "F3",
        "who is drawn depends on seed and round alone; every share is done once",
        ONLY,
        f3_the_draw_depends_on_seed_and_round_alone,
    ),
    Law(
        "F4",
        "one client per round is sequential training on the clients' shares",
        ONLY,
        f4_one_client_at_a_time_is_sequential,
    ),
)

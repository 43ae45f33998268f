"""D: DiLoCo, an outer optimizer over the workers' mean."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from paceline.laws.lab import (
    RANDOM_SPEEDS,
    Finding,
    Lab,
    Law,
    bit_equal,
    distance,
    equal_states,
    final_hash,
    ledger,
    run,
    sequential,
    within,
)
from paceline.plan.plan import OptimizerChoice, Plan, StrategyOptions
from paceline.sync.averaging import split_fragments, starts_after
from paceline.sync.samples import SampleStream, slice_of
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica
from paceline.worker.wiring import build_task, set_up_torch

PLAIN_MEAN = StrategyOptions(sync_every=4, outer_lr=1.0, outer_momentum=0.0)
PUBLISHED = StrategyOptions(sync_every=4)  # rate 0.7, Nesterov momentum 0.9


def d1_rate_one_is_localsgd(lab: Lab) -> Finding:
    ours = run(lab.plan(strategy=PLAIN_MEAN, steps=14, stragglers=RANDOM_SPEEDS))
    theirs = run(lab.other("localsgd", strategy=StrategyOptions(sync_every=4), steps=14))
    return equal_states(
        ours.final_state(), theirs.final_state(), of="outer rate 1 without momentum, and localsgd"
    )


def d2_one_worker_is_the_inner_optimizer(lab: Lab) -> Finding:
    plan = lab.plan(strategy=PLAIN_MEAN, num_workers=1, optimizer=OptimizerChoice(name="adam", lr=0.01))
    reference = sequential(plan, torch.optim.Adam, lr=0.01)
    return equal_states(run(plan).final_state(), reference, of="one worker, and torch.optim.Adam")


def d3_every_step_is_synchronous(lab: Lab) -> Finding:
    plan = lab.plan(strategy=replace(PLAIN_MEAN, sync_every=1))
    return within(distance(run(plan), run(lab.other("ssgd"))), 1e-12)


def d4_the_outer_step_goes_towards_the_mean(lab: Lab) -> Finding:
    mean = _after_one_round(lab, 1.0)
    start = _flat(_initial(lab.plan()))
    far = float((start - mean).norm())
    ratios = {lr: float((_after_one_round(lab, lr) - mean).norm()) / far for lr in (0.3, 0.7, 1.5)}
    expected = all(abs(ratio - abs(1 - lr)) < 1e-9 for lr, ratio in ratios.items())
    shown = {lr: round(ratio, 6) for lr, ratio in ratios.items()}
    return Finding(expected, f"distance to the mean left by outer rate: {shown}")


def d5_one_fragment_is_plain(lab: Lab) -> Finding:
    streaming = replace(PUBLISHED, fragments=1, sync_delay=0, mixing=0.0)
    return bit_equal(
        final_hash(lab.plan(strategy=streaming)), final_hash(lab.plan(strategy=PUBLISHED)), of="P=1, τ=0, α=0"
    )


def d5_full_mixing_ignores_the_others(lab: Lab) -> Finding:
    """With mixing 1 workers continue as if alone, until the end brings them together."""
    alone: dict[tuple[int, int], str] = {}
    mixed: dict[tuple[int, int], str] = {}

    def noting(seen: dict[tuple[int, int], str], plan: Plan) -> None:
        def note(rank: int, steps: int, replica: Replica) -> None:
            parameters = replica.arena.module.named_parameters()
            seen[rank, steps] = state_hash({name: p.detach().clone() for name, p in parameters})

        run(plan, after_step=note)

    noting(alone, lab.other("localsgd", strategy=StrategyOptions(sync_every=100)))
    noting(mixed, lab.plan(strategy=replace(PUBLISHED, mixing=1.0, fragments=2)))
    last = max(steps for _, steps in alone)
    different = [key for key, digest in mixed.items() if key[1] < last and digest != alone[key]]
    return Finding(not different, f"{len(mixed)} states compared before the end; different: {different[:3]}")


def d6_each_element_is_synced_once_per_period(lab: Lab) -> Finding:
    wrong = []
    for size in (16, 1000, 4096, 100_003):
        for pieces in (1, 2, 3, 8):
            stretches = split_fragments(size, pieces)
            tiled = [e for stretch in stretches for e in stretch]
            if tiled[0] != 0 or tiled[-1] != size or tiled[1:-1:2] != tiled[2::2]:
                wrong.append((size, pieces))
            for every in (1, 4, 7, 30):
                counts = [_syncs(number, every, len(stretches)) for number in range(len(stretches))]
                wrong += [(size, pieces)] if set(counts) != {10} else []
    per_worker = run(lab.plan(steps=12, strategy=replace(PUBLISHED, fragments=3))).history.steps[0]
    plain = run(lab.plan(steps=12, strategy=PUBLISHED)).history.steps[0]
    # The end brings all fragments together once more; before it, streaming moves what plain moves.
    moved = sum(r.bytes_out for r in per_worker[3:11]), sum(r.bytes_out for r in plain[:8])
    return Finding(
        not wrong and abs(moved[0] - moved[1]) <= 64, f"wrong cuts: {wrong}; bytes in two periods {moved}"
    )


def d6_every_tensor_is_averaged(lab: Lab) -> Finding:
    """On a ledger of tensors of 3, 3 and 4 elements, which no bucket of 4 holds without a gap.

    Counting what is all-reduced would not do: a strategy that sends a bucket that a tensor did not fit into
    sends as many elements as there are.
    """
    options = replace(PLAIN_MEAN, sync_every=5)
    plan = ledger(lab.plan(num_workers=2, steps=5, strategy=options))
    done = run(replace(plan, task_options={**plan.task_options, "tensors": "3+3+4"}))
    different = [name for name, entries in done.final_state().items() if bool((entries != -0.5).any())]
    return Finding(
        not different, f"three tensors, two workers; not averaged: {', '.join(different) or 'none'}"
    )


def _syncs(fragment: int, every: int, fragments: int) -> int:
    first = 5 * every  # any ten whole periods
    steps = range(first + 1, first + 10 * every + 1)
    return sum(starts_after(step, fragment, every=every, fragments=fragments) for step in steps)


def d8_torchs_nesterov_is_the_outer_optimizer(lab: Lab) -> Finding:
    plan = lab.plan(num_workers=2, steps=12, strategy=PUBLISHED)
    ours = _flat(run(plan).final_state())
    return within(float((ours - _by_torch(plan)).abs().max()), 1e-12)


def _by_torch(plan: Plan) -> Tensor:
    """DiLoCo as its authors write it: torch.optim inside and outside, one worker after another."""
    set_up_torch(plan)
    task = build_task(plan)
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    torch.manual_seed(plan.seed)
    theta = nn.Parameter(nn.utils.parameters_to_vector(task.model().parameters()).detach().clone())
    outer = torch.optim.SGD([theta], lr=0.7, momentum=0.9, nesterov=True)
    models = [task.model() for _ in range(plan.num_workers)]
    inner = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for begin in range(0, plan.steps, plan.strategy.sync_every):
        ends = []
        for rank, (model, optimizer) in enumerate(zip(models, inner, strict=True)):
            nn.utils.vector_to_parameters(theta.detach().clone(), model.parameters())
            for step in range(begin, begin + plan.strategy.sync_every):
                optimizer.zero_grad()
                batch = samples.batch(stream.take(*slice_of(rank, step, plan.batch_sizes)))
                task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
            ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        theta.grad = theta.detach() - torch.stack(ends).mean(0)
        outer.step()
    return theta.detach()


def _after_one_round(lab: Lab, outer_lr: float) -> Tensor:
    options = replace(PLAIN_MEAN, outer_lr=outer_lr)
    return _flat(run(lab.plan(steps=4, strategy=options)).final_state())


def _initial(plan: Plan) -> dict[str, Tensor]:
    set_up_torch(plan)
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    return task.model().state_dict()


def _flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


ONLY = ("diloco",)
LAWS = (
    Law("D1", "outer rate 1 without momentum is bitwise equal to localsgd", ONLY, d1_rate_one_is_localsgd),
    Law(
        "D2",
        "with one worker and outer rate 1 it is the inner optimizer, also for Adam",
        ONLY,
        d2_one_worker_is_the_inner_optimizer,
    ),
    Law("D3", "with H = 1 and outer rate 1 it is synchronous SGD", ONLY, d3_every_step_is_synchronous),
    Law(
        "D4",
        "an outer step goes towards the workers' mean, by its rate",
        ONLY,
        d4_the_outer_step_goes_towards_the_mean,
    ),
    Law("D5", "streaming with one fragment, no delay and no mixing is plain", ONLY, d5_one_fragment_is_plain),
    Law(
        "D5.mixing",
        "with full mixing the other workers are ignored until the end",
        ONLY,
        d5_full_mixing_ignores_the_others,
    ),
    Law(
        "D6",
        "every element is in one fragment and synced once per H",
        ONLY,
        d6_each_element_is_synced_once_per_period,
    ),
    Law(
        "D6.tensors",
        "every tensor is averaged, however tensors are packed into messages",
        ONLY,
        d6_every_tensor_is_averaged,
    ),
    Law(
        "D8",
        "torch's SGD with Nesterov momentum is the outer optimizer",
        ONLY,
        d8_torchs_nesterov_is_the_outer_optimizer,
    ),
)

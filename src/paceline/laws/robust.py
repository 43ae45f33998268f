"""R: what bad workers can do, and what they cannot when gradients are combined robustly."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.laws.lab import QUADRATIC, Finding, Lab, Law, bit_equal, final_hash, run
from paceline.laws.universal import u1_same_schedule_same_bits, u4_after_a_sync_all_replicas_are_equal
from paceline.plan.plan import Plan, StrategyOptions
from paceline.strategies.robust import Aggregate, krum, median, trimmed_mean
from paceline.sync.fault_rules import Attack, ByzantineRule
from paceline.sync.samples import SampleStream, slice_of
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.wiring import build_task, set_up_torch

WAYS = ("median", "trimmed-mean", "krum")
MEAN_OF_ALL = "paceline.strategies.robust:mean"  # the mean, by the way of the user's own function
GARBAGE = (ByzantineRule(worker=3, attack=Attack.GARBAGE),)
WORST = (
    ByzantineRule(attack=Attack.GARBAGE, scale=1e9),
    ByzantineRule(attack=Attack.NAN),
    ByzantineRule(attack=Attack.SCALE, scale=-1e200),
    ByzantineRule(attack=Attack.SAME_VALUE, scale=1e300),
    ByzantineRule(attack=Attack.SIGN_FLIP),
)
SHAPES = ((3, 0), (5, 1), (8, 1), (8, 2), (9, 3), (15, 6))  # (N, f), enough for each way
SEARCHES = 40


def r1_seeing_all_workers_changes_nothing(lab: Lab) -> Finding:
    own = StrategyOptions(aggregate=MEAN_OF_ALL)
    batch_norm = {"batch_norm": True}
    plain = lab.plan(task_options=batch_norm)
    gathered = lab.plan(task_options=batch_norm, strategy=own)
    return bit_equal(final_hash(plain), final_hash(gathered), of="the mean, and the mean of gathered vectors")


def r1_of_equal_gradients_it_is_that_gradient(_: Lab) -> Finding:
    wrong = []
    for size, bad in SHAPES:
        row = _noise(size, 1, 257)[0] * 0.1
        for name, way in _ways(bad):
            if not torch.equal(way(row.repeat(size, 1)), row):
                wrong.append((name, size))
    return Finding(not wrong, f"N in {[n for n, _ in SHAPES]}; changed: {wrong}")


def r2_an_update_stays_among_the_honest(lab: Lab) -> Finding:
    """One step of the whole strategy: 2 of 7 do their worst."""
    outside = []
    tried = 0
    for way in WAYS:
        for worst in WORST:
            rules = tuple(_aimed(worst, worker) for worker in (1, 4))
            options = StrategyOptions(aggregate=way, byzantine_tolerance=2)
            plan = lab.plan(num_workers=7, steps=1, strategy=options, byzantine=rules)
            before, honest = _first_gradients(plan, honest=(0, 2, 3, 5, 6))
            applied = (before - _flat(run(plan))) / 0.1
            tried += 1
            if not _is_among(applied, honest, slack=1e-12):
                outside.append((way, worst.attack.value))
    return Finding(not outside, f"{tried} attacks on one step; outside the honest range: {outside}")


def r2_no_lie_moves_it_out_of_the_honest_range(_: Lab) -> Finding:
    outside = []
    tried = 0
    for seed in range(SEARCHES):
        for size, bad in SHAPES:
            honest = _noise(seed, size - bad, 31)
            for lies in _lies(seed, bad, honest):
                stack = torch.cat([honest, lies])[_shuffled(seed, size)]
                for name, way in _ways(bad)[:2]:
                    tried += 1
                    if not _is_among(way(stack), honest):
                        outside.append((name, size, bad))
    return Finding(not outside, f"{tried} stacks of median and trimmed-mean; outside: {outside[:5]}")


def r2_krum_picks_one_of_the_honest(_: Lab) -> Finding:
    """When they are closer to each other than to any lie."""
    picked = []
    tried = 0
    for seed in range(SEARCHES):
        for size, bad in SHAPES:
            honest = 1.0 + 0.01 * _noise(seed, size - bad, 31)
            for lies in _lies(seed, bad, honest, far=True):
                stack = torch.cat([honest, lies])[_shuffled(seed, size)]
                chosen = krum(stack, bad)
                tried += 1
                if not any(torch.equal(chosen, row) for row in honest):
                    picked.append((size, bad))
    return Finding(not picked, f"{tried} stacks; a byzantine gradient was picked: {picked[:5]}")


def r3_the_order_of_workers_does_not_matter(_: Lab) -> Finding:
    changed = []
    tried = 0
    for seed in range(SEARCHES):
        for size, bad in SHAPES:
            stack = _noise(seed, size, 31)
            for lies in _lies(seed, bad, stack):
                stack[:bad] = lies
                again = stack[_shuffled(seed, size)]
                for name, way in _ways(bad):
                    tried += 1
                    if not torch.equal(way(stack), way(again)):
                        changed.append((name, size, bad))
    return Finding(not changed, f"{tried} permuted stacks; different bits: {changed[:5]}")


def r4_one_of_eight_cannot_stop_training(lab: Lab) -> Finding:
    """Excess loss on the quadratic task, as a part of what it was at first; a tenth is the target."""
    left = {}
    for way in ("mean", *WAYS):
        options = StrategyOptions(aggregate=way)
        plan = lab.plan(task=QUADRATIC, num_workers=8, steps=40, strategy=options, byzantine=GARBAGE)
        left[way] = _excess_left(plan)
    ok = all(left[way] < 0.1 for way in WAYS) and not left["mean"] < 1.0
    listed = ", ".join(f"{way} {part:.2g}" for way, part in left.items())
    return Finding(ok, f"excess loss left: {listed}; target 0.1")


def r5_a_server_combines_as_workers_do(lab: Lab) -> Finding:
    differing = []
    for way in (*WAYS, MEAN_OF_ALL):
        changes = {
            "num_workers": 5,
            "strategy": StrategyOptions(aggregate=way),
            "byzantine": GARBAGE,
        }
        other = "ps" if lab.mode == "ssgd" else "ssgd"
        if final_hash(lab.plan(**changes)) != final_hash(lab.other(other, **changes)):
            differing.append(way)
    return Finding(not differing, f"{(*WAYS, 'a function')} with a bad worker; different bits: {differing}")


@dataclass(frozen=True, slots=True)
class _BadLab(Lab):
    """The same lab, with a bad worker among five and a way to survive it."""

    way: str = "median"

    def plan(self, **changes: object) -> Plan:
        rules = (*GARBAGE, ByzantineRule(worker=3, attack=Attack.NAN, probability=0.3))
        bad = {"num_workers": 5, "strategy": StrategyOptions(aggregate=self.way), "byzantine": rules}
        return Lab.plan(self, **{**bad, **changes})


def r6_with_bad_workers_replicas_stay_equal_and_replays_exact(lab: Lab) -> Finding:
    for way in WAYS:
        bad = _BadLab(lab.mode, lab.subject, lab.launcher, way=way)
        for law in (u4_after_a_sync_all_replicas_are_equal, u1_same_schedule_same_bits):
            finding = law(bad)
            if not finding.ok:
                return Finding(False, f"{way}: {finding.measured}")
    return Finding(True, f"{WAYS}: 12 syncs of 5 replicas equal, 60 gradients replayed")


def _ways(tolerance: int) -> list[tuple[str, Aggregate]]:
    return [
        ("median", median),
        ("trimmed-mean", lambda stack: trimmed_mean(stack, tolerance)),
        ("krum", lambda stack: krum(stack, tolerance)),
    ]


def _lies(seed: int, count: int, honest: Tensor, *, far: bool = False) -> Iterator[Tensor]:
    """What bad workers may send, together or each its own; not all are `far` from the honest."""
    noise = _noise(seed + 1000, count, honest.shape[1])
    yield noise * 1e30
    yield noise * torch.nan
    yield noise.sign() * torch.inf
    yield -1e6 * honest.mean(0).repeat(count, 1)
    mixed = noise * 1e12
    mixed[noise > 0.5] = torch.nan
    mixed[noise < -0.5] = -torch.inf
    yield mixed
    if not far:
        yield noise  # lies that look like the truth
        yield honest.amax(0).repeat(count, 1) + 1e-9


def _noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _shuffled(seed: int, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _is_among(vector: Tensor, honest: Tensor, slack: float = 0.0) -> bool:
    """By coordinate; NaN is among nothing."""
    return bool(((vector >= honest.amin(0) - slack) & (vector <= honest.amax(0) + slack)).all())


def _aimed(rule: ByzantineRule, worker: int) -> ByzantineRule:
    return ByzantineRule(attack=rule.attack, scale=rule.scale, worker=worker)


def _first_gradients(plan: Plan, *, honest: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The first parameters, and the gradients that these workers have there; by torch alone."""
    set_up_torch(plan)
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model = task.model()
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    rows = []
    for rank in honest:
        model.zero_grad()
        batch = samples.batch(stream.take(*slice_of(rank, 0, plan.batch_sizes)))
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        rows.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), torch.stack(rows)


def _flat(done: VirtualRun) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in done.final_state().values()])


def _excess_left(plan: Plan) -> float:
    """Loss over all samples, above the least possible: at the end, as a part of that at the beginning."""
    final = _flat(run(plan))
    task = build_task(plan)
    samples = task.samples()
    (points,) = batch = samples.batch(torch.arange(len(samples)).numpy())
    assert isinstance(points, Tensor), "a sample of this task is a point"
    model = task.model()
    losses = []
    for where in (final, torch.ones(4), points.mean(0)):
        torch.nn.utils.vector_to_parameters(where.to(points.dtype), model.parameters())
        losses.append(float(task.loss(model, batch).detach()))
    end, begin, minimum = losses
    return (end - minimum) / (begin - minimum)


BOTH = ("ssgd", "ps")
LAWS = (
    Law(
        "R1",
        "with no bad worker, the mean of gathered gradients is bitwise equal to the plain mean",
        BOTH,
        r1_seeing_all_workers_changes_nothing,
        per_mode=True,
    ),
    Law(
        "R1.equal",
        "median, trimmed-mean and krum of equal gradients are that gradient",
        BOTH,
        r1_of_equal_gradients_it_is_that_gradient,
    ),
    Law(
        "R2",
        "with 2 bad of 7, an update stays within the range of the honest gradients",
        BOTH,
        r2_an_update_stays_among_the_honest,
        per_mode=True,
    ),
    Law(
        "R2.range",
        "f byzantine gradients, even NaN or infinite, cannot move median or trimmed-mean out of the honest "
        "range",
        BOTH,
        r2_no_lie_moves_it_out_of_the_honest_range,
    ),
    Law(
        "R2.krum",
        "krum picks an honest gradient while those are closer to each other than to any byzantine one",
        BOTH,
        r2_krum_picks_one_of_the_honest,
    ),
    Law(
        "R3",
        "the result does not depend on the order of workers",
        BOTH,
        r3_the_order_of_workers_does_not_matter,
    ),
    Law(
        "R4",
        "1 garbage worker of 8 stops a mean from converging, but not median, trimmed-mean and krum",
        BOTH,
        r4_one_of_eight_cannot_stop_training,
        per_mode=True,
    ),
    Law(
        "R5",
        "a server combines gradients as an all-gather among workers does, bitwise",
        ("ps",),
        r5_a_server_combines_as_workers_do,
    ),
    Law(
        "R6",
        "with bad workers, replicas stay equal and a replay is bitwise equal",
        BOTH,
        r6_with_bad_workers_replicas_stay_equal_and_replays_exact,
        per_mode=True,
    ),
)

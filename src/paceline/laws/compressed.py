"""C: runs that compress what travels."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.compression.exchange import carry_out
from paceline.compression.low_rank import LowRankMean, parts_of
from paceline.compression.mean import compressed_mean
from paceline.core.ids import Rank
from paceline.laws.lab import LEDGER, Finding, Lab, Law, distance, final_hash, run, within
from paceline.laws.universal import (
    u1_same_schedule_same_bits,
    u4_after_a_sync_all_replicas_are_equal,
    u5_no_worker_waits_longer_than_the_timeout,
    u6_slowness_changes_when_never_what,
    u7_a_stop_request_ends_all_at_one_point,
)
from paceline.plan.catalog import MODES
from paceline.plan.plan import Codec, Compression, Dtype, OptimizerChoice, Plan, StrategyOptions
from paceline.transport.arena import ALIGN, Piece
from paceline.transport.in_process import CollectiveState, InProcessCollective
from paceline.transport.ports import Collective
from paceline.transport.torch_dist import ring_bytes
from paceline.transport.virtual_time import Turns
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica

INT8 = Compression(codec=Codec.INT8)
SIGN = Compression(codec=Codec.SIGN)
TOPK = Compression(codec=Codec.TOPK, amount=0.1)
DGC = Compression(codec=Codec.DGC, amount=0.1)
POWERSGD = Compression(codec=Codec.POWERSGD, amount=1.0)
TRIED = (INT8, SIGN, TOPK, POWERSGD, DGC)
WORKERS = 3


def c1_a_run_loses_nothing(lab: Lab) -> Finding:
    """On the ledger: what was applied and what is still owed add up to every gradient, once."""
    worst = {}
    for compress in (INT8, SIGN, TOPK):
        plan = lab.plan(num_workers=WORKERS, steps=20, batch_sizes=(4,) * WORKERS, compress=compress)
        plan = replace(plan, task=LEDGER, task_options={"num_samples": plan.total_samples})
        done = run(plan)
        entries = done.final_state()["entries"]
        owed = _owed(done)[: entries.numel()]
        worst[compress.codec.value] = float((owed - entries - 1 / plan.global_batch).abs().max())
    shown = ", ".join(f"{name} {value:.0e}" for name, value in worst.items())
    return Finding(max(worst.values()) < 1e-12, f"|applied + residual - Σ gradients|: {shown}")


def _owed(done: VirtualRun) -> Tensor:
    """The mean of what all workers owe, and what the owners of pieces owe of the mean."""
    saved = [done.strategies[rank].snapshot() for rank in sorted(done.strategies)]
    zeros = torch.zeros_like(done.replicas[0].arena.gradient_part)
    owed = zeros.clone()
    for memory in saved:
        owed += memory.get("owed", memory.get("first.owed", zeros)) / len(saved)
    second = [memory["second.owed"] for memory in saved if "second.owed" in memory]
    return owed + (torch.cat(second) if second else zeros)


def c3_sending_everything_changes_nothing(lab: Lab) -> Finding:
    single = {"dtype": Dtype.FLOAT32}
    whole = {
        "topk:1": (Compression(codec=Codec.TOPK, amount=1.0), {}),
        "full rank": (Compression(codec=Codec.POWERSGD, amount=64.0), {}),
        "fp32": (Compression(codec=Codec.FP32, error_feedback=False), single),
    }
    different = [
        name
        for name, (compress, changes) in whole.items()
        if final_hash(lab.plan(compress=compress, **changes)) != final_hash(lab.plan(**changes))
    ]
    return Finding(not different, f"{', '.join(whole)} against uncompressed runs; different: {different}")


def c6_the_bytes_of_a_run_follow_from_the_formula(lab: Lab) -> Finding:
    wrong = []
    for compress in TRIED:
        done = run(lab.plan(num_workers=WORKERS, compress=compress))
        expected = _step_bytes(compress, done.replicas[0])
        rows = [row for rows_of_worker in done.history.steps.values() for row in rows_of_worker]
        wrong += [(compress.codec.value, r.bytes_out, expected) for r in rows if r.bytes_out != expected]
        wrong += [(compress.codec.value, r.bytes_in, expected) for r in rows if r.bytes_in != expected]
    return Finding(
        not wrong, f"{len(TRIED)} codecs, N = {WORKERS}; wrong (codec, counted, formula): {wrong[:3]}"
    )


def _step_bytes(compress: Compression, replica: Replica) -> int:
    """What each worker sends in a step, by hand; numbers are float64."""
    layout = replica.arena.layout
    peers = WORKERS - 1
    d = layout.buffers_start
    rest = ring_bytes(8 * (layout.numel - d), WORKERS)
    piece = math.ceil(d / (16 * WORKERS)) * 16
    match compress.codec:
        case Codec.INT8:
            return rest + 2 * peers * (piece + 4 * math.ceil(piece / 256))
        case Codec.SIGN:
            return rest + 2 * peers * (piece // 8 + 2 * math.ceil(piece / 320))
        case Codec.TOPK | Codec.DGC:
            return rest + peers * math.ceil(0.1 * d) * (4 + 8)
        case _:  # 5x3 and 2x5 become 5+3 and 2+5 numbers; all else, padding too, travels as it is
            left = 5 + 2 + (d - 15 - 10)
            right = 3 + 5
            return rest + ring_bytes(8 * left, WORKERS) + ring_bytes(8 * right, WORKERS)


def c7_enough_rank_is_exact(_: Lab) -> Finding:
    rows = 12
    columns = 9
    rank = 2
    pieces = [Piece("matrix", 0, torch.Size((rows, columns)))]
    rng = torch.Generator().manual_seed(4)
    common = torch.randn(rows, rank, generator=rng, dtype=torch.float64)
    gradients = [
        common @ torch.randn(rank, columns, generator=rng, dtype=torch.float64) for _ in range(WORKERS)
    ]
    means = list[Tensor]()
    rights = list[bytes]()

    def live(number: int, collective: Collective, turns: Turns) -> None:
        part = gradients[number].reshape(-1).clone()
        parts = parts_of(part.numel(), pieces, rank)
        mean = LowRankMean(parts, collective, part, error_feedback=False, seed=1, clock=turns)
        rights.append(mean.snapshot()["right"].numpy().tobytes())
        carry_out(mean.reduction(part), collective)
        means.append(part)
        rights.append(mean.snapshot()["right"].numpy().tobytes())

    _together(live)
    exact = torch.stack(gradients).mean(0).reshape(-1)
    error = max(float((mean - exact).abs().max()) for mean in means)
    same = len(set(rights)) == 2 and len({m.numpy().tobytes() for m in means}) == 1
    return Finding(
        error < 1e-12 and same, f"rank {rank} of a rank-{rank} mean: off by {error:.0e}; equal Q: {same}"
    )


def _together(live: Callable[[int, Collective, Turns], None]) -> None:
    turns = Turns()
    meeting = CollectiveState(WORKERS)

    def body(rank: int) -> Callable[[], None]:
        collective = InProcessCollective(meeting, Rank(rank), turns=turns, timeout_s=60.0)
        return lambda: live(rank, collective, turns)

    for error in turns.run([body(rank) for rank in range(WORKERS)]):
        if error is not None:
            raise error


def c9_sending_all_of_dgc_is_momentum(lab: Lab) -> Finding:
    dgc = lab.plan(compress=replace(DGC, amount=1.0), optimizer=OptimizerChoice(name="sgd", lr=0.05))
    momentum = lab.plan(optimizer=OptimizerChoice(name="momentum", lr=0.05))
    return within(distance(run(dgc), run(momentum)), 1e-12)


def c9_dgc_clips_each_workers_gradient(lab: Lab) -> Finding:
    """To limit/√N: all of N gradients that are too long are, so their mean is no longer either."""
    limit = 1e-3
    lr = 0.1
    plan = lab.plan(num_workers=WORKERS, steps=1, compress=replace(DGC, amount=1.0), clip_norm=limit)
    start, end = (_flat(run(p).final_state()) for p in (replace(plan, lr=1e-300), plan))
    moved = float((end - start).norm()) / lr
    alone = lab.plan(num_workers=1, compress=replace(DGC, amount=1.0), clip_norm=0.3)
    momentum = replace(alone, compress=None, optimizer=OptimizerChoice(name="momentum", lr=lr))
    difference = distance(run(alone), run(momentum))
    ok = 0 < moved <= limit / WORKERS**0.5 * (1 + 1e-9) and difference < 1e-12
    return Finding(
        ok,
        f"a step is {moved / limit:.3f} of the limit, N = {WORKERS}; "
        f"alone it differs from clipped momentum by {difference:.0e}",
    )


def _flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


def c10_onebit_is_adam_and_then_freezes(lab: Lab) -> Finding:
    adam = OptimizerChoice(name="adam", lr=0.01)
    freeze_after = 5
    options = StrategyOptions(freeze_after=freeze_after)
    ours, moments = _states(lab.plan(optimizer=adam, strategy=options))
    theirs, _ = _states(lab.other("ssgd", optimizer=adam))
    equal = [step for step in ours if ours[step] == theirs[step]]
    frozen = {moments[step] for step in moments if step >= freeze_after}
    seen = set(moments.values())
    ok = equal == list(range(1, freeze_after + 1)) and len(frozen) == 1 and len(seen) == freeze_after
    return Finding(
        ok, f"bits of Adam after steps {equal}; second moments from step {freeze_after} on: {len(frozen)}"
    )


def _states(plan: Plan) -> tuple[dict[int, str], dict[int, str]]:
    """By finished step: the parameters, and Adam's second moment."""
    states = dict[int, str]()
    moments = dict[int, str]()

    def note(rank: int, steps: int, replica: Replica) -> None:
        if rank == 0:
            states[steps] = state_hash(replica.arena.named_state())
            second = {k: t for k, t in replica.optimizer_state().items() if k.startswith("second")}
            moments[steps] = state_hash({k: t.clone() for k, t in second.items()})

    run(plan, after_step=note)
    return states, moments


def c11_another_number_of_workers_forgets(_: Lab) -> Finding:
    """What N workers owe is taken up by N workers, and by no other number."""
    results: dict[int, bool] = {}

    def live(number: int, collective: Collective, turns: Turns) -> None:
        vector = collective.allocate(256 + ALIGN, torch.float64)
        plan = Plan(run="law", task="", mode="ssgd", num_workers=WORKERS, steps=1, batch_sizes=(1,) * WORKERS)

        def new() -> Callable[[], dict[str, Tensor]]:
            mean = compressed_mean(plan, INT8, collective, vector, lossy_end=256, pieces=(), clock=turns)
            mean.restore(saved)
            return mean.snapshot

        saved: dict[str, Tensor] = {}
        first = compressed_mean(plan, INT8, collective, vector, lossy_end=256, pieces=(), clock=turns)
        vector.copy_(torch.arange(256 + ALIGN) + number)
        first.reduce()
        saved = {name: tensor.clone() for name, tensor in first.snapshot().items()}
        kept = new()()
        saved = {**saved, "workers": torch.tensor([WORKERS + 1])}
        forgotten = new()()
        is_kept = all(torch.equal(kept[name], tensor) for name, tensor in first.snapshot().items())
        is_forgotten = not any(bool(t.any()) for name, t in forgotten.items() if name != "workers")
        results[number] = is_kept and is_forgotten and bool(first.snapshot()["first.owed"].any())

    _together(live)
    return Finding(all(results.values()), f"restored by {WORKERS} workers, reset by {WORKERS + 1}: {results}")


def d9_an_outer_step_in_bytes_is_near_the_exact_one(lab: Lab) -> Finding:
    """Off by at most half a scale per worker's distance, and half a scale of their mean."""
    options = StrategyOptions(sync_every=4, outer_lr=0.7, outer_momentum=0.9)
    plan = lab.plan(num_workers=WORKERS, steps=4, strategy=options)
    exact = run(plan)
    coded = run(replace(plan, compress=INT8))
    hashes = {state_hash(replica.arena.named_state()) for replica in coded.replicas.values()}
    alone: list[Tensor] = []

    def note(_: int, steps: int, replica: Replica) -> None:
        if steps == 4:
            alone.append(replica.arena.state[: replica.arena.layout.buffers_start].clone())

    run(
        lab.other("localsgd", num_workers=WORKERS, steps=5, strategy=StrategyOptions(sync_every=100)),
        after_step=note,
    )
    start = run(lab.other("localsgd", num_workers=WORKERS, steps=1, lr=1e-300)).replicas[0].arena
    far = [float((end - start.state[: start.layout.buffers_start]).abs().max()) for end in alone]
    # θ moves by lr·(1 + μ) of the mean distance in its first outer step; so does an error in it.
    bound = 0.7 * 1.9 * (sum(far) / len(far) + max(far) * (1 + 1 / 254)) / 254
    error = distance(exact, coded)
    return Finding(
        0 < error <= bound and len(hashes) == 1,
        f"off by {error:.1e}, bound {bound:.1e}; {len(hashes)} different states over {WORKERS} workers",
    )


@dataclass(frozen=True, slots=True)
class _Compressing(Lab):
    """A lab in which every plan for the strategy on trial compresses."""

    compress: Compression | None = None

    def plan(self, **changes: object) -> Plan:
        return Lab.plan(self, compress=self.compress, **changes)


def c12_also_when_compressed(universal: Callable[[Lab], Finding]) -> Callable[[Lab], Finding]:
    def check(lab: Lab) -> Finding:
        tried = [c for c in TRIED if c.codec in MODES[lab.mode].compresses]
        findings = {
            c: universal(_Compressing(lab.mode, lab.subject, lab.launcher, compress=c)) for c in tried
        }
        broken = [f"{c.codec}: {finding.measured}" for c, finding in findings.items() if not finding.ok]
        return Finding(not broken, "; ".join(broken) or f"with {', '.join(c.codec for c in tried)}")

    check.__module__ = __name__
    return check


SYNC = ("ssgd",)
TOGETHER = ("ssgd", "ps", "localsgd", "fedavg", "diloco")
EVERY = (*TOGETHER, "asgd", "ssp", "dssp")
ONEBIT = ("onebit",)
UNIVERSAL = (
    (
        "U1",
        "the same seed and schedule give bitwise equal results, also when replayed",
        u1_same_schedule_same_bits,
    ),
    ("U4", "after each sync all replicas are bitwise equal", u4_after_a_sync_all_replicas_are_equal),
    (
        "U5",
        "when a worker stops responding, no other waits too long",
        u5_no_worker_waits_longer_than_the_timeout,
    ),
    ("U6", "slowing workers changes no bit", u6_slowness_changes_when_never_what),
    ("U7", "a stop request ends all workers at a common point", u7_a_stop_request_ends_all_at_one_point),
)
LAWS = (
    Law(
        "C1.run",
        "a run loses nothing: applied + residual = every gradient, once",
        SYNC,
        c1_a_run_loses_nothing,
    ),
    Law("C3", "sending everything changes no bit", SYNC, c3_sending_everything_changes_nothing),
    Law(
        "C6.run", "a step sends the bytes of its formula", SYNC, c6_the_bytes_of_a_run_follow_from_the_formula
    ),
    Law(
        "C7",
        "PowerSGD of enough rank is exact, and all workers hold the same Q",
        SYNC,
        c7_enough_rank_is_exact,
    ),
    Law("C9", "DGC that sends everything is SGD with momentum", SYNC, c9_sending_all_of_dgc_is_momentum),
    Law("C9.clip", "DGC clips each worker's gradient, to limit/√N", SYNC, c9_dgc_clips_each_workers_gradient),
    Law(
        "C10",
        "1-bit Adam is bitwise equal to Adam until it freezes; then the second moment is constant",
        ONEBIT,
        c10_onebit_is_adam_and_then_freezes,
    ),
    Law(
        "C11.members",
        "an error-feedback memory is reset when the number of workers changes",
        SYNC,
        c11_another_number_of_workers_forgets,
    ),
    Law(
        "C12.replay",
        "compressed runs repeat and replay bitwise",
        EVERY,
        c12_also_when_compressed(u1_same_schedule_same_bits),
        per_mode=True,
    ),
    Law(
        "C12.equal",
        "after each compressed sync all replicas are bitwise equal",
        TOGETHER,
        c12_also_when_compressed(u4_after_a_sync_all_replicas_are_equal),
        per_mode=True,
    ),
    Law(
        "C12.slow",
        "slowing workers changes no bit of a compressed run",
        (*TOGETHER, "ssp"),
        c12_also_when_compressed(u6_slowness_changes_when_never_what),
        per_mode=True,
    ),
    Law(
        "C12.stop",
        "a stop request ends compressed runs at a common point",
        EVERY,
        c12_also_when_compressed(u7_a_stop_request_ends_all_at_one_point),
        per_mode=True,
    ),
    Law(
        "D9",
        "an outer step in bytes is within the rounding of the exact one, and equal everywhere",
        ("diloco",),
        d9_an_outer_step_in_bytes_is_near_the_exact_one,
    ),
    *(Law(name, statement, ONEBIT, check, per_mode=True) for name, statement, check in UNIVERSAL),
)

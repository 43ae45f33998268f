"""U: the laws that every synchronization strategy obeys."""

from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.errors import PeerLostError
from paceline.laws.lab import (
    PACE_S,
    RANDOM_SPEEDS,
    Finding,
    Lab,
    Law,
    bit_equal,
    equal_states,
    final_hash,
    ledger,
    run,
    sequential,
)
from paceline.laws.witness import CollectiveWitness, Witness
from paceline.plan.catalog import Channel
from paceline.plan.plan import OptimizerChoice, StrategyOptions
from paceline.worker.entry.virtual import WorkerGoneError, run_virtual
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay
from paceline.worker.wiring import channel_of

# easgd's centre is no sum of gradients, so neither U2 nor U3 can speak of it; E2 counts its shares.
ALL = ("single", "ssgd", "ps", "backup", "asgd", "ssp", "dssp", "localsgd", "fedavg", "diloco", "adaptive")
NEAR = ("gossip", "adpsgd")  # a gradient reaches all by mixing, rounded on its way: not U2, but G6
REPLAYED = (*ALL, *NEAR, "easgd")
# Modes whose result does not depend on speeds.
TOGETHER = ("ssgd", "ps", "ssp", "dssp", "localsgd", "fedavg", "diloco", "gossip")
TIMEOUT_S = 5.0


def u1_same_schedule_same_bits(lab: Lab) -> Finding:
    plan = lab.plan(stragglers=RANDOM_SPEEDS, task_options={"batch_norm": True})
    done = run(plan)
    first = state_hash(done.final_state())
    second = final_hash(plan)
    if first != second:
        return bit_equal(first, second, of="two runs")
    verdict = replay(plan, done.history, first)
    return Finding(
        verdict.is_equal, verdict.parted or f"{verdict.gradients} gradients replayed to {first[:12]}"
    )


def u2_every_gradient_counts_once(lab: Lab) -> Finding:
    """The ledger's entries are all exactly -1/N: none lost, doubled, reversed or summed for averaged.

    With backup workers an update is the mean of K gradients, and the entries are -1/K.
    """
    plan = ledger(lab.plan(num_workers=1 if lab.mode == "single" else 4))
    witness = Witness.of(plan.num_workers)
    meetings = CollectiveWitness()
    done = run(plan, wrap_store=witness.wrap, wrap_collective=meetings.wrap)
    entries = done.final_state()["entries"]
    expected = -1.0 / plan.gradients_per_update
    wrong = int((entries != expected).sum())
    rows = [r for worker_rows in done.history.steps.values() for r in worker_rows]
    counted = len(rows) == plan.total_gradients and sum(r.samples for r in rows) == plan.total_samples
    in_vain = sum(r.bytes_in for worker_rows in done.history.abandoned.values() for r in worker_rows)
    moved = sum(r.bytes_out for r in rows), sum(r.bytes_in for r in rows) + in_vain
    if channel_of(plan.mode) is Channel.STORE:
        handed = witness.pushed_bytes, witness.pulled_bytes
    else:
        handed = meetings.moved_bytes, meetings.moved_bytes
    ok = wrong == 0 and counted and moved == handed
    return Finding(
        ok,
        f"{wrong} of {len(entries)} entries are not {expected}; {len(rows)} gradients; "
        f"bytes counted {moved}, passed to the transport {handed}",
    )


def u3_alone_it_is_the_optimizer(lab: Lab) -> Finding:
    """With momentum; fedavg's clients forget it after every round, so there the optimizer is plain SGD."""
    name, momentum = ("sgd", 0.0) if lab.mode == "fedavg" else ("momentum", 0.9)
    choice = OptimizerChoice(name=name, lr=0.1, weight_decay=0.01)
    plan = lab.plan(num_workers=1, optimizer=choice, lr_scale=1.0)
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.01}
    reference = sequential(plan, torch.optim.SGD, **settings)
    return equal_states(run(plan).final_state(), reference, of="with one worker, and torch.optim.SGD")


def u4_after_a_sync_all_replicas_are_equal(lab: Lab) -> Finding:
    """Compared as bits, with batch normalisation so that buffers count too."""
    plan = lab.plan(task_options={"batch_norm": True}, stragglers=RANDOM_SPEEDS)
    seen: dict[int, set[str]] = {}
    witness = Witness.of(plan.num_workers)

    def note(clock: int, state: dict[str, Tensor]) -> None:
        seen.setdefault(clock, set()).add(state_hash(state))

    witness.on_pull = lambda rank, slots: note(witness.clocks[rank], {"state": slots.parameters.clone()})
    if channel_of(plan.mode) is Channel.STORE:
        run(plan, wrap_store=witness.wrap)
        synced = set(seen)  # a worker agrees with the others when it reads
    else:
        done = run(plan, after_step=lambda _, steps, replica: note(steps, replica.arena.named_state()))
        synced = {r.step + 1 for r in done.history.steps[0] if r.synced}
    differing = sorted(clock for clock in synced if len(seen[clock]) > 1)
    return Finding(
        not differing, f"{len(synced)} syncs of {plan.num_workers} replicas; differing: {differing}"
    )


def u5_no_worker_waits_longer_than_the_timeout(lab: Lab) -> Finding:
    """Worker 1 goes silent after its third step, without a word."""
    plan = lab.plan(timeout_s=TIMEOUT_S, steps=9)
    done = run_virtual(plan, silent_after={1: 3})
    odd = [e for e in done.errors if not isinstance(e, PeerLostError | WorkerGoneError | None)]
    busy_until = {r: rows[-1].start_ns / 1e9 + PACE_S for r, rows in done.history.steps.items()}
    for rank, given_up in done.history.abandoned.items():
        ended_s = (given_up[-1].start_ns + given_up[-1].lasted_ns) / 1e9
        busy_until[rank] = max(busy_until.get(rank, 0.0), ended_s)
    waited = max(done.ended_s[rank] - busy_until.get(rank, 0.0) for rank in done.ended_s)
    ok = not odd and waited <= TIMEOUT_S + PACE_S + 1e-9
    return Finding(ok, f"longest wait {waited:.2f} s, timeout {TIMEOUT_S:g} s; unexpected errors: {odd}")


def u6_slowness_changes_when_never_what(lab: Lab) -> Finding:
    options = StrategyOptions(staleness=0, staleness_range=0, sync_every=4)
    plan = lab.plan(strategy=options)
    slow = final_hash(replace(plan, stragglers=RANDOM_SPEEDS), starts_at_s={0: 0.5})
    return bit_equal(final_hash(plan), slow, of="without and with injected slowness")


def u7_a_stop_request_ends_all_at_one_point(lab: Lab) -> Finding:
    """One worker wants to stop after its fifth step: what was done is then whole, without a hole."""
    done = run(lab.plan(steps=40, stragglers=RANDOM_SPEEDS), stops_after={0: 5})
    rows = [row for worker_rows in done.history.steps.values() for row in worker_rows]
    positions = sorted(row.position for row in rows)
    counts = {rank: len(worker_rows) for rank, worker_rows in done.history.steps.items()}
    whole = positions == list(range(len(positions)))
    return Finding(
        whole and len(rows) < 120, f"steps by worker {counts}; work units 0 … {positions[-1]} whole: {whole}"
    )


LAWS = (
    Law(
        "U1",
        "the same seed and schedule give bitwise equal results, also when the log is replayed",
        REPLAYED,
        u1_same_schedule_same_bits,
        per_mode=True,
    ),
    Law(
        "U2",
        "every gradient is applied exactly once with weight 1/N; bytes are those passed to the transport",
        ALL,
        u2_every_gradient_counts_once,
        per_mode=True,
    ),
    Law(
        "U3",
        "one worker is bitwise equal to torch's optimizer",
        ALL + NEAR,
        u3_alone_it_is_the_optimizer,
        per_mode=True,
    ),
    Law(
        "U4",
        "after each sync all replicas are bitwise equal, buffers included",
        ("ssgd", "ps", "localsgd", "fedavg", "diloco", "gossip", "adaptive"),
        u4_after_a_sync_all_replicas_are_equal,
        per_mode=True,
    ),
    Law(
        "U5",
        "when a worker stops responding, no other waits longer than the timeout",
        (
            "ssgd",
            "ps",
            "backup",
            "asgd",
            "ssp",
            "dssp",
            "easgd",
            "localsgd",
            "fedavg",
            "diloco",
            "adaptive",
            *NEAR,
        ),
        u5_no_worker_waits_longer_than_the_timeout,
        per_mode=True,
    ),
    Law(
        "U6",
        "slowing workers changes timing, not results",
        TOGETHER,
        u6_slowness_changes_when_never_what,
        per_mode=True,
    ),
    Law(
        "U7",
        "a stop request ends all workers at a common point, with no work unit skipped",
        REPLAYED,
        u7_a_stop_request_ends_all_at_one_point,
        per_mode=True,
    ),
)

"""The laws that need real processes: torch's own DDP and FSDP, and runs replayed after the fact."""

from dataclasses import replace

import torch

from paceline.laws.lab import Finding, Lab, Law, bit_equal, ledger, sequential
from paceline.plan.plan import Codec, Compression, Dtype, OptimizerChoice
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay

STEPS = 200


def s4_two_workers_are_bit_equal_to_ddp(lab: Lab) -> Finding:
    work = {"task": "xor", "num_workers": 2, "steps": STEPS, "dtype": Dtype.FLOAT32, "batch_sizes": (16, 16)}
    ours = lab.really_run(replace(lab.plan(**work), pace_s=0.0))
    torchs = lab.really_run(replace(lab.other("ddp", **work), pace_s=0.0))
    return bit_equal(
        ours.state_sha256[0], torchs.state_sha256[0], of=f"float32 after {STEPS} steps, ssgd and DDP"
    )


def u1_a_real_run_replays(lab: Lab) -> Finding:
    plan = lab.plan(steps=40, pace_s=0.0)
    done = lab.really_run(plan)
    verdict = replay(plan, done.history, done.state_sha256[0])
    return Finding(
        verdict.is_equal, verdict.parted or f"{verdict.gradients} gradients of real processes replayed"
    )


def c11_an_error_memory_survives_a_resume(lab: Lab) -> Finding:
    """Stopped in order and resumed, a run ends with the bits of one that was not."""
    parted = []
    for compress in (Compression(codec=Codec.SIGN), Compression(codec=Codec.TOPK, amount=0.1)):
        plan = lab.plan(steps=60, compress=compress, optimizer=OptimizerChoice(name="adam", lr=0.01))
        if lab.really_run(plan, stops_at=3).state_sha256 != lab.really_run(plan).state_sha256:
            parted.append(compress.codec.value)
    return Finding(
        not parted, f"signs and topk, stopped and resumed, against an uninterrupted run; different: {parted}"
    )


def u2_torch_counts_every_gradient_once(lab: Lab) -> Finding:
    plan = ledger(lab.plan(num_workers=2, steps=8))
    done = lab.really_run(plan)
    expected = torch.full((plan.total_samples,), -0.5, dtype=torch.float64)
    return bit_equal(done.state_sha256[0], state_hash({"entries": expected}), of="ledger and -1/N everywhere")


def u3_torch_alone_is_the_optimizer(lab: Lab) -> Finding:
    choice = OptimizerChoice(name="momentum", lr=0.1, weight_decay=0.01)
    plan = lab.plan(num_workers=1, optimizer=choice)
    reference = sequential(plan, torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    return bit_equal(
        lab.really_run(plan).state_sha256[0], state_hash(reference), of="one worker, and torch.optim.SGD"
    )


def u4_torch_replicas_end_equal(lab: Lab) -> Finding:
    hashes = lab.really_run(lab.plan(num_workers=2)).state_sha256
    return bit_equal(hashes[0], hashes[1], of="ranks 0 and 1")


LAWS = (
    Law(
        "S4",
        "with N = 2, ssgd is bitwise equal to torch DDP",
        ("ssgd",),
        s4_two_workers_are_bit_equal_to_ddp,
        starts_processes=True,
    ),
    Law(
        "U1.local",
        "a run of real processes replays in one process, bitwise",
        (
            "ssgd",
            "ps",
            "asgd",
            "ssp",
            "dssp",
            "easgd",
            "localsgd",
            "fedavg",
            "diloco",
            "onebit",
            "gossip",
            "adpsgd",
            "backup",
            "adaptive",
        ),
        u1_a_real_run_replays,
        per_mode=True,
        starts_processes=True,
    ),
    Law(
        "C11",
        "checkpoints contain error-feedback memories: a resumed run is bitwise equal to an uninterrupted one",
        ("ssgd", "localsgd", "fedavg", "diloco"),
        c11_an_error_memory_survives_a_resume,
        per_mode=True,
        starts_processes=True,
    ),
    Law(
        "U2",
        "every gradient is applied exactly once with weight 1/N",
        ("ddp", "fsdp"),
        u2_torch_counts_every_gradient_once,
        per_mode=True,
        starts_processes=True,
    ),
    Law(
        "U3",
        "one worker is bitwise equal to torch's optimizer",
        ("ddp", "fsdp"),
        u3_torch_alone_is_the_optimizer,
        per_mode=True,
        starts_processes=True,
    ),
    Law(
        "U4",
        "after each sync all replicas are bitwise equal",
        ("ddp", "fsdp"),
        u4_torch_replicas_end_equal,
        per_mode=True,
        starts_processes=True,
    ),
)

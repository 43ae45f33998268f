"""How fast was the training once it ran? Tokens and floating-point operations per second, and MFU.

The first steps of a run compile and warm up, so they do not count; nor do
evaluations. MFU (model FLOP utilisation) is the work that the model needs, which is
samples per second times the task's `flops_per_sample`, over what all GPUs together
could do at most. What activation checkpointing computes again is no work in this
sense. A CPU, or a GPU that is not in the table, has FLOP/s but no MFU.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Dense bf16 matrix products on tensor cores, in FLOP/s, as the makers state them. By what the name contains;
# the first that fits counts.
PEAKS: Mapping[str, float] = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    steady_samples_per_s: float
    tokens_per_s: float | None = None
    flops_per_s: float | None = None
    mfu: float | None = None  # from 0 to 1


def peak_flops(device: str) -> float | None:
    return next((peak for name, peak in PEAKS.items() if name in device), None)


def speed(
    samples_per_s: float, *, tokens: float | None, flops: float | None, device: str | None, gpus: int
) -> Speed:
    """`tokens` and `flops` are those of a sample."""
    work = None if flops is None else samples_per_s * flops
    peak = None if device is None else peak_flops(device)
    return Speed(
        steady_samples_per_s=samples_per_s,
        tokens_per_s=None if tokens is None else samples_per_s * tokens,
        flops_per_s=work,
        mfu=None if work is None or peak is None else work / (peak * gpus),
    )

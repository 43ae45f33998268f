"""What can a worker say about its own work, beyond when each step began and ended?

How much one sample is (tokens, floating-point operations), if the task says so; and,
on a GPU, which one it is and how much of its memory was ever taken.
"""

import torch

from paceline.events.schema import Scalar
from paceline.tasks.port import CountsTokens, CountsWork, Task


def work_of_sample(task: Task) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    if isinstance(task, CountsTokens):
        found["tokens_per_sample"] = int(task.tokens_per_sample())
    if isinstance(task, CountsWork):
        found["flops_per_sample"] = float(task.flops_per_sample())
    return found


def use_of_device(device: torch.device) -> dict[str, Scalar]:
    """Empty on a CPU: what a process takes of its memory is no matter of the training alone."""
    if device.type != "cuda":
        return {}
    return {
        "device": torch.cuda.get_device_name(device),
        "device_id": str(torch.cuda.get_device_properties(device).uuid),
        "peak_device_bytes": torch.cuda.max_memory_allocated(device),
    }

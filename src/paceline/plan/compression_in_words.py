"""What should a user know about a plan that compresses?"""

from collections.abc import Iterator

from paceline.plan.catalog import MODES, Channel
from paceline.plan.plan import Codec, Compression, Dtype, Plan

_SPARSE = frozenset({Codec.TOPK, Codec.DGC})


def about_compression(plan: Plan) -> Iterator[str]:
    if plan.mode == "onebit":
        yield (
            "parameters that have no gradient at all before the second moment is frozen stay as they are"
            " afterwards; too small a freeze_after makes steps wild"
        )
    if plan.compress is None:
        return
    yield (
        "compressing takes time: of more than 200 published setups 6 got faster than well-made plain"
        " averaging (Agarwal 2022); compare `codec` with what is saved"
    )
    yield from _about_codec(plan, plan.compress)
    if plan.mode not in MODES:
        yield "your own strategy compresses only what it averages through strategies/means.py"
    if _has_server(plan):
        yield "only gradients are compressed: parameters come back from the server in full"
        if plan.compress.error_feedback:
            yield "workers of a server save nothing themselves: a resumed run starts with empty memories"
    if plan.mode == "ddp" and plan.compress.codec is Codec.POWERSGD:
        yield "torch begins with two plain steps; a resumed run begins with them again, and without memory"


def _about_codec(plan: Plan, compress: Compression) -> Iterator[str]:
    codec, amount = compress.codec, compress.amount or 0.0
    if codec in _SPARSE and not _has_server(plan) and amount * plan.num_workers >= 1:
        yield (
            f"everybody receives everybody's {amount:.0%}: with {plan.num_workers} workers that is as much as"
            f" plain averaging moves, or more; a part below 1/N = {1 / plan.num_workers:.2g} saves bytes"
        )
    if codec is Codec.FP32 and plan.dtype is Dtype.FLOAT32:
        yield "fp32 makes nothing smaller in a float32 run"
    if codec is Codec.INT8 and not compress.error_feedback:
        yield "int8 without error feedback rounds at random, so that it is right on average"
    if codec is Codec.SIGN and not compress.error_feedback:
        yield "signs without error feedback need not converge, not even on convex problems (law C8)"
    if codec is Codec.DGC and plan.clip_norm is not None:
        limit = plan.clip_norm / plan.num_workers**0.5
        yield f"dgc clips each worker's gradient, to clip_norm / √N = {limit:.3g}, and not their mean"


def _has_server(plan: Plan) -> bool:
    return plan.mode in MODES and MODES[plan.mode].channel is Channel.STORE

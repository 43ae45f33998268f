"""Which coder does a plan's compression name? For those that make one payload of a vector."""

import torch

from paceline.compression.casts import Cast
from paceline.compression.coder import Coder
from paceline.compression.int8 import Int8, StochasticInt8
from paceline.compression.sign import Sign
from paceline.compression.topk import TopK
from paceline.ids import Rank
from paceline.plan.plan import Codec, Compression
from paceline.sync.dice import draw_u64


def coder_of(compress: Compression, *, seed: int, rank: Rank) -> Coder:
    match compress.codec:
        case Codec.FP32:
            return Cast(torch.float32)
        case Codec.FP16:
            return Cast(torch.float16)
        case Codec.BF16:
            return Cast(torch.bfloat16)
        case Codec.INT8:
            # Without a memory the only cure for rounding is to be right on average.
            return Int8() if compress.error_feedback else StochasticInt8(seed=draw_u64(seed, rank))
        case Codec.SIGN:
            return Sign()
        case Codec.TOPK:
            assert compress.amount is not None, "the plan says which part topk sends"
            return TopK(compress.amount)
        case Codec.DGC | Codec.POWERSGD:
            raise AssertionError(f"{compress.codec} is no single payload")

"""Table of gradient codecs, and the parser of `topk:0.01`.

Does not import torch; the codecs are in the package `compression`. See
docs/concepts/compression.md.
"""

import math
from dataclasses import dataclass

from paceline.config.values import show_value
from paceline.core.humanize import did_you_mean
from paceline.plan.plan import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecInfo:
    summary: str
    amount: str = ""  # meaning of the number after the colon; "": no number
    default: float | None = None  # the amount when none is written
    is_rank: bool = False  # a whole number from 1 on; otherwise a part, at most 1
    has_memory: bool = True  # error feedback by default


CODECS: dict[Codec, CodecInfo] = {
    Codec.FP32: CodecInfo(summary="4 bytes each, for float64 runs", has_memory=False),
    Codec.FP16: CodecInfo(summary="2 bytes each, up to 65504", has_memory=False),
    Codec.BF16: CodecInfo(summary="2 bytes each, 8 bits of precision", has_memory=False),
    Codec.INT8: CodecInfo(summary="1 byte each, a scale for every 256"),
    Codec.SIGN: CodecInfo(summary="1 bit each, a scale for every 320"),
    Codec.TOPK: CodecInfo(summary="only the largest values, with their indices", amount="part", default=0.01),
    Codec.DGC: CodecInfo(
        summary="only the largest of accumulated momentum (Deep Gradient Compression)",
        amount="part",
        default=0.01,
    ),
    Codec.POWERSGD: CodecInfo(
        summary="matrices as products of two thin ones", amount="rank", default=2.0, is_rank=True
    ),
}


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a text names no compression."""

    what: str
    hint: str


def read_compression(text: str) -> tuple[Codec, float | None] | Unusable:
    """`int8`, `topk:0.01`: the codec, and its amount where it takes one."""
    name, colon, amount = text.strip().lower().partition(":")
    if name not in set(Codec):
        known = f"codecs are {', '.join(CODECS)}"
        return Unusable(f"there is no codec {show_value(name)}", did_you_mean(name, CODECS, otherwise=known))
    codec = Codec(name)
    info = CODECS[codec]
    if not colon:
        return codec, info.default
    if not info.amount:
        return Unusable(f"compress is {show_value(text)}, but {name} takes no amount", f"write {name}")
    number = _number(amount)
    fits = number >= 1 and number.is_integer() if info.is_rank else 0 < number <= 1
    if not fits:
        must = "a whole number, 1 or more" if info.is_rank else "more than 0 and at most 1"
        message = f"compress is {show_value(text)}, but the {info.amount} of {name} must be {must}"
        return Unusable(message, f"write for example {name}:{info.default:g}")
    return codec, number


def describe_codec(codec: Codec, amount: float | None) -> str:
    return codec.value if amount is None else f"{codec.value}:{amount:g}"


def _number(text: str) -> float:
    """NaN, which fits nowhere, for what is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan

"""What is wrong with the compression, given the mode and the optimizer?"""

from collections.abc import Callable, Iterator

from paceline.config.facts import Facts
from paceline.config.train_config import TrainConfig
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import MODES, Channel, Mode
from paceline.plan.compression import CODECS, Unusable, read_compression
from paceline.plan.plan import Codec, Compression, Transport

_MEMORY_IN_HOOK = frozenset({Codec.FP16, Codec.BF16})  # torch's hooks for these have none


def check_compression(config: TrainConfig, facts: Facts, are_sound: Callable[..., bool]) -> list[Problem]:
    """`are_sound` says whether keys are free of problems of their own."""
    found = read_compression(config.compress) if config.compress is not None else None
    if isinstance(found, Unusable):
        return [Problem(found.what, found.hint, config.origin("compress"))]
    chosen = decide.compression_of(config)
    if chosen is None:
        return list(_idle(config)) if are_sound("compress") else []
    problems = list(_alone(config, chosen))
    if are_sound("mode"):
        problems += _with_mode(config, chosen)
    if are_sound("mode", "device", "transport", "num_workers"):
        problems += _with_transport(config, facts, chosen)
    if are_sound("optimizer"):
        problems += _with_optimizer(config, chosen)
    return problems


def _idle(config: TrainConfig) -> Iterator[Problem]:
    for key in ("error_feedback", "compress_warmup"):
        if getattr(config, key) is not None:
            hint = f"leave {key} out, or say what to compress with, such as --compress int8"
            yield Problem(f"{key} is set, but nothing is compressed", hint, config.origin(key))


def _alone(config: TrainConfig, chosen: Compression) -> Iterator[Problem]:
    if chosen.codec is Codec.DGC and not chosen.error_feedback:
        hint = "leave error_feedback out, or use --compress topk, which can do without"
        yield Problem(
            "dgc is its memory, so error_feedback cannot be no", hint, config.origin("error_feedback")
        )
    if config.compress_warmup is not None and chosen.codec is not Codec.DGC:
        hint = "leave compress_warmup out, or use --compress dgc"
        what = f"{chosen.codec} does not read compress_warmup"
        yield Problem(what, hint, config.origin("compress_warmup"))


def _with_mode(config: TrainConfig, chosen: Compression) -> Iterator[Problem]:
    mode, codec = decide.mode_of(config), chosen.codec
    if mode is None:
        return  # the user's own mode may average as it likes
    where = config.origin("compress")
    if codec not in mode.compresses:
        can = ", ".join(name for name, other in MODES.items() if codec in other.compresses)
        theirs = ", ".join(c for c in CODECS if c in mode.compresses)
        hint = f"use a mode that can: {can}" + (f"; or another codec: {theirs}" if theirs else "")
        yield Problem(_refusal(mode, codec), hint, where)
    elif mode.channel is Channel.TORCH and codec in _MEMORY_IN_HOOK and chosen.error_feedback:
        hint = "leave error_feedback out, or use --mode ssgd"
        what = f"torch's own {codec} compression has no error feedback"
        yield Problem(what, hint, config.origin("error_feedback"))
    elif codec is Codec.POWERSGD and decide.strategy_options_of(config).fragments > 1:
        hint = "leave fragments out, or use another codec, such as int8"
        yield Problem("powersgd needs whole matrices, but fragments cut through them", hint, where)


def _with_transport(config: TrainConfig, facts: Facts, chosen: Compression) -> Iterator[Problem]:
    mode = decide.mode_of(config)
    if mode is None or mode.channel is not Channel.TORCH or chosen.codec is not Codec.BF16:
        return
    transport = decide.transport_of(config, facts)
    if transport is not Transport.NCCL:
        what = f"torch's own bf16 compression works over NCCL alone, and this run would use {transport}"
        yield Problem(what, "use --compress fp16, or --mode ssgd", config.origin("compress"))


def _refusal(mode: Mode, codec: Codec) -> str:
    if not mode.compresses:
        return f"mode {mode.name} cannot compress what travels"
    if mode.channel is Channel.TORCH:
        return f"ddp compresses by torch's own hooks, and none of them is {codec}; use --mode ssgd"
    if codec is Codec.DGC:
        return f"dgc needs gradients that are averaged at every step, and {mode.name} does not do that"
    return f"{codec} needs workers that meet, but those of {mode.name} talk to a server"


def _with_optimizer(config: TrainConfig, chosen: Compression) -> Iterator[Problem]:
    if chosen.codec is Codec.DGC and config.optimizer not in (None, "sgd"):
        what = f"dgc keeps the momentum itself, so {config.optimizer} would count it twice"
        yield Problem(what, "use --optimizer sgd", config.origin("optimizer"))

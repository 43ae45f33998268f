"""Values of --compress: what is read, and what is refused with which message."""

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.load import from_set_flags, load
from paceline.core.errors import ConfigError, Problem
from paceline.plan.catalog import MODES
from paceline.plan.compression import CODECS, Unusable, read_compression
from paceline.plan.explain import explain
from paceline.plan.plan import Codec, Compression, Plan
from paceline.plan.resolve import resolve

FACTS = Facts(cuda_devices=0, cpu_count=2, modules=frozenset())


def resolved(**options: str) -> Plan:
    sets = from_set_flags([f"{name}={value}" for name, value in options.items()])
    loaded = load(flags=sets.entries)
    return resolve(loaded.config, FACTS, config_problems=loaded.problems)


def refused(**options: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        resolved(**options)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int8", (Codec.INT8, None)),
        (" FP16 ", (Codec.FP16, None)),
        ("topk", (Codec.TOPK, 0.01)),
        ("topk:0.25", (Codec.TOPK, 0.25)),
        ("dgc:1", (Codec.DGC, 1.0)),
        ("powersgd:4", (Codec.POWERSGD, 4.0)),
    ],
)
def test_a_codec_is_its_name_and_where_it_takes_one_an_amount(
    text: str, expected: tuple[Codec, float | None]
) -> None:
    assert read_compression(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "int9", "int8:2", "topk:0", "topk:1.5", "topk:", "topk:nan", "powersgd:1.5", "powersgd:0", ":"],
)
def test_anything_else_is_refused_with_a_hint(text: str) -> None:
    compression = read_compression(text)
    assert isinstance(compression, Unusable)
    assert compression.what
    assert compression.hint


def test_error_feedback_is_on_for_what_loses_much() -> None:
    on = {codec for codec in Codec if (c := resolved(compress=codec.value).compress) and c.error_feedback}
    assert on == set(Codec) - {Codec.FP32, Codec.FP16, Codec.BF16}
    assert resolved(compress="sign", error_feedback="no").compress == Compression(
        codec=Codec.SIGN, error_feedback=False
    )


def test_dgc_warms_up_for_a_twentieth_of_the_steps_by_default() -> None:
    assert resolved(compress="dgc", steps="400").compress == Compression(
        codec=Codec.DGC, amount=0.01, warmup=20
    )
    off = resolved(compress="dgc", compress_warmup="0").compress
    assert off is not None
    assert off.warmup == 0


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"compress": "int9"}, "int8"),
        ({"mode": "single", "compress": "int8"}, "ssgd"),
        ({"mode": "ddp", "compress": "int8"}, "ssgd"),
        ({"mode": "ddp", "compress": "bf16"}, "fp16"),
        ({"mode": "ddp", "compress": "fp16", "error_feedback": "yes"}, "ssgd"),
        ({"mode": "ps", "compress": "powersgd"}, "ssgd"),
        ({"mode": "asgd", "compress": "dgc"}, "topk"),
        ({"mode": "localsgd", "compress": "dgc"}, "topk"),
        ({"compress": "dgc", "optimizer": "adam"}, "--optimizer sgd"),
        ({"compress": "dgc", "error_feedback": "no"}, "topk"),
        ({"compress": "int8", "compress_warmup": "3"}, "dgc"),
        ({"error_feedback": "no"}, "--compress int8"),
        ({"compress_warmup": "3"}, "--compress int8"),
        ({"mode": "diloco", "compress": "powersgd", "fragments": "3"}, "int8"),
        ({"mode": "onebit"}, "--optimizer adam"),
        ({"mode": "onebit", "optimizer": "sgd"}, "--optimizer adam"),
        ({"mode": "onebit", "optimizer": "adam", "clip_norm": "1"}, "ssgd"),
        ({"mode": "onebit", "optimizer": "adam", "compress": "int8"}, "ssgd"),
    ],
)
def test_what_cannot_work_is_refused_once_with_the_reason(
    settings: dict[str, str], hint: str, wording: Wording
) -> None:
    problem = refused(**settings)
    assert hint in problem.hint
    wording(problem.what)


def test_every_codec_is_carried_by_some_mode_and_described() -> None:
    assert set().union(*(mode.compresses for mode in MODES.values())) == set(Codec) == set(CODECS)


@pytest.mark.parametrize(
    "settings",
    [
        {"compress": "topk:0.5", "num_workers": "4"},
        {"compress": "sign", "error_feedback": "no"},
        {"compress": "int8", "error_feedback": "no"},
        {"compress": "fp32"},
        {"compress": "dgc", "clip_norm": "1"},
        {"mode": "ps", "compress": "int8"},
        {"mode": "ddp", "compress": "powersgd"},
        {"compress": "int8"},
        {"mode": "onebit", "optimizer": "adam"},
    ],
    ids=str,
)
def test_the_plan_states_the_effects_of_compression(settings: dict[str, str], wording: Wording) -> None:
    lines = explain(resolved(**settings))
    topics = ("travels", "compressed", "remark")
    wording("\n".join(f"{line.topic}: {line.text}" for line in lines if line.topic in topics))

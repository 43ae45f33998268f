"""What may a user write after --compress, and what is refused with which words?"""

import pytest

from paceline.config.environment import Facts
from paceline.config.load import from_set_flags, load
from paceline.core.errors import ConfigError, Problem
from paceline.plan.catalog import MODES
from paceline.plan.compression import CODECS, Unusable, read_compression
from paceline.plan.explain import explain
from paceline.plan.plan import Codec, Compression, Plan
from paceline.plan.resolve import resolve

FACTS = Facts(cuda_devices=0, cpu_count=2, modules=frozenset())


def resolved(**said: str) -> Plan:
    sets = from_set_flags([f"{name}={value}" for name, value in said.items()])
    loaded = load(flags=sets.entries)
    return resolve(loaded.config, FACTS, found=loaded.problems)


def refused(**said: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        resolved(**said)
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
    found = read_compression(text)
    assert isinstance(found, Unusable)
    assert found.what
    assert found.hint


def test_error_feedback_is_on_for_what_loses_much() -> None:
    on = {codec for codec in Codec if (c := resolved(compress=codec.value).compress) and c.error_feedback}
    assert on == set(Codec) - {Codec.FP32, Codec.FP16, Codec.BF16}
    assert resolved(compress="sign", error_feedback="no").compress == Compression(
        codec=Codec.SIGN, error_feedback=False
    )


def test_dgc_warms_up_for_a_twentieth_of_the_steps_unless_told_otherwise() -> None:
    assert resolved(compress="dgc", steps="400").compress == Compression(
        codec=Codec.DGC, amount=0.01, warmup=20
    )
    off = resolved(compress="dgc", compress_warmup="0").compress
    assert off is not None
    assert off.warmup == 0


@pytest.mark.parametrize(
    ("said", "what", "hint"),
    [
        ({"compress": "int9"}, "there is no compression int9", "did you mean int8"),
        ({"mode": "single", "compress": "int8"}, "mode single cannot compress", "ssgd"),
        ({"mode": "ddp", "compress": "int8"}, "torch's own hooks", "ssgd"),
        ({"mode": "ddp", "compress": "bf16"}, "works over NCCL alone", "fp16"),
        ({"mode": "ddp", "compress": "fp16", "error_feedback": "yes"}, "no error feedback", "ssgd"),
        ({"mode": "ps", "compress": "powersgd"}, "talk to a server", "ssgd"),
        ({"mode": "asgd", "compress": "dgc"}, "averaged at every step", "topk"),
        ({"mode": "localsgd", "compress": "dgc"}, "averaged at every step", "topk"),
        ({"compress": "dgc", "optimizer": "adam"}, "count it twice", "--optimizer sgd"),
        ({"compress": "dgc", "error_feedback": "no"}, "dgc is its memory", "topk"),
        ({"compress": "int8", "compress_warmup": "3"}, "does not read compress_warmup", "dgc"),
        ({"error_feedback": "no"}, "nothing is compressed", "--compress int8"),
        ({"compress_warmup": "3"}, "nothing is compressed", "--compress int8"),
        ({"mode": "diloco", "compress": "powersgd", "fragments": "3"}, "cut through them", "int8"),
        ({"mode": "onebit"}, "made for Adam", "--optimizer adam"),
        ({"mode": "onebit", "optimizer": "sgd"}, "made for Adam", "--optimizer adam"),
        ({"mode": "onebit", "optimizer": "adam", "clip_norm": "1"}, "cannot be clipped", "ssgd"),
        ({"mode": "onebit", "optimizer": "adam", "compress": "int8"}, "cannot compress", "ssgd"),
    ],
)
def test_what_cannot_work_is_refused_once_with_the_reason(said: dict[str, str], what: str, hint: str) -> None:
    problem = refused(**said)
    assert what in problem.what
    assert hint in problem.hint


def test_every_codec_is_carried_by_some_mode_and_described() -> None:
    assert set().union(*(mode.compresses for mode in MODES.values())) == set(Codec) == set(CODECS)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"compress": "topk:0.5", "num_workers": "4"}, "or more"),
        ({"compress": "sign", "error_feedback": "no"}, "need not converge"),
        ({"compress": "int8", "error_feedback": "no"}, "rounds at random"),
        ({"compress": "fp32"}, "nothing smaller"),
        ({"compress": "dgc", "clip_norm": "1"}, "clip_norm / √N"),
        ({"mode": "ps", "compress": "int8"}, "come back from the server in full"),
        ({"mode": "ddp", "compress": "powersgd"}, "two plain steps"),
        ({"compress": "int8"}, "6 got faster"),
        ({"mode": "onebit", "optimizer": "adam"}, "stay as they are"),
    ],
)
def test_the_plan_says_what_a_user_should_know(said: dict[str, str], text: str) -> None:
    assert any(text in line.text for line in explain(resolved(**said)))

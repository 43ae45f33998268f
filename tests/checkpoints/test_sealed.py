"""Sealed files: any changed byte in any place is detected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.core.sealed_json import seal, unseal

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(facts=st.dictionaries(st.text(), _json, max_size=4), before=st.binary(max_size=20))
def test_what_was_sealed_is_read_back(facts: dict[str, object], before: bytes) -> None:
    raw, sha256 = seal(facts, before)
    assert unseal(raw, before) == (facts, sha256)


def test_every_other_value_of_every_byte_is_noticed() -> None:
    raw, _ = seal({"clock": 30, "lr": 0.1, "odd": [None, True, "é \\ "], "long": 0.30000000000000004}, b"x")
    for position in range(len(raw)):
        for value in set(range(256)) - {raw[position]}:
            with pytest.raises((ValueError, KeyError, TypeError)):
                unseal(raw[:position] + bytes([value]) + raw[position + 1 :], b"x")


@pytest.mark.parametrize("raw", [b"", b"[]", b"3", b"{}", b'{"sha256": "x", "facts": {}}', b"\x80\x04."])
def test_what_is_no_sealed_file_is_noticed(raw: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        unseal(raw)


def test_what_lies_beside_it_is_sealed_too(wording: Wording) -> None:
    raw, _ = seal({}, b"tensors")
    with wording.raises(ValueError):
        unseal(raw, b"Tensors")

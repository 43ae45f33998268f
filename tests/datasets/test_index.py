"""The index locates every record, and detects a mismatch with the data."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.core.sealed_json import seal
from paceline.datasets.index import Column, Index, Part, Shard, block_records_of, decode, encode

COLUMNS = (Column(name="x", kind="<f4", shape=(2,)), Column(name="y", kind="|u1", shape=()))
HASH = "0" * 64


def part(records: int, shard_records: int, block_records: int) -> Part:
    sizes = [min(shard_records, records - first) for first in range(0, records, shard_records)]
    shards = tuple(
        Shard(
            file=f"train-{number:06d}.npy",
            records=size,
            header_bytes=128,
            sha256=HASH,
            blocks=(HASH,) * -(-size // block_records),
            sums={},
        )
        for number, size in enumerate(sizes)
    )
    return Part(
        name="train",
        columns=COLUMNS,
        records=records,
        shard_records=shard_records,
        block_records=block_records,
        shards=shards,
    )


INDEX = Index(task="arrays", facts={"a": "ä"}, parts={"train": part(23, 10, 4)})


@given(st.integers(1, 300), st.integers(1, 50), st.integers(1, 20))
def test_every_record_has_one_place_and_places_follow_each_other(records: int, each: int, block: int) -> None:
    made = part(records, each, min(block, each))
    size = made.record_bytes
    seen: dict[tuple[str, int], int] = {}
    for record in range(records):
        number, place, follow = made.place_of(record)
        result = made.block_at(number)
        assert 0 <= place * size < result.size
        assert follow == result.size // size - place
        seen[result.file, result.start + place * size] = record
    assert len(seen) == records
    for (_, start), record in seen.items():
        assert start == 128 + record % each * size
    blocks = sum(len(shard.blocks) for shard in made.shards)
    covered = sum(made.block_at(number).size for number in range(blocks))
    assert covered == records * size


def test_an_index_comes_back_as_it_was() -> None:
    assert decode(encode(INDEX)) == INDEX
    assert INDEX.total_bytes == 23 * 9
    assert INDEX.parts["train"].dtype == np.dtype([("x", "<f4", (2,)), ("y", "|u1")])


def test_not_one_byte_of_an_index_changes_unnoticed() -> None:
    raw = encode(INDEX)
    for place in range(0, len(raw), 7):
        changed = bytearray(raw)
        changed[place] ^= 1
        with pytest.raises((ValueError, KeyError, TypeError)):
            decode(bytes(changed))


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../etc/passwd"},
        {"file": "/etc/passwd"},
        {"sha256": "none"},
        {"records": 9},
        {"blocks": [HASH]},
        {"header_bytes": -100},
    ],
)
def test_an_invented_index_is_refused(change: dict[str, object], wording: Wording) -> None:
    facts = json.loads(encode(INDEX))["facts"]
    facts["parts"]["train"]["shards"][0] |= change
    with wording.raises(ValueError):
        decode(seal(facts)[0])


def test_columns_hold_numbers_and_never_objects(wording: Wording) -> None:
    facts = json.loads(encode(INDEX))["facts"]
    facts["parts"]["train"]["columns"][0]["kind"] = "|O"
    with wording.raises(ValueError):
        decode(seal(facts)[0])


def test_a_block_is_about_a_mebibyte_and_has_a_record_at_least() -> None:
    assert block_records_of(1) == 1 << 20
    assert block_records_of(3080) == 340
    assert block_records_of(5 << 20) == 1

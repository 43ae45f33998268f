"""Reads survive broken connections, and missing or truncated data is told apart from a slow connection."""

import pytest
from tests.fixtures.servers.stores import MemoryStore, NoWaiting
from tests.fixtures.wording import Wording

from paceline.core.errors import ExitCode
from paceline.datasets.fetching import TRIES, read_block, read_index
from paceline.datasets.index import INDEX, Block
from paceline.storage.store import (
    DamagedDataError,
    MissingDataError,
    RefusedByStoreError,
    UnreachableStoreError,
    without_secrets,
)

DATA = bytes(range(256)) * 40
BLOCK = Block(file="a.npy", start=100, size=5000, sha256="")


def store(**options: object) -> MemoryStore:
    return MemoryStore({"a.npy": DATA}, **options)  # type: ignore[arg-type]  # its names


def test_a_read_that_breaks_resumes_where_it_broke() -> None:
    broken, clock = store(troubles=[10, 0, 0, 700]), NoWaiting()
    assert read_block(broken, BLOCK, clock) == DATA[100:5100]
    assert broken.reads == [
        ("a.npy", 100, 5000),
        ("a.npy", 110, 4990),
        ("a.npy", 110, 4990),
        ("a.npy", 110, 4990),
        ("a.npy", 810, 4290),
    ]
    assert clock.slept_s == [0.25, 0.5]


def test_a_line_that_brings_a_little_each_time_is_used_to_the_end() -> None:
    assert read_block(store(troubles=[1] * 40), BLOCK, NoWaiting()) == DATA[100:5100]


def test_a_line_that_brings_nothing_is_given_up_after_some_tries_each_later_than_the_one_before(
    wording: Wording,
) -> None:
    dead, clock = store(troubles=[0] * TRIES), NoWaiting()
    with wording.raises(UnreachableStoreError) as caught:
        read_block(dead, BLOCK, clock)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert clock.slept_s == [0.25, 0.5, 1.0, 2.0]


def test_a_file_that_ends_too_early_is_damaged_and_not_waited_for(wording: Wording) -> None:
    clock = NoWaiting()
    short = MemoryStore({"a.npy": DATA[:3000]})
    with wording.raises(DamagedDataError) as caught:
        read_block(short, BLOCK, clock)
    assert " verify memory://test/set" in caught.value.hint
    assert clock.slept_s == []


def test_a_file_that_is_not_there_is_missing(wording: Wording) -> None:
    with wording.raises(MissingDataError):
        read_block(store(), Block(file="b.npy", start=0, size=1, sha256=""), NoWaiting())
    with wording.raises(MissingDataError) as caught:
        read_index(store(), NoWaiting())
    assert " charlm --out memory://test/set" in caught.value.hint


def test_an_index_that_is_none_is_damaged(wording: Wording) -> None:
    with wording.raises(DamagedDataError):
        read_index(MemoryStore({INDEX: b"<html>log in first</html>"}), NoWaiting())


def test_a_store_that_sends_whole_files_is_refused(wording: Wording) -> None:
    class Deaf(MemoryStore):
        def read(self, name: str, start: int, size: int | None) -> bytes:
            return super().read(name, 0, None)

    with wording.raises(RefusedByStoreError):
        read_block(Deaf(dict.fromkeys(["a.npy"], bytes(10_000))), BLOCK, NoWaiting())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:p/ss@host/x is away", "http://host/x is away"),
        ("http://me:p@ss@host", "http://host"),
        ("GET https://h/d?X-Amz-Signature=abc failed", "GET https://h/d?… failed"),
    ],
)
def test_odd_passwords_and_signatures_are_not_repeated(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_secrets_in_an_address_are_not_repeated() -> None:
    text = 'Could not connect to the endpoint URL: "http://me:secret@host:9000/bucket"'
    assert without_secrets(text) == text.replace("me:secret@", "")

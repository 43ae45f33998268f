"""A pickle is read as data, and refused as soon as it is more than data."""

import functools
import os
import pickle
import pickletools
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.tasks.cifar_folder import python2_batch, python3_batch, rows_and_labels
from tests.fixtures.wording import Wording

from paceline.tasks.cifar10.plain_pickle import PlainPickleError, read_plain

PROTOCOLS = (2, 3, 4, 5)
ROWS, LABELS = rows_and_labels(3, seed=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_todays_python_and_numpy_write_is_read(protocol: int) -> None:
    held = read_plain(python3_batch(ROWS, LABELS, protocol))
    assert held.keys() == {"data", "labels"}
    assert np.array_equal(np.asarray(held["data"]), ROWS)
    assert held["labels"] == LABELS


def test_what_python_2_wrote_is_read() -> None:
    content = python2_batch(ROWS, LABELS)
    assert max(op.proto for op, _, _ in pickletools.genops(content)) == 2
    held = read_plain(content)
    assert held.keys() == {"batch_label", "labels", "data", "filenames"}
    assert held["batch_label"] == b"training batch 1 of 5"
    assert np.array_equal(np.asarray(held["data"]), ROWS)
    assert held["labels"] == LABELS


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_in_columns_keep_their_numbers(protocol: int) -> None:
    held = read_plain(pickle.dumps({"data": np.asfortranarray(ROWS)}, protocol))
    assert np.array_equal(np.asarray(held["data"]), ROWS)


class Hostile:
    """What its pickle asks for is a call."""

    def __init__(self, call: object, *arguments: object) -> None:
        self._reduced = call, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self._reduced


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(
    protocol: int, tmp_path: Path, wording: Wording
) -> None:
    trace = tmp_path / "was_here"
    content = pickle.dumps({"data": Hostile(os.mkdir, str(trace)), "labels": []}, protocol)
    with wording.raises(PlainPickleError):
        read_plain(content)
    assert not trace.exists()


@pytest.mark.parametrize(
    "held",
    [
        {"data": Hostile(eval, "1")},
        {"data": functools.partial(print)},
        {"data": np.array([object()], dtype=object)},
        {"data": np.zeros(3, dtype=np.float64)},
        {"data": np.zeros(2, dtype=[("a", np.uint8)])},
        {"data": {1, 2}},
        {("a", "b"): 1},
        [1, 2],
    ],
)
def test_whatever_is_no_plain_data_is_refused(held: object) -> None:
    with pytest.raises(PlainPickleError):
        read_plain(pickle.dumps(held, 4))


def test_names_that_are_only_put_together_in_the_wrong_way_are_refused() -> None:
    with pytest.raises(PlainPickleError):
        read_plain(
            b"\x80\x02}X\x01\x00\x00\x00ac_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86Rs."
        )


@given(st.data())
def test_broken_bytes_are_refused_and_never_an_accident(data: st.DataObject) -> None:
    content = bytearray(
        data.draw(st.sampled_from([python2_batch(ROWS, LABELS), python3_batch(ROWS, LABELS)]))
    )
    head = 200  # the rest is mostly pixels
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, head) | st.integers(len(content) - head, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    with suppress(PlainPickleError):
        read_plain(bytes(content[: data.draw(st.integers(0, len(content)))]))

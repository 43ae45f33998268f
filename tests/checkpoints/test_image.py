"""Snapshot image: a valid safetensors file, whose memory is reused for the next snapshot."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor

from paceline.checkpoints.snapshot import SnapshotImage

_DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
_tensors = st.builds(
    lambda shape, dtype: torch.arange(torch.Size(shape).numel()).to(dtype).reshape(shape),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(_DTYPES),
)


def filled(image: SnapshotImage, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    image.fill(tensors)
    return load(bytes(image.data))


@given(st.dictionaries(st.text(min_size=1).filter(lambda n: n != "__metadata__"), _tensors, max_size=6))
def test_any_tensors_are_read_back_by_the_formats_own_library(tensors: dict[str, Tensor]) -> None:
    again = filled(SnapshotImage(), tensors)
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)


def test_the_next_snapshot_of_the_same_shapes_takes_no_new_memory() -> None:
    image, live = SnapshotImage(), {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7)}
    filled(image, live)
    place = torch.frombuffer(image.data, dtype=torch.uint8).data_ptr()
    live["w"].mul_(2)
    assert torch.equal(filled(image, live)["w"], live["w"])
    assert torch.frombuffer(image.data, dtype=torch.uint8).data_ptr() == place


def test_new_tensors_may_come_and_others_change_their_shape() -> None:
    image = SnapshotImage()
    filled(image, {"w": torch.zeros(3)})
    again = filled(image, {"w": torch.ones(2, 2), "momentum": torch.ones(5, dtype=torch.float64)})
    assert torch.equal(again["w"], torch.ones(2, 2))
    assert again["momentum"].dtype == torch.float64


def test_it_is_a_copy_also_of_tensors_that_lie_crosswise() -> None:
    live = torch.arange(6.0).reshape(2, 3)
    image = SnapshotImage()
    again = filled(image, {"w": live.t()})
    live.zero_()
    assert again["w"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert load(bytes(image.data))["w"].tolist() == again["w"].tolist()


def test_a_value_that_the_format_cannot_hold_is_refused_when_saving() -> None:
    with pytest.raises(AssertionError, match=r"w is torch\.complex128"):
        SnapshotImage().fill({"w": torch.zeros(2, dtype=torch.complex128)})

"""Nested optimizer state: round trip through JSON and safetensors, whatever its shape."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline.checkpoints.snapshot import join_tensors, split_tensors

_tensors = st.builds(
    lambda shape, dtype: torch.arange(torch.Size(shape).numel()).to(dtype).reshape(shape),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]),
)
_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | _tensors
_keys = st.text() | st.integers() | st.sampled_from(["list", "dict", "__tensor__", "state.0"])
_nested = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=12,
)


def same(item: Any, other: Any) -> bool:  # Any: nested state
    if isinstance(item, Tensor):
        return isinstance(other, Tensor) and item.dtype == other.dtype and torch.equal(item, other)
    if isinstance(item, dict):
        return (
            isinstance(other, dict)
            and list(item) == list(other)
            and all(same(item[k], other[k]) for k in item)
        )
    if isinstance(item, list):
        return isinstance(other, list) and len(item) == len(other) and all(map(same, item, other))
    return type(item) is type(other) and bool(item == other)


@given(_nested)
def test_any_nested_state_comes_back_as_it_was(state: Any) -> None:  # Any: nested state
    skeleton, tensors = split_tensors(state)
    assert same(join_tensors(json.loads(json.dumps(skeleton)), tensors), state)


def test_tuples_come_back_as_lists_because_json_has_no_tuples() -> None:
    skeleton, tensors = split_tensors({"betas": (0.9, 0.999)})
    assert join_tensors(skeleton, tensors) == {"betas": [0.9, 0.999]}


def test_a_torch_optimizer_resumes_from_the_restored_state() -> None:
    own = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([own], lr=0.1)
    own.grad = torch.ones(3)
    optimizer.step()
    skeleton, tensors = split_tensors(optimizer.state_dict())
    again = torch.optim.Adam([own], lr=0.7)
    again.load_state_dict(join_tensors(json.loads(json.dumps(skeleton)), tensors))
    assert same(again.state_dict()["state"], optimizer.state_dict()["state"])
    assert again.param_groups[0]["lr"] == 0.1


def test_what_json_cannot_hold_is_refused_when_saving() -> None:
    with pytest.raises(AssertionError, match=r"state\.schedule "):
        split_tensors({"schedule": lambda: 1})


def test_a_saved_tensor_is_a_copy() -> None:
    live = torch.ones(2)
    _, tensors = split_tensors({"m": live})
    live.zero_()
    assert tensors["state.m"].tolist() == [1.0, 1.0]

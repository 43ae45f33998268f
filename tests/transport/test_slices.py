"""Is a vector cut into parts that cover it, each laid out as in the whole?"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paceline.core.errors import HopelessError
from paceline.transport.arena import ALIGN, Arena, Layout
from paceline.transport.partitioned_store import partition_slices, slice_pieces

WIDTHS = st.lists(st.integers(1, 70), min_size=1, max_size=5)


def model(widths: list[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(3, width), nn.BatchNorm1d(width)]
    return nn.Sequential(*layers)


@given(widths=WIDTHS, parts=st.integers(1, 6))
def test_every_number_is_in_exactly_one_part_and_part_0_has_what_is_not_a_parameter(
    widths: list[int], parts: int
) -> None:
    layout = Layout.of(model(widths))
    if layout.buffers_start // ALIGN < parts:
        return
    slices = partition_slices(layout, parts)
    covered = sorted(number for where in slices for number in range(where.start, where.stop))
    assert covered == list(range(layout.numel))
    assert slices[0].stop == layout.numel
    assert slices[0].start < layout.buffers_start
    assert all(where.start % ALIGN == 0 for where in slices)
    lengths = [min(where.stop, layout.buffers_start) - where.start for where in slices]
    assert max(lengths) - min(lengths) <= ALIGN


@given(widths=WIDTHS, parts=st.integers(1, 4))
def test_the_pieces_in_the_parts_make_up_every_tensor(widths: list[int], parts: int) -> None:
    arena = Arena(model(widths))
    if arena.layout.buffers_start // ALIGN < parts:
        return
    named = dict(arena.module.named_parameters())
    seen = {name: torch.zeros(tensor.numel(), dtype=torch.int64) for name, tensor in named.items()}
    for where in partition_slices(arena.layout, parts):
        for found in slice_pieces(arena.layout.parameters, where):
            flat = named[found.name].detach().reshape(-1)
            assert torch.equal(flat[found.in_tensor], arena.state[found.in_vector])
            seen[found.name][found.in_tensor] += 1
    assert all(bool((count == 1).all()) for count in seen.values())


def test_more_parts_than_blocks_are_refused() -> None:
    layout = Layout.of(nn.Linear(2, 2))
    with pytest.raises(HopelessError, match="too few for 3 parts"):
        partition_slices(layout, 3)

"""The gated feed-forward network equals its definition, and gates and ups stay together."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from paceline.tasks.llama.feed_forward import gated_network, pair_rows, split_pairs


@given(width=st.integers(1, 9), inner=st.integers(1, 9), tokens=st.integers(1, 5))
def test_values_and_gradients_are_those_of_the_formula(width: int, inner: int, tokens: int) -> None:
    rng = torch.Generator().manual_seed(width * 100 + inner * 10 + tokens)

    def some(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=rng, dtype=torch.float64).requires_grad_()

    stream, to, gate, up, down = (
        some(2, tokens, width),
        some(2, tokens, width),
        some(inner, width),
        some(inner, width),
        some(width, inner),
    )
    plain = to + (functional.silu(stream @ gate.T) * (stream @ up.T)) @ down.T
    tensor = gated_network(stream, pair_rows(gate, up), down, to)
    assert torch.allclose(tensor, plain)
    inputs, above = (stream, to, gate, up, down), torch.randn_like(plain)
    for mine, theirs in zip(
        torch.autograd.grad(tensor, inputs, above), torch.autograd.grad(plain, inputs, above), strict=True
    ):
        assert torch.allclose(mine, theirs)


@given(experts=st.integers(0, 3), inner=st.integers(1, 5), width=st.integers(1, 5))
def test_pairs_are_split_as_they_were_joined(experts: int, inner: int, width: int) -> None:
    sizes = (experts, inner, width) if experts else (inner, width)
    gate, up = torch.rand(sizes), torch.rand(sizes)
    pairs = pair_rows(gate, up)
    assert torch.equal(pairs[..., 0, :], gate[..., 0, :])
    assert torch.equal(pairs[..., 1, :], up[..., 0, :])
    again = split_pairs(pairs)
    assert torch.equal(again[0], gate)
    assert torch.equal(again[1], up)

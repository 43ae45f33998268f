"""The chunked loss equals plain cross-entropy, with its gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from paceline.tasks.llama.loss import mean_loss
from paceline.tasks.llama.ops import TiedGradient, embed_tokens, gated, scale_in_place


@given(
    tokens=st.integers(1, 40),
    words=st.integers(1, 30),
    width=st.integers(1, 8),
    at_once=st.integers(1, 50),
    above=st.floats(0.1, 3.0),
)
def test_any_piece_size_gives_the_plain_loss_and_gradients(
    tokens: int, words: int, width: int, at_once: int, above: float
) -> None:
    rng = torch.Generator().manual_seed(tokens * words)
    stream = torch.randn(tokens, width, generator=rng, dtype=torch.float64)
    weight = torch.randn(words, width, generator=rng, dtype=torch.float64)
    following = torch.randint(0, words, (tokens,), generator=rng)
    mine = [part.clone().requires_grad_() for part in (stream, weight)]
    plain = [part.clone().requires_grad_() for part in (stream, weight)]
    tensor = mean_loss(mine[0], mine[1], following, at_once)
    expected = functional.cross_entropy(plain[0] @ plain[1].T, following)
    assert float(tensor.detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
    torch.autograd.backward(tensor * above)
    torch.autograd.backward(expected * above)
    for a, b in zip(mine, plain, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, atol=1e-12)
    with torch.no_grad():
        assert float(mean_loss(stream, weight, following, at_once)) == pytest.approx(float(expected.detach()))


def test_bf16_scores_are_summed_in_float32() -> None:
    torch.manual_seed(0)
    stream, weight = torch.randn(64, 16).bfloat16(), torch.randn(500, 16).bfloat16()
    following = torch.randint(0, 500, (64,))
    tensor = mean_loss(stream.requires_grad_(), weight.requires_grad_(), following, 10)
    exact = functional.cross_entropy(stream.double() @ weight.double().T, following)
    assert tensor.dtype is torch.float32
    assert float(tensor.detach()) == pytest.approx(float(exact.detach()), rel=1e-2)


def test_parts_in_plain_torch_compute_what_their_names_state() -> None:
    both = torch.randn(3, 8)
    assert torch.equal(gated(both), functional.silu(both[:, ::2]) * both[:, 1::2])
    weight, tokens = torch.randn(5, 3), torch.tensor([[4, 0]])
    assert torch.equal(embed_tokens(weight, tokens), weight[tokens])
    assert torch.equal(scale_in_place(torch.ones(2), torch.tensor(0.5)), torch.full((2,), 0.5))


def test_a_tied_table_gets_one_gradient_of_both_its_uses() -> None:
    rng = torch.Generator().manual_seed(3)
    table = torch.randn(30, 8, generator=rng, dtype=torch.float64)
    tokens, following = (torch.randint(0, 30, (4, 12), generator=rng) for _ in range(2))
    mine, plain = (table.clone().requires_grad_() for _ in range(2))
    for _ in range(2):  # a second step adds to the first, as ever
        owed = TiedGradient()
        stream = embed_tokens(mine, tokens, owed).flatten(0, 1)
        torch.autograd.backward(3 * mean_loss(stream, mine, following.flatten(), 7, owed))
        assert owed.gradient is None
        scores = functional.embedding(tokens, plain).flatten(0, 1) @ plain.T
        torch.autograd.backward(3 * functional.cross_entropy(scores, following.flatten()))
    assert mine.grad is not None
    assert plain.grad is not None
    assert torch.allclose(mine.grad, plain.grad, atol=1e-12)

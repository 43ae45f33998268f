"""Mixture of experts (Mixtral): each token goes through the few experts that score highest.

A layer scores its experts for every token, and mixes what the best of them say by
their scores (softmax over those few). Tokens are sorted by expert, so each
expert does one product for all of its tokens; nothing is dropped. What comes out is added
up in the order of the tokens and not of the experts: the same bits every time, on a GPU too.

How many tokens an expert gets is known only when it computes, so these layers are not
compiled. No loss asks for equal use of the experts: who trains from nothing may want one.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.tasks.llama.feed_forward import pair_rows, split_pairs
from paceline.tasks.llama.ops import gated
from paceline.tasks.llama.shapes import LlamaShape

INIT_STD = 0.02


class Experts(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self._best = shape.experts_used
        self.choice = nn.Linear(shape.width, shape.experts, bias=False)
        # One tensor for all experts: a rank whose tokens leave one out still has its gradient, which is 0.
        self.gate_up_pairs = nn.Parameter(torch.empty(shape.experts, 2 * shape.inner, shape.width))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.width, shape.inner))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=INIT_STD)

    def forward(self, stream: Tensor, to: Tensor) -> Tensor:
        """Added to `to`."""
        tokens = stream.flatten(0, -2)
        shares, chosen = self._chosen(tokens)
        # By expert; a token is there once for each of its experts.
        order = chosen.flatten().argsort(stable=True)
        sizes = chosen.flatten().bincount(minlength=len(self.down)).tolist()
        output = self._each(tokens[order // self._best], sizes)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        mixed = output[place].view(-1, self._best, tokens.shape[-1]) * shares.unsqueeze(-1)
        return to + mixed.sum(-2).view_as(to)

    def _chosen(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """By token: the shares of its best experts, which are 1 in all, and who they are."""
        exact = torch.promote_types(tokens.dtype, torch.float32)
        scores, chosen = self.choice(tokens).softmax(-1, dtype=exact).topk(self._best, dim=-1)
        return (scores / scores.sum(-1, keepdim=True)).to(tokens.dtype), chosen

    def _each(self, tokens: Tensor, sizes: list[int]) -> Tensor:
        """Every expert, on its own stretch of the tokens."""
        parts = zip(torch.split(tokens, sizes), self.gate_up_pairs.unbind(), self.down.unbind(), strict=True)
        return torch.cat(
            [
                functional.linear(gated(functional.linear(part, pairs)), down)
                for part, pairs, down in parts
                if len(part)
            ]
        )


def experts_to_huggingface(state: Mapping[str, Tensor], shape: LlamaShape) -> dict[str, Tensor]:
    """Under the names in Mixtral's files, where each expert has three matrices of its own."""
    weights: dict[str, Tensor] = {}
    for number in range(shape.layers):
        ours = f"layers.{number}.network."
        theirs = _theirs(number)
        weights[f"{theirs}gate.weight"] = state[f"{ours}choice.weight"]
        pairs = state[f"{ours}gate_up_pairs"]
        down = state[f"{ours}down"]
        for expert in range(shape.experts):
            gate, up = split_pairs(pairs[expert])
            parts = {"w1": gate, "w2": down[expert], "w3": up}
            # Copies: a file of tensors does not take two that share their memory.
            weights |= {
                f"{theirs}experts.{expert}.{name}.weight": part.clone() for name, part in parts.items()
            }
    return weights


def experts_from_huggingface(theirs: Mapping[str, Tensor], shape: LlamaShape) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for number in range(shape.layers):
        ours = f"layers.{number}.network."
        name = _theirs(number)
        each = [f"{name}experts.{expert}." for expert in range(shape.experts)]
        weights[f"{ours}choice.weight"] = theirs[f"{name}gate.weight"]
        pairs = [pair_rows(theirs[f"{prefix}w1.weight"], theirs[f"{prefix}w3.weight"]) for prefix in each]
        weights[f"{ours}gate_up_pairs"] = torch.stack(pairs)
        weights[f"{ours}down"] = torch.stack([theirs[f"{prefix}w2.weight"] for prefix in each])
    return weights


def _theirs(layer: int) -> str:
    return f"model.layers.{layer}.block_sparse_moe."

"""How does attention look through a window? Each token sees itself and the few before it (Mistral 0.1)."""

import torch
from torch import Tensor
from torch.nn import functional


def within(window: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(batch, place, head, number), as in tasks/llama_attention.py; a token itself counts as one of `window`."""
    places = torch.arange(query.shape[-3], device=query.device)
    back = places.unsqueeze(-1) - places
    seen = (back >= 0) & (back < window)
    by_head = [part.transpose(-2, -3) for part in (query, key, value)]
    shares = query.shape[-2] != key.shape[-2]
    mixed = functional.scaled_dot_product_attention(*by_head, attn_mask=seen, enable_gqa=shares)
    return mixed.transpose(-2, -3)

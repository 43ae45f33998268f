"""How does attention look through a window? Each token sees itself and the few before it (Mistral 0.1)."""

import torch
from torch import Tensor
from torch.nn import functional


def within(window: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(batch, place, head, number), as in tasks/llama_attention.py; a token is one of its own window."""
    places = torch.arange(query.shape[-3], device=query.device)
    back = places.unsqueeze(-1) - places
    seen = (back >= 0) & (back < window)
    shares = query.shape[-2] != key.shape[-2]
    query, key, value = (part.transpose(-2, -3) for part in (query, key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, seen, enable_gqa=shares)
    return mixed.transpose(-2, -3)

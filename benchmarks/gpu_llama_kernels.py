"""Accuracy of the Llama kernels: errors of values and gradients, against plain torch in float64."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.tasks.llama.attention import causal_attention
from paceline.tasks.llama.feed_forward import gated_network
from paceline.tasks.llama.loss import mean_loss
from paceline.tasks.llama.model import Llama
from paceline.tasks.llama.ops import TiedGradient, can_flash, can_quack, embed_tokens, gated, scale_in_place
from paceline.tasks.llama.shapes import SHAPES
from paceline.tasks.optim import Adam

Row = dict[str, object]


def kernels(device: torch.device) -> Iterator[Row]:
    some = torch.empty(1, dtype=torch.bfloat16, device=device)
    yield {"what": "attention by flash-attn-4", "is_there": can_flash(some)}
    yield {"what": "gates and exponentials inside of products, by quack", "is_there": can_quack(some)}
    for dtype in (torch.float32, torch.bfloat16):
        for name, check in CHECKS.items():
            torch.manual_seed(0)
            for description, error in check(device, dtype).items():
                yield {
                    "what": f"{name}: {description}",
                    "dtype": str(dtype).removeprefix("torch."),
                    "error": error,
                }
    yield {"what": "a small model: loss and gradients", "dtype": "float32", "error": _model(device)}


def _loss(device: torch.device, dtype: torch.dtype, words: int = 5003) -> dict[str, float]:
    stream, weight = torch.randn(1000, 128, device=device), torch.randn(words, 128, device=device) / 8
    following = torch.randint(0, words, (1000,), device=device)

    def ours(a: Tensor, b: Tensor) -> Tensor:
        return mean_loss(a, b, following, 384)

    def plain(a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(a @ b.T, following)

    return _compared(ours, plain, (stream, weight), dtype)


def _loss_in_tiles(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Loss with a vocabulary size that quack's kernels accept."""
    return _loss(device, dtype, 5120)


def _network(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    def plain(stream: Tensor, pairs: Tensor, down: Tensor, to: Tensor) -> Tensor:
        both = stream @ pairs.T
        return to + (functional.silu(both[..., ::2]) * both[..., 1::2]) @ down.T

    sizes = ((3, 200, 256), (2 * 384, 256), (256, 384), (3, 200, 256))
    return _compared(
        gated_network,
        plain,
        tuple(torch.randn(*size, device=device) / size[-1] ** 0.5 for size in sizes),
        dtype,
    )


def _adam(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Two updates of a large tensor and of a small one."""
    start = [torch.randn(size, device=device).to(dtype) for size in (1_100_003, 1000)]
    slopes = [[torch.randn_like(item) for item in start] for _ in range(2)]

    def updated(
        build: Callable[[list[nn.Parameter]], Adam | torch.optim.AdamW], kind: torch.dtype
    ) -> list[nn.Parameter]:
        parameters = [nn.Parameter(item.to(kind, copy=True)) for item in start]
        optimizer = build(parameters)
        for some in slopes:
            for parameter, slope in zip(parameters, some, strict=True):
                parameter.grad = slope.to(kind)
            optimizer.step()
        return parameters

    ours = updated(lambda p: Adam(p, lr=1e-2, weight_decay=0.1, decoupled=True), dtype)
    plain = updated(lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1), torch.float64)
    return {name: _error(a, b) for name, a, b in zip(("large", "small"), ours, plain, strict=True)}


def _gated(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    def plain(both: Tensor) -> Tensor:
        return functional.silu(both[..., ::2]) * both[..., 1::2]

    return _compared(gated, plain, (torch.randn(3, 70, 2 * 3000, device=device),), dtype)


def _embedding(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    tokens = torch.randint(0, 300, (4, 50), device=device)
    weight = torch.randn(300, 96, device=device)
    return _compared(
        lambda w: embed_tokens(w, tokens), lambda w: functional.embedding(tokens, w), (weight,), dtype
    )


def _scale(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    numbers = torch.randn(100_003, device=device).to(dtype)
    errors = {}
    for by in (1.0, 0.3):
        tensor = scale_in_place(numbers.clone(), torch.tensor(by, device=device))
        errors[f"by {by}"] = _error(tensor, numbers.double() * by)
    return errors


def _attention(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    sizes = ((2, 300, 8, 64), (2, 300, 2, 64), (2, 300, 2, 64))
    parts = tuple(torch.randn(*size, device=device) for size in sizes)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Written out."""
        by_head = [part.transpose(1, 2) for part in (query, key, value)]
        key, value = (part.repeat_interleave(4, dim=1) for part in by_head[1:])
        scores = by_head[0] @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        mixed: Tensor = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
        return mixed.transpose(1, 2)

    return _compared(causal_attention, plain, parts, dtype)


def _tied(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Tied weights: an embedding table that also computes the logits."""
    tokens = torch.randint(0, 300, (4, 50), device=device)

    def ours(table: Tensor) -> Tensor:
        owed = TiedGradient()
        return mean_loss(embed_tokens(table, tokens, owed).flatten(0, 1), table, tokens.flatten(), owed=owed)

    def plain(table: Tensor) -> Tensor:
        return functional.cross_entropy(
            functional.embedding(tokens, table).flatten(0, 1) @ table.T, tokens.flatten()
        )

    return _compared(ours, plain, (torch.randn(300, 96, device=device) / 8,), dtype)


CHECKS = {
    "loss": _loss,
    "loss, by tiles": _loss_in_tiles,
    "network": _network,
    "adam": _adam,
    "gated": _gated,
    "embedding": _embedding,
    "scale": _scale,
    "attention": _attention,
    "tied": _tied,
}


def _compared(
    ours: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: tuple[Tensor, ...], dtype: torch.dtype
) -> dict[str, float]:
    """Relative errors of the value and of every gradient, for a gradient from above that is not 1."""
    mine = [part.to(dtype).requires_grad_() for part in inputs]
    exact = [part.detach().double().requires_grad_() for part in mine]
    result, right = ours(*mine), plain(*exact)
    above = torch.rand_like(right) + 0.5
    torch.autograd.backward(result, above.to(result.dtype))
    torch.autograd.backward(right, above)
    errors = {"forward": _error(result, right)}
    for number, (a, b) in enumerate(zip(mine, exact, strict=True)):
        assert a.grad is not None, "it was asked for"
        assert b.grad is not None, "it was asked for"
        errors[f"backward {number}"] = _error(a.grad, b.grad)
    return errors


def _error(tensor: Tensor, right: Tensor) -> float:
    return float((tensor.detach().double() - right.detach()).norm() / right.detach().norm())


def _model(device: torch.device) -> float:
    """On the device in float32, with all kernels, and on the CPU in float64."""
    torch.manual_seed(0)
    exact = Llama(SHAPES["llama_tiny"]).double()
    mine = Llama(SHAPES["llama_tiny"], compiled=False)
    mine.load_state_dict({name: tensor.float() for name, tensor in exact.state_dict().items()})
    mine.to(device)
    tokens = torch.randint(0, 256, (3, 65))
    losses = [m(tokens[:, :-1].to(d), tokens[:, 1:].to(d)) for m, d in ((exact, "cpu"), (mine, device))]
    for loss in losses:
        loss.backward()
    pairs = zip(mine.parameters(), exact.parameters(), strict=True)
    gradients = [(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None]
    return max(_error(losses[1].cpu(), losses[0]), *(_error(a.cpu(), b) for a, b in gradients))

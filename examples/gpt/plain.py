"""A small GPT on made text, in a loop like nanoGPT: own batches and rate, accumulation; one process."""

import argparse
import math

import torch
from torch import Tensor, nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
options = parser.parse_args()
BLOCK, BATCH, ACCUMULATE, WIDTH, RATE, WARM_UP = 32, 16, 2, 48, 3e-3, 10

torch.manual_seed(0)
ROWS = [f"{a} plus {b} is {a + b}; " for a in range(30) for b in range(30)]
text = "".join(ROWS[i] for i in torch.randperm(len(ROWS)).tolist())
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.wide(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(letters), WIDTH)
        self.places = nn.Parameter(torch.randn(BLOCK, WIDTH) * 0.02)
        self.layers = nn.Sequential(Layer(), Layer(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, len(letters), bias=False)
        self.head.weight = self.tokens.weight  # tied

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(x) + self.places))


def rate_of(step: int) -> float:
    """Linear warm-up, then a cosine."""
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    return RATE * (0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / max(1, options.steps - WARM_UP)))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)


def get_batch() -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - BLOCK - 1, (BATCH,))
    rows = torch.stack([data[i : i + BLOCK + 1] for i in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


for step in range(options.steps):
    for group in optimizer.param_groups:
        group["lr"] = rate_of(step)
    for _ in range(ACCUMULATE):
        x, y = get_batch()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / ACCUMULATE
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 20 == 0:
        print(f"step {step}: loss {ACCUMULATE * float(loss):.3f}")
print("loss", ACCUMULATE * float(loss))

"""A GAN on points of a ring, whose two optimizers step in turn: plain PyTorch, one process."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--points", type=int, default=4096)
options = parser.parse_args()

torch.manual_seed(0)
angle = torch.rand(options.points) * 2 * torch.pi
ring = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(options.points, 2)
loader = DataLoader(TensorDataset(ring), batch_size=128, shuffle=True)
generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
critic = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
is_real = nn.functional.binary_cross_entropy_with_logits
for epoch in range(options.epochs):
    for (real,) in loader:
        made = generator(torch.randn(len(real), 8))
        yes, no = critic(real), critic(made.detach())
        loss = is_real(yes, torch.ones_like(yes)) + is_real(no, torch.zeros_like(no))
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        score = critic(made)
        loss = is_real(score, torch.ones_like(score))
        generator_optimizer.zero_grad()
        loss.backward()
        generator_optimizer.step()
    with torch.no_grad():
        radius = generator(torch.randn(512, 8)).norm(dim=1)
    print(f"epoch {epoch}: radius {radius.mean():.2f}, real 1.00")

"""A CNN on synthetic images, with augmentation and a cosine schedule: plain PyTorch, one process."""

import argparse
import hashlib

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import paceline

run = paceline.join()
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--images", type=int, default=2048)
parser.add_argument("--in-order", action="store_true", help="no shuffling and no augmentation")
options = parser.parse_args()


class Images(Dataset[tuple[Tensor, int]]):
    """Bars in one of eight directions, under noise."""

    def __init__(self, count: int, seed: int, augment: bool) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(8, (count,), generator=rng)
        angle = self.labels * torch.pi / 8
        y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
        across = x * angle.cos()[:, None, None] + y * angle.sin()[:, None, None]
        noise = torch.randn(count, 16, 16, generator=rng)
        self.images = (torch.exp(-8 * across**2) + 0.7 * noise)[:, None]
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.augment:
            image = image.roll(tuple(torch.randint(-2, 3, (2,)).tolist()), (1, 2))
        return image, int(self.labels[index])


torch.manual_seed(0)
device = run.device
train = Images(options.images, seed=1, augment=not options.in_order)
test = Images(512, seed=2, augment=False)
loader = DataLoader(train, batch_size=64, shuffle=not options.in_order, num_workers=2)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 8),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * len(loader))
model, optimizer, loader, scheduler = run.prepare(model, optimizer, loader, scheduler)
for epoch in run.epochs(options.epochs):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in DataLoader(test, 256))
    print(f"epoch {epoch}: {right / len(test):.1%} right")
digest = hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in model.state_dict().values()))
print("sha256", digest.hexdigest())

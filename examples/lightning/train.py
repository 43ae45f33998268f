"""A LightningModule on made digits of seven segments: one process."""

import argparse

import lightning
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline.lightning

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--digits", type=int, default=2048)
options = parser.parse_args()
SEGMENTS = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111"]


def digits(count: int, seed: int) -> TensorDataset:
    rng = torch.Generator().manual_seed(seed)
    shapes = torch.tensor([[float(on) for on in segments] for segments in SEGMENTS])
    labels = torch.randint(len(SEGMENTS), (count,), generator=rng)
    return TensorDataset(shapes[labels] + 0.4 * torch.randn(count, 7, generator=rng), labels)


class Reader(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(7, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, len(SEGMENTS))
        )

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("right", (self.layers(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


lightning.seed_everything(0, verbose=False)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(
    max_epochs=options.epochs,
    gradient_clip_val=1.0,
    accumulate_grad_batches=2,
    enable_checkpointing=False,
    strategy=paceline.lightning.Strategy(),
    **quiet,
)
trainer.fit(
    Reader(),
    DataLoader(digits(options.digits, seed=1), batch_size=32, shuffle=True),
    DataLoader(digits(512, seed=2), batch_size=128),
)
print("steps", trainer.global_step)
print("right", float(trainer.callback_metrics["right"]))

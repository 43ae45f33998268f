"""How did the loss fall, by step? Read from the event log, as exports read it, with a point for each step."""

from pathlib import Path

import numpy as np

from paceline.api.result import Losses
from paceline.export.follower import points_of


def read_losses(run_dir: Path) -> Losses:
    record = points_of(run_dir, every=1)
    kept = [point for point in record.points if "train/loss" in point.values]
    return Losses(
        steps=np.array([point.step for point in kept], dtype=np.int64),
        values=np.array([point.values["train/loss"] for point in kept], dtype=np.float64),
        seconds=np.array([point.unix_s - record.started_unix_s for point in kept], dtype=np.float64),
    )

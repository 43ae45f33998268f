"""A built-in task on a sharded data set equals the task on its source files, bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import virtual_hash
from tests.fixtures.tasks.cifar_folder import cifar_folder
from tests.fixtures.wording import Wording
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.plan.plan import Option
from paceline.sync.samples import Indices
from paceline.tasks.cifar10.task import Cifar10Task
from paceline.tasks.load import load_task
from paceline.tasks.port import Task
from paceline.tasks.sharding import shard

SMALL: dict[str, Option] = {"context": 8, "width": 8, "layers": 1, "heads": 2}


def written(*words: str, out: Path, each: int) -> str:
    shard(words, out=str(out), shard_records=each, on_bytes=lambda *_: None)
    return str(out)


def same(item: Task, other: Task, indices: Indices) -> bool:
    """Do both give the same samples, of the same types?"""
    assert len(item.samples()) == len(other.samples())
    pairs = zip(*(tuple(task.samples().batch(indices)) for task in (item, other)), strict=True)
    return all(isinstance(a, Tensor) and isinstance(b, Tensor) and _equal(a, b) for a, b in pairs)


def _equal(tensor: Tensor, other: Tensor) -> bool:
    return tensor.dtype == other.dtype and torch.equal(tensor, other)


@pytest.mark.parametrize("mode", ["ssgd", "asgd"])
def test_a_text_in_shards_trains_to_the_same_bits(mode: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the lazy dög and the quick brown föx. " * 40, encoding="utf-8")
    stored = written("charlm", str(text), out=tmp_path / "set", each=100)
    hashes = {
        virtual_hash(small_plan(mode, task="charlm", steps=4, task_options={**SMALL, "file": file}))
        for file in (str(text), stored)
    }
    assert len(hashes) == 1
    tasks = [load_task("charlm", seed=0, options={**SMALL, "file": file}) for file in (str(text), stored)]
    models = []
    for task in tasks:
        torch.manual_seed(0)
        models.append(task.model())
    assert tasks[0].metrics(models[0]) == tasks[1].metrics(models[1])


def test_a_text_with_many_characters_has_wider_codes(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 700))), encoding="utf-8")
    stored = written("charlm", str(text), out=tmp_path / "set", each=99)
    here, there = (load_task("charlm", seed=0, options={**SMALL, "file": f}) for f in (str(text), stored))
    assert same(here, there, np.arange(0, 600, 7))


@pytest.mark.parametrize("options", [{}, {"subset": 7, "test_subset": 5}, {"valid": 7}])
def test_images_in_shards_are_the_same_images(
    options: dict[str, Any], tmp_path: Path
) -> None:  # Any: options
    folder = cifar_folder(tmp_path)
    stored = written("cifar10", str(folder), out=tmp_path / "set", each=3)
    here, there = (
        Cifar10Task(seed=0, data=data, width=2, hidden=4, **options) for data in (str(folder), stored)
    )
    order = np.random.default_rng(0).permutation(len(here.samples()))
    assert same(here, there, order)
    assert (here._means, here._deviations) == (there._means, there._deviations)
    torch.manual_seed(0)
    model = here.model().eval()
    assert here.metrics(model) == there.metrics(model)
    assert here.validation_size() == there.validation_size()
    rows = range(1, here.validation_size())
    with torch.no_grad():
        assert here.validate(model, rows) == there.validate(model, rows)


def test_holding_out_every_stored_image_is_refused(tmp_path: Path, wording: Wording) -> None:
    stored = written("cifar10", str(cifar_folder(tmp_path)), out=tmp_path / "set", each=9)
    with wording.raises(ConfigError):
        Cifar10Task(seed=0, data=stored, valid=40)


def test_windows_of_closes_in_shards_are_the_same_windows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"X_train": rng.standard_normal((90, 5, 2)), "y_train": rng.integers(2, size=90)}
    arrays |= {"X_test": rng.standard_normal((20, 5, 2)), "y_test": rng.integers(2, size=20)}
    np.savez(tmp_path / "closes.npz", **arrays)  # type: ignore[arg-type]  # arrays by name
    stored = written("sp500", str(tmp_path / "closes.npz"), out=tmp_path / "set", each=13)
    paths = (str(tmp_path / "closes.npz"), stored)
    here, there = (load_task("sp500", seed=0, options={"npz_path": path}) for path in paths)
    assert same(here, there, np.arange(len(here.samples())))

"""The character model learns from the training part of a text, and refuses invalid text."""

import errno
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real, virtual, virtual_hash
from tests.fixtures.wording import Wording
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Dtype, Option
from paceline.tasks.charlm import CharlmTask
from paceline.tasks.load import load_task
from paceline.tasks.text import toy_text
from paceline.worker.replay.schedule import replay

SMALL: Mapping[str, Option] = {"context": 16, "width": 16, "layers": 1, "heads": 2}


def written(folder: Path, text: str) -> str:
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def problem(**options: Option) -> str:
    with pytest.raises(ConfigError) as caught:
        load_task("charlm", seed=0, options=options)
    (only,) = caught.value.problems
    assert only.hint
    return only.what


def test_a_hundred_steps_learn_far_more_than_which_characters_there_are(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan(
        "single",
        task="charlm",
        steps=100,
        batch_sizes=(16,),
        dtype=Dtype.FLOAT32,
        task_options={"context": 32},
    )
    metrics = real(plan, tmp_path, launcher).result["metrics"]
    assert isinstance(metrics, dict)
    loss = float(str(metrics["val_loss"]))
    assert loss < 0.6 * math.log(32)  # a guess among the toy text's 32 characters
    assert float(str(metrics["bits_per_char"])) == pytest.approx(loss / math.log(2))
    assert float(str(metrics["perplexity"])) == pytest.approx(math.exp(loss))


def test_no_training_window_reaches_into_the_validation_part(tmp_path: Path) -> None:
    task = CharlmTask(seed=0, file=written(tmp_path, "ab" * 450 + "z" * 100), context=9)
    samples = task.samples()
    read, following = samples.batch(np.arange(len(samples)))
    assert len(samples) == 900 - 9
    assert task.characters == "abz"
    assert set(torch.cat([read, following]).flatten().tolist()) == {0, 1}


def test_the_metrics_use_the_validation_part_alone(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        """Is all but certain that the next character is a z."""

        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Parameter(torch.tensor([0.0, 0.0, 30.0]))

        def forward(self, read: Tensor) -> Tensor:
            return self.scores.expand(*read.shape, 3)

    task = CharlmTask(seed=0, file=written(tmp_path, "ab" * 450 + "z" * 100), context=9)
    assert task.metrics(Fixed())["val_loss"] < 1e-6


def test_parts_of_the_validation_add_up_to_its_metrics() -> None:
    task = CharlmTask(seed=0, **SMALL)  # type: ignore[arg-type]  # the names are its own
    torch.manual_seed(0)
    model, size = task.model(), task.validation_size()
    assert size > 200
    with torch.no_grad():
        parts = [
            task.validate(model, rows)["valid_loss"] for rows in (range(7), range(7, 150), range(150, size))
        ]
    reported, whole = task.scores({"valid_loss": math.fsum(parts)}, size), task.metrics(model)
    assert reported["valid_loss"] == pytest.approx(whole["val_loss"], rel=1e-6)
    assert reported["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-6)


def test_a_sample_is_a_window_and_what_follows_each_of_its_characters(tmp_path: Path) -> None:
    task = CharlmTask(seed=0, file=written(tmp_path, "abcdefghij" * 20), context=4)
    read, following = task.samples().batch(np.array([0, 3, 9]))
    words = ["".join(task.characters[code] for code in row) for row in [*read.tolist(), *following.tolist()]]
    assert words == ["abcd", "defg", "jabc", "bcde", "efgh", "abcd"]


def test_nothing_is_known_of_what_comes_later() -> None:
    model = CharlmTask(seed=0).model()
    first = torch.arange(8).unsqueeze(0)
    other = first.clone()
    other[0, 5:] = 20
    assert torch.allclose(model(first)[:, :5], model(other)[:, :5], atol=1e-6)
    assert not torch.allclose(model(first)[:, 5:], model(other)[:, 5:], atol=1e-6)


def test_characters_outside_ascii_are_characters_like_all_others(tmp_path: Path) -> None:
    task = CharlmTask(seed=0, file=written(tmp_path, "naïve 漢字 😀 " * 100), context=8)
    assert "😀" in task.characters
    assert len(task.characters) == len(set("naïve 漢字 😀 "))


def test_the_toy_text_is_made_from_the_seed() -> None:
    assert toy_text(1, 5000) == toy_text(1, 5000) != toy_text(2, 5000)
    assert toy_text(1, 5000).startswith(toy_text(1, 100))
    assert len(toy_text(3, 777)) == 777


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "localsgd"])
def test_it_is_trained_by_many_workers_and_replays_bit_by_bit(mode: str) -> None:
    plan = small_plan(mode, task="charlm", steps=4, task_options=dict(SMALL), pace_s=0.01)
    assert replay(plan, virtual(plan).history, virtual_hash(plan)).is_equal


def test_a_bad_file_is_one_clear_problem(tmp_path: Path, wording: Wording) -> None:
    assert problem(file=str(tmp_path / "none.txt")).endswith(f"none.txt': {os.strerror(errno.ENOENT)}")
    assert problem(file=str(tmp_path)).endswith(os.strerror(errno.EISDIR))
    (tmp_path / "image.png").write_bytes(b"text\xff\xfe\x00")
    wording(problem(file=str(tmp_path / "image.png")))
    (tmp_path / "zeros.bin").write_bytes(b"te\xc3\xbc" + bytes(1000))
    wording(problem(file=str(tmp_path / "zeros.bin")))
    wording(problem(file=written(tmp_path, "")))
    short = written(tmp_path, "a" * 99)
    wording(problem(file=short))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "paceline train --task charlm"),
        (b"short", "paceline train --task charlm"),
        (b"longer " * 20, "--task-option context=13"),
        (b"\xff\xd8\xff\xe0", "iconv -f LATIN1 -t UTF-8 "),
        (b"\0" * 2000, "paceline train --task charlm --task-option file=input.txt"),
    ],
    ids=["empty", "short", "longer", "an image", "zeros"],
)
def test_a_bad_file_is_refused_before_any_worker_starts_with_what_to_type_next(
    launcher: LocalLauncher, tmp_path: Path, content: bytes, hint: str, wording: Wording
) -> None:
    (tmp_path / "input").write_bytes(content)
    plan = small_plan("ssgd", task="charlm", task_options={"file": str(tmp_path / "input")})
    with pytest.raises(ConfigError) as caught:
        real(plan, tmp_path / "run", launcher)
    (only,) = caught.value.problems
    assert hint in only.hint
    wording(only.hint)
    assert not (tmp_path / "run" / "logs").exists(), "no participant ever lived"


def test_a_hint_that_names_a_context_names_one_that_works(tmp_path: Path) -> None:
    task = CharlmTask(seed=0, file=written(tmp_path, "longer " * 20), context=13, width=8, heads=2)
    assert task.metrics(task.model())["val_loss"] > 0


@pytest.mark.parametrize(
    "options",
    [{"heads": 5}, {"context": 0}, {"layers": "two"}, {"width": True}, {"context": 10_000}],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, Option], wording: Wording) -> None:
    wording(problem(**options))

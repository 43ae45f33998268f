"""The warm helper reports a task's number of samples, or what is wrong with it, and trains afterwards."""

from pathlib import Path

import pytest
from tests.fixtures.plans import TINY, small_plan
from tests.fixtures.runs import real

from paceline.core.errors import ConfigError, NotReadyError
from paceline.launchers.local import LocalLauncher


def count(launcher: LocalLauncher, task: str, **options: bool | int | float | str) -> int:
    return launcher.count_samples(task, options=options, seed=0, dtype="float32")


def test_a_task_is_counted_and_the_helper_trains_as_before(launcher: LocalLauncher, tmp_path: Path) -> None:
    assert count(launcher, "digits") == 1437
    assert count(launcher, TINY, num_samples=31) == 31
    assert real(small_plan("ssgd"), tmp_path / "run", launcher).result["gradients"] == 24
    assert count(launcher, TINY) == 97


@pytest.mark.parametrize(
    ("task", "options", "what"),
    [
        (TINY, {"num_sample": 3}, "unexpected keyword argument 'num_sample'"),
        ("nowhere:Task", {}, "nowhere:Task cannot be loaded"),
        ("tests.fixtures.tasks:ForgetfulTask", {}, "has no loss, metrics"),
        ("tests.fixtures.tasks:DatalessTask", {}, "FileNotFoundError: nothing at data/train.csv"),
        ("tests.fixtures.tasks:ExitingTask", {}, "its process ended with exit code 9"),
    ],
)
def test_what_is_wrong_with_a_task_is_its_own_error(
    task: str, options: dict[str, int], what: str, launcher: LocalLauncher
) -> None:
    with pytest.raises(ConfigError) as caught:
        count(launcher, task, **options)
    assert what in caught.value.what


def test_a_task_that_is_not_ready_keeps_its_kind_of_error(launcher: LocalLauncher) -> None:
    with pytest.raises(NotReadyError, match="not installed here"):
        count(launcher, "tests.fixtures.tasks:UninstalledTask")

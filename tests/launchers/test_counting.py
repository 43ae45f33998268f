"""The warm helper reports a task's number of samples, or what is wrong with it, and trains afterwards."""

from pathlib import Path

import pytest
from tests.fixtures.runs.plans import TINY, small_plan
from tests.fixtures.runs.run_plans import real
from tests.fixtures.wording import Wording

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
    ("task", "options"),
    [
        (TINY, {"num_sample": 3}),
        ("nowhere:Task", {}),
        ("tests.fixtures.tasks.user_tasks:ForgetfulTask", {}),
        ("tests.fixtures.tasks.user_tasks:DatalessTask", {}),
        ("tests.fixtures.tasks.user_tasks:ExitingTask", {}),
    ],
)
def test_what_is_wrong_with_a_task_is_its_own_error(
    task: str, options: dict[str, int], launcher: LocalLauncher, wording: Wording
) -> None:
    with pytest.raises(ConfigError) as caught:
        count(launcher, task, **options)
    wording(caught.value.what)


def test_a_task_that_is_not_ready_keeps_its_kind_of_error(launcher: LocalLauncher, wording: Wording) -> None:
    with wording.raises(NotReadyError):
        count(launcher, "tests.fixtures.tasks.user_tasks:UninstalledTask")

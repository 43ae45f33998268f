"""Can the task do anything with what was said about its data?"""

from collections.abc import Callable

from paceline.config.train_config import TrainConfig
from paceline.config.values import shown
from paceline.errors import Problem
from paceline.plan import decide
from paceline.plan.catalog import DATA_OPTIONS, TASKS
from paceline.plan.data_url import what_is_wrong


def check_data(config: TrainConfig, are_sound: Callable[..., bool]) -> list[Problem]:
    if not are_sound("task"):
        return []
    task, option, where = decide.task_of(config).lower(), decide.data_option_of(config), config.origin("data")
    said = decide.task_options_of(config).get(option)
    if isinstance(said, str) and (wrong := what_is_wrong(said)) is not None:
        return [Problem(*wrong, where or config.origin(f"task_options.{option}"))]
    if config.data is None:
        return []
    if task in TASKS and task not in DATA_OPTIONS:
        what = f"data is {shown(config.data)}, but task {task} makes its own"
        return [Problem(what, f"leave it out, or train {' or '.join(DATA_OPTIONS)}: --task cifar10", where)]
    if option in (config.task_options or {}):
        what = f"the data is said twice: by --data and by the task's option {option}"
        return [Problem(what, "keep one of them, such as --data synthetic", where)]
    return []

"""Training request: flags, variables and a config file become a plan and a run folder."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from paceline.config.environment import Facts, World, apply_world, probe_machine
from paceline.config.load import from_set_flags, load
from paceline.config.train_config import TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import Problem, RunFolderError
from paceline.monitoring.metrics.server_process import MetricsEndpoint, metrics_endpoint
from paceline.plan.decide import task_of, task_options_of
from paceline.plan.plan import Dtype, Option, Plan
from paceline.plan.resolve import resolve
from paceline.training.session import Session

# `choose_run_dir` predicts the folder, for commands that only show a plan. `claim_run_dir` creates it: of
# several processes that choose the same name, the one whose `mkdir` succeeds owns it.


def holds_run(folder: Path) -> bool:
    return (folder / "plan.json").exists()


def run_dir_problems(config: TrainConfig, base: Path) -> list[Problem]:
    """Problems with the folder given by run_dir, if it was given."""
    if config.run_dir is None:
        return []
    if config.save_dir is not None:
        both = (
            f"run_dir is {config.run_dir} and save_dir is {config.save_dir}, but only one of them may be set"
        )
        return [Problem(both, "keep one of them", config.origin("save_dir"), RunFolderError.code)]
    folder = base / config.run_dir
    message = hint = ""
    try:
        if folder.exists() and not folder.is_dir():
            message = f"run_dir {folder} is a file, not a folder"
            hint = "name a new folder, such as runs/my-run"
        elif holds_run(folder):
            message = f"run_dir {folder} already holds a run"
            hint = "name another folder, or leave run_dir out to get a new one under runs/"
    except OSError as error:
        message = f"run_dir {folder} cannot be used: {error.strerror}"
        hint = "name another folder"
    return [Problem(message, hint, config.origin("run_dir"), RunFolderError.code)] if message else []


def choose_run_dir(first: Path) -> Path:
    """The first of runs/<name>, runs/<name>-2 … that does not exist; `first` has no number."""
    return next(folder for folder in _numbered(first) if not folder.exists())


@contextmanager
def claimed_run_dir(first: Path, *, is_named: bool) -> Iterator[Path]:
    """The claimed folder; it is removed on an error if it is still empty."""
    folder = claim_run_dir(first, is_named=is_named)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # refuses a folder that holds anything
        raise


def claim_run_dir(first: Path, *, is_named: bool) -> Path:
    """Create the run folder: `first` if the user named it, otherwise the first free numbered one."""
    if is_named and not holds_run(first):
        first.mkdir(parents=True, exist_ok=True)
        return first
    first.parent.mkdir(parents=True, exist_ok=True)
    for candidate in _numbered(first):
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("numbers do not end")


def existing_runs(first: Path) -> list[Path]:
    """The folders of this name that hold a run, lowest number first."""
    numbers = (folder.name.removeprefix(f"{first.name}-") for folder in first.parent.glob(f"{first.name}-*"))
    later = sorted(int(number) for number in numbers if number.isdecimal())
    folders = [first, *(first.with_name(f"{first.name}-{number}") for number in later)]
    return [folder for folder in folders if holds_run(folder)]


def _numbered(folder: Path) -> Iterator[Path]:
    yield folder
    yield from (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))


class SampleCounter(Protocol):
    def count_samples(self, task: str, *, options: Mapping[str, Option], seed: int, dtype: str) -> int:
        """The number of training samples of the task; raises the task's own error if it cannot be built."""
        ...


def count_samples(config: TrainConfig, counter: SampleCounter) -> int:
    """The number of training samples of the config's task. Needed before there is a plan."""
    name = task_of(config)
    return counter.count_samples(
        name if ":" in name else name.lower(),
        options=task_options_of(config),
        seed=config.seed or 0,
        dtype=config.dtype or Dtype.FLOAT32,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    plan: Plan
    run_dir: Path  # the first free folder at the time of the request
    first_dir: Path  # the same without a number
    facts: Facts
    is_named: bool = False  # given by the user with run_dir
    metrics: MetricsEndpoint | None = None  # None: no metrics are served


def read_request(
    session: Session,
    flags: Sequence[RawSetting],
    counter: SampleCounter | None = None,
    *,
    world: World | None = None,
    may_hold_run: bool = False,
) -> Request:
    """Resolve flags, variables and the config file into a plan and a run folder.

    A plan in epochs needs the number of samples: `counter` counts them, or a launcher started only for it.
    `world` is given when torchrun started the workers; `may_hold_run` when an existing run may be resumed.
    Raises ConfigError with every problem of every source.
    """

    def count(config: TrainConfig) -> int:
        if counter is not None:
            return count_samples(config, counter)
        with session.start_launcher() as launcher:
            return count_samples(config, launcher)

    sets = from_set_flags(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    config = loaded.config if world is None else apply_world(loaded.config, world)
    facts = replace(probe_machine(config), world=world)
    problems = [*sets.problems, *loaded.problems]
    if not may_hold_run:
        problems += run_dir_problems(config, session.folder)
    plan = resolve(config, facts, config_problems=problems, count=count)
    is_named = config.run_dir is not None
    first_dir = session.folder / (config.run_dir or Path(config.save_dir or "runs") / plan.run)
    run_dir = first_dir if is_named else choose_run_dir(first_dir)
    return Request(
        plan=plan,
        run_dir=run_dir,
        first_dir=first_dir,
        facts=facts,
        is_named=is_named,
        metrics=metrics_endpoint(config, session.folder),
    )

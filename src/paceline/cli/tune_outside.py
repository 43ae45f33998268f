"""What does laying out a search ask of the user's settings and of this machine?

A process with torch is started only if samples must be counted, or a searched
option of the task must be tried.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from paceline.cli.session import Session
from paceline.cli.trainer import Trainer
from paceline.config.facts import Facts, look_up_facts
from paceline.config.load import Loaded, load
from paceline.config.sources import from_sets
from paceline.config.train_config import TrainConfig
from paceline.config.written import Written
from paceline.plan.decide import task_of, task_options_of


class SessionOutside:
    """See app/tune_layout.py, `Outside`."""

    def __init__(self, session: Session, flags: Sequence[Written]) -> None:
        sets = from_sets(session.common.sets)
        self.problems = sets.problems
        self._session, self._said = session, (*flags, *sets.entries)
        self._trainer: Trainer | None = None
        self._facts: dict[tuple[str | None, ...], Facts] = {}
        self._counted: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._trainer is not None:
            self._trainer.close()

    def read(self, drawn: Sequence[Written]) -> Loaded:
        """The user's settings, with these on top."""
        common = self._session.common
        return load(flags=[*self._said, *drawn], variables=self._session.variables, file=common.config)

    def facts(self, config: TrainConfig) -> Facts:
        named = (config.task, config.mode, config.aggregate)
        if named not in self._facts:
            self._facts[named] = look_up_facts(config)
        return self._facts[named]

    def count(self, config: TrainConfig) -> int:
        """Training samples of its task; its own error if that cannot be built."""
        known = repr((task_of(config), sorted(task_options_of(config).items()), config.seed, config.dtype))
        if known not in self._counted:
            if self._trainer is None:
                self._trainer = self._session.start_trainer()
            self._counted[known] = self._trainer.count_samples(config)
        return self._counted[known]

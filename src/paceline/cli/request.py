"""What does the user ask to be trained, and where? Flags, variables and a file to a plan and a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cli.run_dirs import choose_run_dir, run_dir_problems
from paceline.cli.session import Session
from paceline.cli.trainer import Trainer
from paceline.config.facts import Facts, look_up_facts
from paceline.config.load import load
from paceline.config.sources import from_sets
from paceline.config.train_config import TrainConfig
from paceline.config.world import World, adopt
from paceline.config.written import Written
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    plan: Plan
    run_dir: Path  # where it would be trained now
    first_dir: Path  # the same without a number
    facts: Facts
    is_named: bool = False  # the user said which folder


def read_request(
    session: Session,
    flags: Sequence[Written],
    trainer: Trainer | None = None,
    *,
    world: World | None = None,
    may_hold_run: bool = False,
) -> Request:
    """Raises ConfigError with every problem, wherever it was found.

    What only the task knows is asked of the `trainer`; without one, of one that is started for it.
    `world` when somebody else started the workers; `may_hold_run` when the folder may be one to go on with.
    """

    def count(config: TrainConfig) -> int:
        if trainer is not None:
            return trainer.count_samples(config)
        asked = session.start_trainer()
        try:
            return asked.count_samples(config)
        finally:
            asked.close()

    sets = from_sets(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    config = loaded.config if world is None else adopt(loaded.config, world)
    facts = replace(look_up_facts(config), world=world)
    found = [*sets.problems, *loaded.problems]
    if not may_hold_run:
        found += run_dir_problems(config, session.folder)
    plan = resolve(config, facts, found=found, count=count)
    is_named = config.run_dir is not None
    first_dir = session.folder / (config.run_dir or Path(config.save_dir or "runs") / plan.run)
    run_dir = first_dir if is_named else choose_run_dir(first_dir)
    return Request(plan=plan, run_dir=run_dir, first_dir=first_dir, facts=facts, is_named=is_named)

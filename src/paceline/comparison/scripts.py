"""Training scripts in a comparison: what a few probes of the script say about all runs, before any starts.

A share of the work is the same in every mode, so the runs of a script do equal work as those of a task do.
Rounds have different seeds, and a model that the script does not seed itself begins differently in each:
its fingerprint is measured once for each round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config.train_config import TrainConfig
from paceline.core.errors import Problem
from paceline.plan.codec import Json
from paceline.plan.plan import Plan
from paceline.training.script import ScriptProber, file_problems, options_of, probe, unread_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedScript:
    """A script, and what its probes found."""

    file: Path
    arguments: tuple[str, ...]
    probed: Mapping[int, dict[str, Json]]  # by number of workers
    models: tuple[str, ...]  # the model's fingerprint in each round

    @property
    def name(self) -> str:
        return " ".join([self.file.name, *self.arguments])

    @property
    def num_samples(self) -> int | None:
        """Samples of an epoch; None: the script draws its samples itself."""
        return int(options_of(next(iter(self.probed.values())))["num_samples"]) or None

    def in_round(self, plan: Plan, number: int) -> Plan:
        return replace(plan, task_options={**plan.task_options, "model": self.models[number]})


def script_problems(config: TrainConfig, file: Path) -> list[Problem]:
    """Problems that are known before the script is started."""
    return [*unread_problems(config), *file_problems(file)]


def probe_for_rounds(
    config: TrainConfig,
    file: Path,
    arguments: Sequence[str],
    folder: Path,
    prober: ScriptProber,
    *,
    worker_counts: Sequence[int],
    repeats: int,
) -> ComparedScript:
    """Start the script once for each number of workers, and once more for each further round."""

    def probed(num_workers: int, number: int) -> dict[str, Json]:
        run_config = replace(config, num_workers=num_workers, seed=(config.seed or 0) + number)
        return probe(run_config, file, arguments, folder, prober)

    by_count = {count: probed(count, 0) for count in worker_counts}
    first = next(iter(by_count.values()))
    later = [probed(worker_counts[0], number) for number in range(1, repeats)]
    return ComparedScript(
        file=file,
        arguments=tuple(arguments),
        probed=by_count,
        models=tuple(str(options_of(found)["model"]) for found in (first, *later)),
    )


def about_script(script: ComparedScript, worker_counts: Sequence[int]) -> list[Problem]:
    """Problems of comparing this script."""
    options = options_of(script.probed[worker_counts[0]])
    if options["per_worker"] and len(worker_counts) > 1:
        message = 'the script prepares batch="per-worker", so more workers take more samples in a step'
        hint = "name one number of workers, or leave batch=… out of run.prepare"
        return [Problem(message, hint, "--num-workers")]
    return []

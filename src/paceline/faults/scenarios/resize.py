"""Scenario resize: workers are killed and frozen while their number changes 2 → 4 → 3; same bits at the end.

Twelve shards, so that two, three and four workers share them evenly. Afterwards the run is repeated without
faults, and the SHA-256 of the parameters is compared.
"""

import random
import signal
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

from paceline.events.read import History
from paceline.faults import workers
from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter, at_most, exactly
from paceline.faults.scenarios.measurements import proofs
from paceline.faults.scenarios.training import TrainingRun, default_plan, events_of, training
from paceline.plan.codec import Json
from paceline.plan.plan import Elastic, Plan

SHARDS = 12
SIZES = (2, 4, 3)
DEFAULT_TIMES = 12
PACE_S = 0.01  # for a shard
FROZEN_S = 0.2  # shorter than a lease: it only delays the others


def resize(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    return resize_by_seed(run_dir, times, 7, reporter)


def resize_by_seed(run_dir: Path, faults: int, seed: int, reporter: ScenarioReporter) -> list[Expectation]:
    """This number of faults, spread over the sizes 2, 4, 3, repeatedly."""
    plan = resizing_plan(SIZES[0])
    with training(plan, run_dir) as run:
        faulty = _FaultyRun(run, random.Random(seed), SIZES[0], run.until_in(SIZES[0], 0))
        for number, size in enumerate(_sizes(faults)):
            faulty.resize(size)
            faulty.strike()
            reporter(f"fault {number + 1} of {faults}, with {size} workers")
            reporter.so_far(_resized(faulty))
        faulty.resize(SIZES[-1])
        history = run.finish(60, early=True)
        result = run.result or {}
    expectations = reporter.settled(_resized(faulty))
    expectations += [
        exactly(
            "SHA-256 of the parameters equals that of an undisturbed run",
            _undisturbed(plan, run_dir, history),
            _hash(result),
        ),
        exactly("no worker is restarted without being lost", _restarted(history, faulty), 0),
    ]
    return [*reporter.settled(expectations), *proofs(run_dir, history, reporter)]


def _resized(faulty: "_FaultyRun") -> list[Expectation]:
    description = f"a change of size ({SIZES[0]} → {SIZES[1]} → {SIZES[2]}) completes, maximum"
    return [at_most(description, max(faulty.resized_s), 10.0, "s")] if faulty.resized_s else []


def resizing_plan(workers: int) -> Plan:
    base = default_plan(workers=SHARDS, steps=1_000_000, pace_s=PACE_S)
    elastic = Elastic(workers=workers, min_workers=1, max_workers=6, restarts=30_000, longest_wait_s=0.1)
    return replace(base, elastic=elastic)


def _sizes(faults: int) -> list[int]:
    """The size at each fault: all sizes at least once, if there are as many faults."""
    stretch = max(1, faults // (2 * len(SIZES)))
    return [size for size in islice(cycle(SIZES), faults) for _ in range(stretch)][:faults]


@dataclass(slots=True)
class _FaultyRun:
    run: TrainingRun
    rng: random.Random
    size: int
    generation: int
    resized_s: list[float] = field(default_factory=list)
    kills: int = 0

    def resize(self, size: int) -> None:
        if size == self.size:
            return
        began_ns = self.run.now_ns()
        if size > self.size:
            workers.add(self.run.run_dir, size - self.size)
        else:
            workers.remove(self.run.run_dir, self.size - size)
        self.resized_s.append((self.run.now_ns() - began_ns) / 1e9)
        self.size = size
        self.generation = self.run.until_in(size, self.generation)

    def strike(self) -> None:
        self.run.wait(self.rng.uniform(0.05, 0.3))
        victim = self.rng.choice(_members(self.run.history(), self.generation))
        if self.rng.random() < 0.25:
            self.run.signal(victim, signal.SIGSTOP)
            self.run.wait(FROZEN_S)
            self.run.signal(victim, signal.SIGCONT)
        else:
            self.kills += 1
            self.run.signal(victim, signal.SIGKILL)
            self.generation = self.run.until_in(self.size, self.generation)


def _members(history: History, generation: int) -> list[str]:
    entered = events_of(history, "generation_entered")
    event = next(e for e in entered if int(str(e.fields["number"])) == generation)
    return str(event.fields["workers"]).split(",")


def _restarted(history: History, faulty: _FaultyRun) -> int:
    started = len(events_of(history, "worker_started"))
    left = sum(event.fields["reason"] == "left" for event in events_of(history, "worker_finished"))
    return started - faulty.kills - left - faulty.size


def _undisturbed(plan: Plan, run_dir: Path, history: History) -> str:
    """Hash of the run, repeated with the initial number of workers and without faults."""
    rows = [row for own in history.steps.values() for row in own if row.synced]
    steps = 1 + max(row.position // plan.num_workers for row in rows)
    with training(replace(plan, steps=steps, pace_s=0.0), run_dir / "undisturbed") as repeated:
        repeated.finish(120, early=False)
        return _hash(repeated.result or {})


def _hash(result: dict[str, Json]) -> str:
    hashes = result.get("state_sha256")
    assert isinstance(hashes, dict), "a finished run has a result"
    return ", ".join(sorted(set(map(str, hashes.values()))))

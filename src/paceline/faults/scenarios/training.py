"""Run under test: trains in a thread and is observed through its event log.

Every measurement comes from the event log, whose clock also stamps the injected faults.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.coordinator.run_endpoint import Coordinators
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import TrainingError
from paceline.events.follow import LogFollower
from paceline.events.read import History, PlainEvent, read_history
from paceline.events.schema import StepRow
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import Json
from paceline.plan.plan import Elastic, Plan, StrategyOptions
from paceline.plan.schedule import ROUND_MODES
from paceline.sync.fault_rules import StragglerRule
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

POLL_S = 0.01
START_S = 60.0
MAX_WAIT_S = 120.0  # for what takes seconds: a busy machine must not fail the scenario
LIVE_ROWS = 64  # of each worker, during the run
DEFAULT_ROUND_STEPS = 4  # steps, in modes that have rounds
PASSING = (StragglerRule(probability=0.2, factor=4.0),)  # so that the adaptive mode has decisions to make


def default_plan(
    *,
    workers: int,
    steps: int,
    pace_s: float = 0.05,
    mode: str = "ssgd",
    shards: int | None = None,
) -> Plan:
    """Small enough for any machine: a step takes its pace. As many shards as workers by default."""
    shards = shards or workers
    every = DEFAULT_ROUND_STEPS if mode in (*ROUND_MODES, "fedavg", "adaptive") else 1
    elastic = Elastic(workers=workers, min_workers=1, max_workers=workers, restarts=3000, longest_wait_s=0.1)
    return Plan(
        run="lab",
        task="digits",
        mode=mode,
        num_workers=shards,
        steps=steps,
        batch_sizes=(8,) * shards,
        pace_s=pace_s,
        strategy=StrategyOptions(
            sync_every=every,
            backup_workers=int(mode == "backup"),
            clients_per_round=0.5 if mode == "fedavg" else 1.0,
        ),
        stragglers=PASSING if mode == "adaptive" else (),
        elastic=elastic,
    )


@dataclass(slots=True)
class TrainingRun:
    plan: Plan
    run_dir: Path
    launcher: LocalLauncher
    coordinators: Coordinators | None = None
    result: dict[str, Json] | None = None
    error: BaseException | None = None
    _thread: threading.Thread | None = None
    _clock: SystemClock = field(default_factory=SystemClock)
    _live: LogFollower | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="training")
        self._thread.start()
        path = self.run_dir / "events.jsonl"
        deadline_s = monotonic_s() + START_S
        while not path.exists() and self.error is None and monotonic_s() < deadline_s:
            self._clock.sleep(POLL_S)

    def _run(self) -> None:
        try:
            self.result = train(
                self.plan, self.run_dir, SilentWatcher(), warm=self.launcher, coordinators=self.coordinators
            )
        except BaseException as error:  # raised by `finish`
            self.error = error

    def finish(self, within_s: float, *, early: bool) -> History:
        """Stop it, or wait for its end; returns its history."""
        assert self._thread is not None, "it was started"
        if early:
            self.launcher.stop()
        self._thread.join(within_s)
        if self._thread.is_alive():
            self.abandon()
            raise TrainingError(f"the run did not end within {within_s:g} s", f"see {self.run_dir}/logs")
        if self.error is not None:
            raise self.error
        return self.history()

    def abandon(self) -> None:
        """End it now, if it has not ended."""
        while self._thread is not None and self._thread.is_alive():
            self.launcher.kill()  # repeatedly: a process may just be starting
            self._thread.join(POLL_S)

    def history(self) -> History:
        return read_history(self.run_dir / "events.jsonl")

    def live(self) -> History:
        """The history so far, read incrementally; only the newest steps."""
        if self._live is None:
            self._live = LogFollower(self.run_dir / "events.jsonl", rows=LIVE_ROWS)
        return self._live.read()

    def wait(self, duration_s: float) -> None:
        """Let it train for a while."""
        self._clock.sleep(duration_s)

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def pids(self) -> dict[str, int]:
        """By name: the pid of its newest process."""
        started = [e for e in self.live().plain if e.kind == "worker_started"]
        return {event.who: int(str(event.fields["pid"])) for event in started}

    def signal(self, participant: str, number: int) -> int:
        """Send the signal; returns when."""
        pid = self.pids()[participant]
        at_ns = self.now_ns()
        os.kill(pid, number)
        return at_ns

    def until(
        self, is_true: Callable[[History], bool], description: str, within_s: float = MAX_WAIT_S
    ) -> None:
        deadline_s = monotonic_s() + within_s
        while not is_true(self.live()):
            if self.error is not None:
                raise self.error
            if monotonic_s() > deadline_s:
                raise TrainingError(
                    f"waited {within_s:g} s in vain for: {description}", f"see {self.run_dir}"
                )
            self._clock.sleep(POLL_S)

    def until_in(self, workers: int, after: int) -> int:
        """Wait until `workers` train in one generation after `after`; returns its number."""
        generation = 0

        def are_in(history: History) -> bool:
            nonlocal generation
            generation = newest_full(history, workers)
            return generation > after

        self.until(are_in, f"{workers} workers train together")
        return generation


def newest_full(history: History, workers: int) -> int:
    """The newest generation that `workers` workers entered; 0: none."""
    entered = Counter(int(str(e.fields["number"])) for e in events_of(history, "generation_entered"))
    return max((number for number, count in entered.items() if count == workers), default=0)


def end_ns(row: StepRow) -> int:
    """When the step ended."""
    compute = row.data_ns + row.forward_ns + row.backward_ns + row.delay_ns
    return row.start_ns + compute + row.wait_ns + row.codec_ns + row.comm_ns + row.apply_ns


def commits_ns(history: History, rank: int) -> list[int]:
    """When this worker committed steps, in order."""
    return [end_ns(row) for row in history.steps.get(rank, []) if row.synced]


def events_of(history: History, kind: str) -> list[PlainEvent]:
    return [event for event in history.plain if event.kind == kind]


@contextmanager
def training(plan: Plan, run_dir: Path, coordinators: Coordinators | None = None) -> Iterator[TrainingRun]:
    """A run that is ended with this context."""
    with LocalLauncher() as launcher:
        run = TrainingRun(plan, run_dir, launcher, coordinators)
        run.start()
        try:
            yield run
        finally:
            run.abandon()

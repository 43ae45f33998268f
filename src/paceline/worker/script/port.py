"""Port between a training script's session and what the script runs in."""

from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from paceline.core.clock import Clock
from paceline.plan.plan import Plan
from paceline.tasks.script import ScriptParts
from paceline.transport.ports import Collective
from paceline.worker.loop import Steps, Worker
from paceline.worker.script.data import ScriptSource
from paceline.worker.script.facts import ScriptFacts
from paceline.worker.script.in_turn import InTurn


class ScriptDoneError(BaseException):
    """Ends a script that has served its purpose. Not an Exception: no handler of the script is to see it."""


class OpenLoop(NamedTuple):
    plan: Plan
    steps: Steps[object]
    source: ScriptSource
    clock: Clock
    collective: Collective | None = None  # of the strategy; None: it has none
    in_turn: InTurn | None = None  # the strategy, if several optimizers step in turn


class ScriptHost(Protocol):
    """What a script runs in: a plain process, a worker of a run, or a probe."""

    seed: int
    device: torch.device
    name: str  # of the participant, for messages
    plan: Plan | None  # None: it is built from the first batch on
    schedule: str  # facts.schedule; empty: not known yet, or there is no scheduler
    limits: ScriptFacts | None  # whose clipping is that of an update for which no gradient was computed here

    @property
    def rank(self) -> int:
        """0: the main worker. It may change in an elastic run."""
        ...

    def open_loop(self, parts: ScriptParts, facts: ScriptFacts) -> OpenLoop:
        """The step loop over what the script prepared. A server serves here, and does not return."""
        ...

    def run_dir(self) -> Path: ...

    def request_stop(self, reason: str) -> None:
        """All workers stop after the same step."""
        ...


def open_loop_of(plan: Plan, worker: Worker, steps: Steps[object]) -> OpenLoop:
    """The loop of a worker of a run that keeps its workers."""
    source = worker.source
    assert isinstance(source, ScriptSource), "the task is a script"
    in_turn = worker.strategy if isinstance(worker.strategy, InTurn) else None
    if in_turn is not None:
        in_turn.wants_stop = worker.control.wants_stop
    return OpenLoop(plan, steps, source, worker.clock, worker.collective, in_turn)

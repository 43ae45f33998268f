"""Torchrun launcher: rank 0 of processes that another program has started.

torchrun, a scheduler or a person has started WORLD_SIZE processes and set their ranks in the environment.
Rank 0 leads: it has the plan and the run folder, and decides the exit code. This is its side without torch.
The side with torch is worker/entry/torchrun_leader.py; that of the other ranks is worker/entry/torchrun.py.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.config.environment import World
from paceline.core.disk import write_durably
from paceline.core.errors import ExitCode
from paceline.launchers.local import (
    LocalLauncher,
    Message,
    RunOutcome,
    ScriptStart,
    Supervisor,
    read_sample_count,
)
from paceline.launchers.supervision import Failure
from paceline.plan.plan import Option, Plan

STARTED_BY = "started_by.json"


class TorchSide(Protocol):
    """Rank 0's part that has torch."""

    def train(
        self, plan: Plan, run_dir: Path, resume_from: Path | None, on_message: Callable[[Message], None]
    ) -> None: ...

    def ask_to_stop(self) -> None: ...

    def count(self, order: Message) -> Message:
        """The answer of worker/entry/sample_count.py: how many samples a task has, or why it has none."""
        ...


class TorchrunLauncher:
    def __init__(self, world: World, side: TorchSide) -> None:
        self._world = world
        self._side = side

    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> RunOutcome:
        assert supervisor is None, "an elastic run starts its workers itself"
        write_durably(run_dir / STARTED_BY, [json.dumps(Starter.of(self._world).to_dict()).encode()])
        ended = RunOutcome()

        def forward(message: Message) -> None:
            on_message(message)
            record_message(ended, message)

        on_message({"ev": "started", "who": "worker-0", "pid": os.getpid()})
        self._side.train(plan, run_dir, resume_from, forward)
        return ended

    def count_samples(self, task: str, *, options: Mapping[str, Option], seed: int, dtype: str) -> int:
        order: Message = {"task": task, "options": dict(options), "seed": seed, "dtype": dtype}
        counted = read_sample_count(self._side.count(order))
        assert counted is not None, "a count or a refusal was returned"
        return counted

    def probe_script(self, start: ScriptStart) -> Message:
        """In a process of its own: a script runs once in each."""
        with LocalLauncher() as prober:
            return prober.probe_script(start)

    def stop(self) -> None:
        self._side.ask_to_stop()

    def kill(self) -> None:
        """This process ends by the interrupt that follows; the program that started the others ends them."""

    def close(self) -> None: ...


def record_message(ended: RunOutcome, message: Message) -> None:
    match message["ev"]:
        case "report":
            ended.reports[str(message["who"])] = message
        case "error":
            ended.ledger.error(
                Failure(
                    str(message["who"]),
                    str(message["what"]),
                    str(message["hint"]),
                    is_consequence=bool(message["secondary"]),
                    exit_code=ExitCode(int(str(message["exit_code"]))),
                    code=str(message.get("code", "")),
                )
            )


@dataclass(frozen=True, slots=True)
class Starter:
    """The program that started a run: after a restart by the same one, its folder is used again."""

    run_id: str | None  # torchrun's name for the job
    parent: str  # the process that started us, and when it began

    @classmethod
    def of(cls, world: World) -> "Starter":
        return cls(world.run_id, f"{os.getppid()} {began(os.getppid())}")

    @classmethod
    def read(cls, run_dir: Path) -> "Starter | None":
        try:
            fields = json.loads((run_dir / STARTED_BY).read_text())
            return cls(fields["run_id"], str(fields["parent"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # none, or not one of Paceline's

    def to_dict(self) -> Message:
        return {"run_id": self.run_id, "parent": self.parent}

    def is_same(self, other: "Starter | None") -> bool:
        if other is None:
            return False
        return self.parent == other.parent or (self.run_id is not None and self.run_id == other.run_id)


def began(pid: int) -> str:
    """When a process began, in the kernel's ticks: a pid alone is used again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19]

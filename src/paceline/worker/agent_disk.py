"""The run folder for a participant whose host does not have it: through the host's agent.

The participant writes a snapshot into the scratch folder of its host, and asks the host's agent to send it.
A snapshot counts as written once it is in the run folder, and an event as recorded once the run's log has it
(launchers/agents/hosted_run.py).
"""

import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoints.catalog import folders, number_of
from paceline.checkpoints.snapshot import WriteResult
from paceline.checkpoints.writer import Disk, SnapshotTarget
from paceline.plan.codec import Json

ANSWER_S = 600.0  # a large snapshot over a slow network
KEPT = 3  # folders with parts; another worker of this host may be some checkpoints behind
Message = dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHost:
    """The host of a participant that an agent started."""

    name: str  # of the agent
    ahead_ns: int  # how far the clock of the run's command is ahead of this host's
    socket: Path  # where the agent takes requests

    def ask(self, what: str, **fields: Json) -> Message:
        """The command's answer; OSError when it refuses, or when the agent has lost its connection to it."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(str(self.socket))
            connection.sendall(json.dumps({"ask": what, **fields}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline()
        if not line:
            raise ConnectionError("the agent of this host lost its connection to the command")
        answer: Message = json.loads(line)
        if answer["failure"]:
            raise OSError(str(answer["failure"]))
        return answer

    def await_recorded(self) -> None:
        """Return once the events that are in the scratch folder now are in the run's log."""
        self.ask("recorded")

    def fetch_newest(self) -> str:
        """The name of the newest checkpoint, which is in the scratch folder now; empty: there is none."""
        return str(self.ask("newest")["folder"])


class AgentDisk(Disk):
    def __init__(self, host: AgentHost, *, participants: int) -> None:
        self._host = host
        self._participants = participants
        self._removed: tuple[int, ...] = ()

    def is_there(self, folder: Path, participant: str, generation: int | None) -> bool:
        return False  # only the run folder counts, and the agent sends whole files over what is there

    def put(
        self,
        folder: Path,
        participant: str,
        tensors: memoryview,
        facts: dict[str, Any],  # Any: JSON
    ) -> WriteResult:
        wrote = super().put(folder, participant, tensors, facts)
        answer = self._host.ask("store", folder=folder.name, who=participant, participants=self._participants)
        removed = answer["removed"]
        assert isinstance(removed, list), "the numbers of older checkpoints"
        self._removed = tuple(int(str(number)) for number in removed)
        return wrote

    def return_to_newest(self, root: Path, num_workers: int) -> int:
        return int(str(self._host.ask("return")["at"]))  # in the run folder

    def fetch(self, folder: Path) -> None:
        self._host.ask("fetch", at=number_of(folder))

    def remove_old(self, folder: Path, target: SnapshotTarget) -> tuple[int, ...]:
        if self._participants == 1:
            super().remove_old(folder, target)  # in the scratch folder
        else:  # which has parts of a checkpoint only, or what was fetched at the begin of a generation
            for old in folders(target.root)[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        return self._removed  # in the run folder, by the command

"""Histories of client operations: recorded while a test runs, and checked afterwards.

A register is an acknowledged alert: its note is the value. A marker is an alert that is
acknowledged once and never again: if the cluster acknowledged it, it must be there.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from time import monotonic_ns

from tests.raft_simulation.linearizability import Operation, is_linearizable

from paceline.coordinator.client.aio import Client, RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb

REGISTERS = ("a", "b", "c")


async def create(client: Client, run: str) -> None:
    await client.write("Runs.Create", pb.CreateRun(run=run, min_workers=1), pb.Run)


async def mark(client: Client, run: str, key: str, note: str = "") -> None:
    await client.write(
        "Actions.Acknowledge", pb.AcknowledgeAlert(run=run, alert=key, note=note), pb.AlertMark
    )


async def notes(client: Client, run: str) -> dict[str, str]:
    content = await client.read("Actions.Alerts", pb.ListAlerts(run=run), pb.AlertList)
    return {mark.alert: mark.note for mark in content.alerts}


@dataclass(slots=True)
class History:
    """Of one run: everything is about its alerts."""

    run: str
    operations: list[Operation] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)  # markers that the cluster has acknowledged
    answers: int = 0
    _names: "count[int]" = field(default_factory=count)

    async def write(self, client: Client, register: str) -> None:
        value = f"value-{next(self._names)}"
        operation = Operation(register, True, value, monotonic_ns())
        self.operations.append(operation)
        try:
            await mark(client, self.run, register, value)
        except UnreachableError:
            return  # it may have happened, and may happen yet
        operation.answered = monotonic_ns()
        self.answers += 1

    async def read(self, client: Client) -> None:
        """All registers at once."""
        requested = monotonic_ns()
        try:
            noted = await notes(client, self.run)
        except UnreachableError:
            return
        answered = monotonic_ns()
        self.operations += [Operation(r, False, noted.get(r, ""), requested, answered) for r in REGISTERS]
        self.answers += 1

    async def mark(self, client: Client) -> None:
        key = f"marker-{next(self._names)}"
        try:
            await mark(client, self.run, key)
        except UnreachableError:
            return
        self.marked.append(key)
        self.answers += 1

    async def keep_asking(self, client: Client, register: str, pause_s: float) -> None:
        """One request after the other, until cancelled; what is cancelled stays without an answer."""
        while True:
            await self.write(client, register)
            await asyncio.sleep(pause_s)
            await self.read(client)
            await asyncio.sleep(pause_s)
            await self.mark(client)
            await asyncio.sleep(pause_s)

    async def lost(self, client: Client) -> list[str]:
        """Markers that were acknowledged and are not there."""
        try:
            noted = await notes(client, self.run)
        except RefusedError:
            return self.marked  # the run itself is not there
        return [key for key in self.marked if key not in noted]

    def is_linearizable(self) -> bool:
        return is_linearizable(self.operations)

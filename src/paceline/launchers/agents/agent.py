"""Agent of a host: a member of the fleet that starts the workers of offered runs, and ends them.

The agent reads the offers at the coordinator, connects to the command of each run, and does what it orders
(hosted_run.py); it listens on no port. Without the coordinator its runs go on: they need it only to form
generations. When the agent is killed, the kernel and the helper processes end its workers. SIGTERM drains:
the workers leave after a step that all have committed, nothing new is started, and the agent ends when the
last one has left, or after the drain timeout.
"""

import asyncio
import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from paceline import __version__
from paceline.coordinator.client.aio import RefusedError, UnreachableError
from paceline.coordinator.client.endpoints import Endpoints, open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import Coordinators
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.state.model import FLEET
from paceline.coordinator.state.runs import AGENT_ROLE
from paceline.core import environ
from paceline.core.clock import ActiveTimeout, boot_id, monotonic_s
from paceline.core.errors import AlreadyThereError, NotReadyError, PeerLostError
from paceline.launchers.agents.hosted_run import Helper, HostedRun, Slots
from paceline.launchers.agents.hub import own_address
from paceline.worker.elastic.membership import Membership

READ_S = 3.0  # for the coordinator to answer
FIRST_RETRY_S = 0.5
MAX_RETRY_S = 15.0  # between two attempts to reach the command of a run
POLL_S = 0.2
NAME_S = 30.0  # for an agent of this name that was lost to lose its lease


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    coordinators: Coordinators
    name: str
    slots: int
    labels: Mapping[str, str]
    scratch: Path | None  # where the folders of runs are made; None: the system's temporary folder
    drain_timeout_s: float
    run: str | None = None  # serve runs of this name only; None: all runs of the coordinator


@dataclass(slots=True)
class _Retry:
    """When the next attempt for one run is due."""

    wait_s: float = FIRST_RETRY_S
    at_s: float = 0.0

    def failed(self) -> None:
        self.at_s = monotonic_s() + self.wait_s
        self.wait_s = min(MAX_RETRY_S, 2 * self.wait_s)


@dataclass(slots=True)
class Agent:
    settings: AgentSettings
    note: Callable[[str], None]
    _slots: Slots = field(init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _draining: asyncio.Event = field(default_factory=asyncio.Event)
    _runs: dict[str, HostedRun] = field(default_factory=dict)
    _tasks: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _retries: dict[str, _Retry] = field(default_factory=dict)
    _spare: Helper | None = None  # has imported torch before a run needs it
    _noted: dict[str, str] = field(default_factory=dict)  # the newest note about each run
    _address: str = ""  # of this host, as it reaches the coordinator
    _folder: Path = field(default_factory=Path)  # with a folder for each run
    _has_noted_silence: bool = False

    def __post_init__(self) -> None:
        self._slots = Slots(self.settings.slots)

    async def run(self) -> None:
        """Until SIGTERM or Ctrl-C, and until what runs here has left."""
        loop = asyncio.get_running_loop()
        for number in environ.stop_signals():
            loop.add_signal_handler(number, self._stop)
        self._address = own_address(self.settings.coordinators.addresses[0])
        self._folder = _make_folder(self.settings.scratch)
        try:
            await self._serve(loop)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        await self._check_name()
        if self._draining.is_set():
            return
        membership = self._join(loop)
        self._spare = Helper()
        self._changed.set()
        try:
            while not self._draining.is_set():
                membership.check()
                if self._changed.is_set() or self._is_retry_due():
                    self._changed.clear()
                    await self._read_offers(membership)
                for run in self._runs.values():
                    run.announce_room()
                await asyncio.sleep(POLL_S)
            await self._drain()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            if self._spare is not None:
                await self._spare.close()
            await asyncio.to_thread(membership.close, "the agent was stopped")

    def _stop(self) -> None:
        if self._draining.is_set():
            raise KeyboardInterrupt
        self._draining.set()

    async def _check_name(self) -> None:
        """AlreadyThereError if an agent of another process has this name, and keeps it.

        A pod that replaces another has its name, and on the same node also its process number.
        """
        name = self.settings.name
        patience = ActiveTimeout(NAME_S)
        has_noted = False
        while not self._draining.is_set() and (host := await asyncio.to_thread(self._holder_of_name)):
            if not patience.next_s():
                raise AlreadyThereError(
                    f"there is already an agent {name!r}, on {host}",
                    "name this one with --name, or stop the other",
                )
            if not has_noted:
                self.note(f"waiting for the agent {name!r} on {host} to leave")
            has_noted = True
            await asyncio.sleep(FIRST_RETRY_S)

    def _holder_of_name(self) -> str | None:
        """The host of another agent with this name; None: there is none."""
        try:
            with open_coordinators(self.settings.coordinators, Role.WORKER).blocking_client(READ_S) as client:
                fleet = client.read("Members.List", pb.ListWorkers(run=FLEET), pb.WorkerList)
        except (RefusedError, UnreachableError):
            return None  # there is no fleet yet, or no coordinator: the join is tried until there is one
        for agent in fleet.workers:
            is_here = agent.facts["boot"] == boot_id()
            has_ended = is_here and not Path(f"/proc/{agent.facts['pid']}").exists()
            if agent.worker == self.settings.name and not has_ended:
                return agent.facts["host"]
        return None

    def _join(self, loop: asyncio.AbstractEventLoop) -> Membership:
        settings = self.settings

        def on_change() -> None:
            loop.call_soon_threadsafe(self._changed.set)

        return Membership(
            lambda: open_coordinators(settings.coordinators, Role.WORKER).client(),
            run=FLEET,
            worker=settings.name,
            note=self.note,
            role=AGENT_ROLE,
            address=self._address,
            facts=host_facts(settings),
            on_run=on_change,
        )

    async def _read_offers(self, membership: Membership) -> None:
        """Begin the runs that are offered, and forget those that are not any more."""
        try:
            listed = await asyncio.to_thread(
                membership.read, "Runs.Offers", pb.ListOffers(), pb.OfferList, READ_S
            )
        except (RefusedError, UnreachableError, TimeoutError) as error:
            if not self._has_noted_silence:
                self.note(f"the offers of runs cannot be read: {error}")
            self._has_noted_silence = True
            self._changed.set()  # the news of an offer comes once: read until it is known
            return
        self._has_noted_silence = False
        self._noted = {run: text for run, text in self._noted.items() if run in self._retries}
        only = self.settings.run
        offered = {offer.run: offer for offer in listed.offers if only in (None, offer.name)}
        self._retries = {run: retry for run, retry in self._retries.items() if run in offered}
        for run, offer in offered.items():
            retry = self._retries.get(run)
            if run not in self._tasks and (retry is None or retry.at_s <= monotonic_s()):
                self._tasks[run] = asyncio.create_task(self._host(offer))

    def _is_retry_due(self) -> bool:
        now_s = monotonic_s()
        return any(retry.at_s <= now_s for run, retry in self._retries.items() if run not in self._tasks)

    async def _host(self, offer: pb.OfferRun) -> None:
        hosted = HostedRun(
            offer=offer,
            name=self.settings.name,
            folder=self._folder / offer.run,
            take_helper=self._take_helper,
            slots=self._slots,
            coordinator=self.settings.coordinators.to_dict(),
            address=self._address,
            note=self.note,
            is_draining=self._draining.is_set,
        )
        self._runs[offer.run] = hosted
        try:
            await hosted.run()
            self._note_run(offer.run, "it is over")
        except (OSError, PeerLostError) as error:
            self._note_run(offer.run, str(error))
        finally:
            self._retries.setdefault(offer.run, _Retry()).failed()
            del self._runs[offer.run]
            del self._tasks[offer.run]
            if self._spare is None and not self._draining.is_set():
                self._spare = Helper()

    def _take_helper(self) -> Helper:
        helper = self._spare or Helper()
        self._spare = None
        return helper

    def _note_run(self, run: str, text: str) -> None:
        """A note that is not repeated: a command that is gone is tried again and again."""
        if self._noted.get(run) != text:
            self._noted[run] = text
            self.note(f"{run}: {text}")

    async def _drain(self) -> None:
        names = [who for run in self._runs.values() for who in run.participants]
        timeout_s = self.settings.drain_timeout_s
        self.note(f"draining: {', '.join(names) or 'nothing'} must leave within {timeout_s:g} s")
        for run in self._runs.values():
            run.announce_drain()
        until_s = monotonic_s() + timeout_s
        while monotonic_s() < until_s and any(run.participants for run in self._runs.values()):
            await asyncio.sleep(POLL_S)
        left = [who for run in self._runs.values() for who in run.participants]
        self.note(f"{', '.join(left)} did not leave in time, and end now" if left else "drained")


def _make_folder(scratch: Path | None) -> Path:
    """A new folder that only this user can read."""
    try:
        return Path(tempfile.mkdtemp(prefix="paceline-agent-", dir=scratch))
    except OSError as error:
        raise NotReadyError(
            f"no folder can be made in {scratch or tempfile.gettempdir()}: {error.strerror}",
            "name another one with --scratch FOLDER",
        ) from error


def host_facts(settings: AgentSettings) -> dict[str, str]:
    """What the fleet shows of this host."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "host": socket.gethostname(),
        "boot": boot_id(),
        "slots": str(settings.slots),
        "labels": ",".join(f"{key}={value}" for key, value in sorted(settings.labels.items())),
        "cpus": str(len(os.sched_getaffinity(0))),
        "memory_gb": f"{memory_bytes / 1e9:.1f}",
        "paceline": __version__,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One agent, and what it reported when it joined."""

    name: str
    host: str
    address: str
    slots: int
    labels: str
    cpus: int
    memory_gb: float
    pid: int
    paceline: str
    python: str
    torch: str


async def list_agents(cluster: Endpoints, *, patience_s: float) -> list[AgentRow]:
    """Those that are alive, by name."""
    async with cluster.client(patience_s) as client:
        try:
            listed = await client.read("Members.List", pb.ListWorkers(run=FLEET), pb.WorkerList)
        except RefusedError as error:
            if error.why != "NOT_FOUND":
                raise
            return []  # no agent has joined yet: there is no fleet
    return sorted((_row(agent) for agent in listed.workers), key=lambda row: row.name)


def _row(agent: pb.Worker) -> AgentRow:
    facts = agent.facts
    return AgentRow(
        name=agent.worker,
        host=facts["host"],
        address=agent.address,
        slots=int(facts["slots"]),
        labels=facts["labels"],
        cpus=int(facts["cpus"]),
        memory_gb=float(facts["memory_gb"]),
        pid=int(facts["pid"]),
        paceline=facts["paceline"],
        python=facts["python"],
        torch=facts["torch"],
    )


def run_agent(settings: AgentSettings, note: Callable[[str], None]) -> None:
    """Run until SIGTERM or Ctrl-C has drained the host."""
    asyncio.run(Agent(settings, note).run())

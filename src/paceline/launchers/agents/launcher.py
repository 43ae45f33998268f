"""Launcher of elastic runs on several hosts, which share neither memory nor a folder with the command.

The command listens, and hosts connect to it: agents that read the run's offer at the coordinator
(`offered_to_agents`), or actors that Ray starts (launchers/ray/hosts.py). This process never imports torch.
See docs/decisions/0061-agents.md.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import CoordinatorEndpoint
from paceline.core import environ
from paceline.launchers.agents.folder import RunFolder
from paceline.launchers.agents.group import AgentGroup
from paceline.launchers.agents.hub import Hub, own_address
from paceline.launchers.agents.placement import HostRoom, HostSource
from paceline.launchers.local import Message, RunOutcome, Supervisor
from paceline.plan.plan import Plan

Note = Callable[[str], None]
OpenSource = Callable[[Plan, Hub, CoordinatorEndpoint, Note], AbstractContextManager[HostSource]]


class HostsLauncher:
    def __init__(self, open_source: OpenSource) -> None:
        self._open_source = open_source
        self._supervisor: Supervisor | None = None
        self._hub: Hub | None = None
        self._is_stopping = False

    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> RunOutcome:
        assert supervisor is not None, "only elastic runs have hosts"
        self._supervisor = supervisor

        def note(text: str) -> None:
            on_message({"ev": "note", "text": text})

        endpoint = CoordinatorEndpoint.read(supervisor.coordinator)
        with (
            closing(RunFolder(plan, run_dir)) as folder,
            closing(Hub(own_address(endpoint.coordinators.addresses[0]))) as self._hub,
            self._open_source(plan, self._hub, endpoint, note) as source,
        ):
            group = AgentGroup(
                plan, self._hub, folder, on_message, lambda: self._is_stopping, supervisor, source
            )
            return group.run(run_dir, resume_from)

    def stop(self) -> None:
        self._is_stopping = True
        if self._supervisor is not None:
            self._supervisor.stopping()

    def kill(self) -> None:
        """The interrupt that follows ends the run, and with the connections every worker."""
        if self._supervisor is not None:
            self._supervisor.cancel()

    def close(self) -> None:
        if self._hub is not None:
            self._hub.close()


class Agents:
    """Agents come by themselves, and serve other runs when they have left this one."""

    hint = "start `paceline agent` on more hosts"

    def __init__(self) -> None:
        self.start_s = environ.host_timeout_s()

    def arrived(self, host: str, hello: Message) -> None: ...

    def update(self, wanted: int, rooms: Mapping[str, HostRoom]) -> None: ...


@contextmanager
def offered_to_agents(
    plan: Plan, hub: Hub, endpoint: CoordinatorEndpoint, _note: Note
) -> Iterator[HostSource]:
    """The run's offer at its coordinator, which agents read."""
    with open_coordinators(endpoint.coordinators).blocking_client() as client:
        offer = pb.OfferRun(
            run=endpoint.run,
            address=hub.address,
            certificate=hub.certificate,
            secret=hub.secret,
            name=plan.run,
        )
        client.write("Runs.Offer", offer, pb.Run)
        yield Agents()

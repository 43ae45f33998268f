"""Agents launcher: an elastic run whose workers are started by `paceline agent` on other hosts.

The command listens, and offers the run at its coordinator; agents read the offer and connect. This
process never imports torch. See
docs/decisions/0061-agents.md.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import CoordinatorEndpoint
from paceline.launchers.agents.folder import RunFolder
from paceline.launchers.agents.group import AgentGroup
from paceline.launchers.agents.hub import Hub, own_address
from paceline.launchers.local import Message, RunOutcome, Supervisor
from paceline.plan.plan import Plan


class AgentsLauncher:
    def __init__(self) -> None:
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
        assert supervisor is not None, "only elastic runs have agents"
        self._supervisor = supervisor
        endpoint = CoordinatorEndpoint.read(supervisor.coordinator)
        with (
            closing(RunFolder(plan, run_dir)) as folder,
            closing(Hub(own_address(endpoint.coordinators.addresses[0]))) as self._hub,
            open_coordinators(endpoint.coordinators).blocking_client() as client,
        ):
            _offer(client, endpoint.run, self._hub)
            group = AgentGroup(plan, self._hub, folder, on_message, lambda: self._is_stopping, supervisor)
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


def _offer(client: BlockingClient, run: str, hub: Hub) -> None:
    offer = pb.OfferRun(run=run, address=hub.address, certificate=hub.certificate, secret=hub.secret)
    client.write("Runs.Offer", offer, pb.Run)

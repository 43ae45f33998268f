"""Ray launcher: workers as actors in a placement group, with the run folder on the launcher's side.

Ray schedules and supervises; workers train and synchronize as without it. When one is lost, all are ended,
and may be started again from the newest checkpoint (`restarts`); in an elastic run it is replaced, and the
others continue: on any nodes where workers exchange over TCP (hosts.py), on this machine where they share
memory (elastic.py). This process never imports torch.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from paceline.checkpoints.catalog import read_complete
from paceline.coordinator.run_endpoint import CoordinatorEndpoint
from paceline.coordinator.server.security import host_of, is_loopback
from paceline.core.errors import NotReadyError, PacelineError
from paceline.launchers.agents.hub import own_address
from paceline.launchers.agents.launcher import HostsLauncher
from paceline.launchers.local import Message, RunOutcome, Supervisor
from paceline.launchers.ray.client import RayClient, StopRequest, connect
from paceline.launchers.ray.elastic import ElasticGroup
from paceline.launchers.ray.group import Group, RunDirWriter
from paceline.launchers.ray.hosts import ray_hosts
from paceline.launchers.ray.resources import Node, check_nodes, cpus_for_own_ray, is_own_address
from paceline.launchers.supervision import Failure
from paceline.plan.catalog import spans_hosts
from paceline.plan.plan import Plan

LOOPBACK = "127.0.0.1"


def address_towards(nodes: Sequence[Node]) -> str:
    """The address of this machine at which nodes reach it; on loopback where all nodes are."""
    names = sorted((node.name for node in nodes), key=is_own_address)  # another machine first
    return own_address(f"[{names[0]}]:1")


def check_capacity(plans: Sequence[Plan]) -> None:
    """NotReadyError unless the cluster has resources for each of them; a local one always has."""
    elsewhere = [plan for plan in plans if plan.ray is not None and plan.ray.address != "local"]
    for address in {plan.ray.address for plan in elsewhere if plan.ray is not None}:
        with closing(connect(address, num_cpus=0)) as ray:
            nodes = ray.nodes()
        for plan in elsewhere:
            if plan.ray is not None and plan.ray.address == address:
                check_nodes(plan, address, nodes)


class RayLauncher:
    """Made, it is connected to a cluster that is large enough; else an error, and nothing was started."""

    def __init__(self, plan: Plan) -> None:
        assert plan.ray is not None, "the plan has the address of Ray"
        # A Ray of our own pretends to have what is needed: workers share processors, as without it.
        cpus = cpus_for_own_ray(plan, len(os.sched_getaffinity(0)))
        self._stop_request = StopRequest()
        self._group: Group | ElasticGroup | None = None
        self._supervisor: Supervisor | None = None
        self._on_hosts: HostsLauncher | None = None
        self._ray: RayClient = connect(plan.ray.address, num_cpus=cpus)
        try:
            nodes = self._ray.nodes()
            check_nodes(plan, plan.ray.address, nodes)
            # The address of this machine at which workers reach this command, and its coordinator.
            is_here = plan.ray.address == "local" or not spans_hosts(plan)
            self.address = LOOPBACK if is_here else address_towards(nodes)
        except PacelineError:
            self._ray.close()
            raise

    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> RunOutcome:
        assert plan.ray is not None, "the plan has the address of Ray"
        if supervisor is not None and spans_hosts(plan):
            self._check_coordinator(CoordinatorEndpoint.read(supervisor.coordinator))
            host = LOOPBACK if self.address == LOOPBACK else None
            self._on_hosts = HostsLauncher(partial(ray_hosts, ray=self._ray, host=host))
            if self._stop_request.stop:
                self._on_hosts.stop()
            return self._on_hosts.run(
                plan, run_dir, on_message=on_message, resume_from=resume_from, supervisor=supervisor
            )
        if supervisor is not None:
            self._supervisor = supervisor
            self._group = ElasticGroup(plan, self._ray, on_message, self._stop_request, supervisor)
            return self._group.run(run_dir, resume_from)
        folder = RunDirWriter(plan, run_dir)
        budget = plan.ray.restarts
        restarts = 0
        while True:
            self._group = group = Group(plan, self._ray, folder, on_message, self._stop_request)
            clocks = (0,) * plan.num_workers
            if resume_from is not None:
                clocks = read_complete(resume_from, plan.num_workers).clocks
            ended = group.run(run_dir, resume_from, clocks)
            cause = ended.ledger.cause()
            if cause is None or not _is_loss(cause) or self._stop_request.stop or restarts == budget:
                return ended
            restarts += 1
            newest = folder.go_back(f"{cause.who}: {cause.what}")
            resume_from = None if newest is None else newest.folder
            begin = "the beginning" if newest is None else newest.folder.name
            text = f"{cause.what}; all workers restart from {begin} (restart {restarts} of {budget})"
            on_message({"ev": "note", "text": text})

    def stop(self) -> None:
        self._stop_request.stop = True
        if self._on_hosts is not None:
            self._on_hosts.stop()
        if self._supervisor is not None:
            self._supervisor.stopping()

    def kill(self) -> None:
        """The interrupt that follows ends the run, and with it every actor."""
        if self._on_hosts is not None:
            self._on_hosts.kill()
        if self._supervisor is not None:
            self._supervisor.cancel()

    def close(self) -> None:
        try:
            if self._on_hosts is not None:
                self._on_hosts.close()
            if self._group is not None:
                self._group.close()
        finally:
            self._ray.close()

    def _check_coordinator(self, endpoint: CoordinatorEndpoint) -> None:
        """NotReadyError if no worker on another machine can reach the coordinator."""
        addresses = endpoint.coordinators.addresses
        if self.address != LOOPBACK and all(is_loopback(host_of(address)) for address in addresses):
            raise NotReadyError(
                f"the coordinator at {', '.join(addresses)} is reached from this machine only, but workers"
                " may run on other nodes of the Ray cluster",
                "leave --coordinator out, or name one with --tls-dir at an address that all nodes reach",
            )


def _is_loss(cause: Failure) -> bool:
    """Whether the cause is external or unknown: then the next attempt may succeed."""
    return cause.by_signal or cause.is_consequence

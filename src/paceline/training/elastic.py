"""Coordinator of an elastic run: connects to a given one, or runs one node inside this process.

`supervised` yields what the launcher needs besides its workers: the supervisor that decides about restarts,
and the run's entry at the coordinator.
"""

import os
import queue
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import grpc.aio
from google.protobuf.message import Message

from paceline.coordinator import run_endpoint
from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.client.aio import RefusedError, UnreachableError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.client.endpoints import Endpoints, open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import CoordinatorEndpoint, Coordinators
from paceline.coordinator.server.access_policy import Role
from paceline.events.log import EventLog
from paceline.launchers.elastic import ElasticSupervisor
from paceline.launchers.held_processes import is_held as is_held_in
from paceline.launchers.supervision import RestartPolicy
from paceline.plan.catalog import server_names
from paceline.plan.codec import dumps
from paceline.plan.plan import Plan
from paceline.training.action_poller import ActionPoller
from paceline.training.command_lease import end_replaced_runs
from paceline.training.resume import newest_local

Reply = TypeVar("Reply", bound=Message)


class CoordinatorCalls(Protocol):
    """A blocking client of the coordinator."""

    def read(self, name: str, request: Message, reply: type[Reply]) -> Reply: ...

    def write(self, name: str, request: Message, reply: type[Reply]) -> Reply: ...


class LostWorkerReporter:
    """Reports lost workers to the coordinator in order, from a thread.

    A failure to report is noted once, until a report succeeds again. The lost worker's lease expires anyway.
    """

    def __init__(self, client: CoordinatorCalls, run: str, note: Callable[[str], None]) -> None:
        self._client = client
        self._run = run
        self._note = note
        self._losses: queue.SimpleQueue[tuple[str, int, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # from the first loss on
        self._is_failing = False

    def report(self, worker: str, pid: int, reason: str) -> None:
        """Queue the loss; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="losses", daemon=True)
            self._thread.start()
        self._losses.put((worker, pid, reason))

    def close(self) -> None:
        """Drop losses that are still queued; wait only for the report that is being sent."""
        if self._thread is None:
            return
        while not self._losses.empty():
            self._losses.get()
        self._losses.put(None)
        self._thread.join()

    def _send_all(self) -> None:
        while (loss := self._losses.get()) is not None:
            name, pid, reason = loss
            try:
                self._send(name, pid, reason)
                self._is_failing = False
            except (RefusedError, UnreachableError) as error:
                if not self._is_failing:
                    self._note(f"the loss of {name} could not be reported to the coordinator: {error.what}")
                self._is_failing = True

    def _send(self, name: str, pid: int, reason: str) -> None:
        workers = self._client.read("Members.List", pb.ListWorkers(run=self._run), pb.WorkerList)
        for worker in workers.workers:
            if worker.worker == name and worker.facts.get("pid") == str(pid):
                leaving = pb.LeaveRun(
                    run=self._run, worker=name, incarnation=worker.incarnation, reason=reason
                )
                self._client.write("Members.Leave", leaving, pb.Worker)


ENDINGS = {"finished": pb.RUN_FINISHED, "stopped": pb.RUN_STOPPED, "failed": pb.RUN_FAILED}


class RunRegistry:
    """The run's entry at the coordinator, from the launcher's side."""

    def __init__(self, client: BlockingClient, run: str, note: Callable[[str], None]) -> None:
        self._client = client
        self._run = run
        self._note = note
        self._losses = LostWorkerReporter(client, run, note)
        self._is_given_up = False

    def create(self, plan: Plan) -> None:
        assert plan.elastic is not None, "the run is elastic"
        creating = pb.CreateRun(
            run=self._run,
            plan=dumps(plan),
            min_workers=plan.elastic.min_workers,
            max_workers=plan.elastic.max_workers,
            want_workers=plan.elastic.workers,
            launcher=plan.launcher.value,
        )
        self._client.write("Runs.Create", creating, pb.Run)

    def lost(self, worker: str, pid: int, reason: str) -> None:
        """Report the loss without waiting. If the report is lost, the worker's lease expires instead."""
        self._losses.report(worker, pid, reason)

    def give_up(self) -> None:
        """Stop waiting for the coordinator; its leases cover what is not reported."""
        self._is_given_up = True
        self._client.give_up()

    def close(self) -> None:
        self._client.give_up()  # the run is over: losses that are still queued no longer matter
        self._losses.close()

    def drop(self, step: int) -> None:
        """Remove the checkpoint of this step from the catalogue; the newest and unknown ones stay."""
        # If the call fails, a resume finds no file there and takes the checkpoint before.
        with suppress(RefusedError, UnreachableError):
            self._client.write("Checkpoints.Drop", pb.DropCheckpoint(run=self._run, step=step), pb.Checkpoint)

    def end(self, outcome: str) -> None:
        if self._is_given_up:
            return  # already reported
        try:
            self._client.write("Runs.End", pb.EndRun(run=self._run, phase=ENDINGS[outcome]), pb.Run)
        except (RefusedError, UnreachableError) as error:
            self._note(f"the end of the run could not be reported to the coordinator: {error.what}")


def check_coordinators(coordinators: Coordinators) -> Coordinators:
    """The same with the addresses of all voters, so that the run survives the loss of any named node.

    Raises if launcher or workers could not use them: unreachable nodes, wrong credentials or role. Called
    before a run begins, so that a problem leaves no half-started run.
    """
    open_coordinators(coordinators, Role.WORKER)
    found = open_coordinators(coordinators)
    found.require_role("Runs.Create", "start a run")
    with found.blocking_client() as client:
        leader = client.find_leader()
        try:
            status = client.of_node(leader, "Status", pb.StatusRequest())
        except grpc.aio.AioRpcError as error:
            raise UnreachableError(
                f"the leader at {leader} stopped responding: {error.details()}", "run the command again"
            ) from error
    others = [peer.address for peer in status.peers if peer.is_voter and peer.address not in found.addresses]
    return replace(coordinators, addresses=(*found.addresses, *others))


@contextmanager
def supervised(
    plan: Plan,
    run_dir: Path,
    log: EventLog,
    note: Callable[[str], None],
    coordinators: Coordinators | None = None,
    *,
    host: str = "127.0.0.1",
) -> Iterator[tuple[ElasticSupervisor, RunRegistry]]:
    """The supervisor and the registry entry of an elastic run, while it runs.

    `host`: where a coordinator of its own listens.
    """
    assert plan.elastic is not None, "the run is elastic"

    def log_decision(text: str) -> None:
        note(text)
        log.write("supervision", decision=text)

    with ExitStack() as stack:
        connection = stack.enter_context(_connect(run_dir, coordinators, host))
        # A resumed run counts its generations from 1 again; old rendezvous folders must not be reused.
        with suppress(FileNotFoundError):
            shutil.rmtree(run_dir / "generations")
        run = f"run-{random.randrange(2**32):08x}"
        registry = RunRegistry(connection.client, run, note)
        stack.callback(registry.close)
        if plan.checkpoint_store is not None:
            for replaced in end_replaced_runs(connection.client, plan.checkpoint_store):
                log_decision(f"{replaced}, an earlier command of this run, is ended at the coordinator")
        registry.create(plan)
        elastic = plan.elastic
        restarts = RestartPolicy(elastic.restarts, elastic.min_workers, elastic.longest_wait_s)
        endpoint = CoordinatorEndpoint(coordinators=connection.coordinators, run=run)
        servers = None
        if server_names(plan):
            servers = RestartPolicy(elastic.restarts, min_workers=1, longest_s=elastic.longest_wait_s)
        stack.enter_context(run_endpoint.published(run_dir, endpoint))
        is_stopped = partial(is_held_in, run_dir)
        poller = stack.enter_context(
            ActionPoller(
                connection.endpoints,
                run,
                is_held=is_stopped,
                more_messages=connection.take_messages,
                last_checkpoint=partial(_last_checkpoint, plan, run_dir),
            )
        )
        supervisor = ElasticSupervisor(
            endpoint.to_dict(),
            registry,
            restarts,
            log_decision,
            elastic,
            plan.num_workers,
            server_restarts=servers,
            actions=poller,
            stop_run=partial(os.kill, os.getpid(), signal.SIGINT),
            timeout_s=plan.timeout_s,
        )
        yield supervisor, registry


def _last_checkpoint(plan: Plan, run_dir: Path) -> str:
    newest = newest_local(plan, run_dir)
    if newest is None:
        return ""
    return f"the last checkpoint is step {sum(newest.clocks) // len(newest.clocks)}"


@dataclass(frozen=True, slots=True)
class _Connection:
    client: BlockingClient
    coordinators: Coordinators
    endpoints: Endpoints
    take_messages: Callable[[], list[str]] = list  # notices of an embedded node


@contextmanager
def _connect(run_dir: Path, coordinators: Coordinators | None, host: str) -> Iterator[_Connection]:
    """The given coordinators, or a node embedded in this process."""
    if coordinators is None:
        with EmbeddedNode(run_dir, host=host) as node:
            embedded = Coordinators(addresses=(node.address,), credentials=node.credentials)
            yield _Connection(node.client, embedded, open_coordinators(embedded), node.take_messages)
        return
    found = open_coordinators(coordinators)
    with found.blocking_client() as client:
        yield _Connection(client, coordinators, found)

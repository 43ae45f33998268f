"""Lease of the command that trains a run, at the coordinator: of all commands with one store, one holds it.

The lease is a membership in the coordinator's record of commands, under the name and the store of the run. It
expires with the command's machine. Then another command takes it: one that resumes the run, or a standby that
waits for it. A command whose lease was taken receives FencedError.
"""

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum

from paceline.coordinator.client.aio import RefusedError
from paceline.coordinator.client.blocking import Background, BlockingClient
from paceline.coordinator.client.endpoints import Endpoints, open_coordinators
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import Coordinators
from paceline.coordinator.server.access_policy import Role
from paceline.coordinator.state.model import COMMANDS
from paceline.coordinator.state.runs import COMMAND_ROLE
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import NotReadyError, PacelineError
from paceline.plan.codec import loads
from paceline.plan.plan import Plan
from paceline.storage.run_store import FencedError
from paceline.training.run_sessions import RunHeldError
from paceline.worker.elastic.membership import Membership

ACQUIRE_S = 10.0  # longer than the lease of a command that has just been killed
ANSWER_S = 30.0
POLL_S = 0.25
NOT_BEGUN = "not begun"

Note = Callable[[str], None]


def lease_name(url: str) -> str:
    """The name of the lease of the run in this store."""
    return f"store-{hashlib.sha256(url.rstrip('/').encode()).hexdigest()[:24]}"


class CommandLease:
    """Held from `held_lease` on; `ending` is what the coordinator records when it is given back."""

    def __init__(self, membership: Membership, url: str) -> None:
        self._membership = membership
        self._url = url
        self.ending = NOT_BEGUN

    def check(self) -> None:
        """FencedError when the lease expired and another command has taken it."""
        try:
            self._membership.check()
        except RefusedError as error:
            raise FencedError(
                f"this command lost its lease of the run in {self._url}: {error.what}",
                f"follow the run there:  paceline status {self._url}",
            ) from error


@contextmanager
def held_lease(
    coordinators: Coordinators, url: str, note: Note, *, within_s: float = ACQUIRE_S
) -> Iterator[CommandLease]:
    """The lease of the run in this store; RunHeldError if another command still holds it after `within_s`."""
    name = lease_name(url)
    until_s = monotonic_s() + within_s
    endpoints = open_coordinators(coordinators)
    with closing(Background()) as background:
        while (membership := _join(endpoints, background, name, url, note)) is None:
            if monotonic_s() > until_s:
                raise _held(endpoints, name, url)
            SystemClock().sleep(POLL_S)
        lease = CommandLease(membership, url)
        try:
            yield lease
        finally:
            membership.close(lease.ending)


def _join(endpoints: Endpoints, background: Background, name: str, url: str, note: Note) -> Membership | None:
    """None: another command holds it."""
    has_joined = threading.Event()
    membership = Membership(
        endpoints.client,
        run=COMMANDS,
        worker=name,
        note=note,
        role=COMMAND_ROLE,
        facts={"host": socket.gethostname(), "store": url},
        on_run=has_joined.set,
        background=background,
    )
    until_s = monotonic_s() + ANSWER_S
    try:
        while not has_joined.wait(POLL_S / 10):
            membership.check()
            if monotonic_s() > until_s:
                raise NotReadyError(
                    f"the coordinator did not grant the lease of the run within {ANSWER_S:g} s",
                    "check it:  paceline coordinator status",
                )
    except RefusedError as error:
        membership.close("refused")
        if error.why != pb.Why.Name(pb.EXISTS):
            raise
        return None
    except BaseException:
        membership.close("interrupted")
        raise
    return membership


def _held(endpoints: Endpoints, name: str, url: str) -> RunHeldError:
    with endpoints.blocking_client() as client:
        holder = read_holder(client, name)
    who = "another command" if holder.member is None else _describe(holder.member)
    return RunHeldError(
        f"the run in {url} is trained by {who}",
        f"follow it:  paceline status {url}; or wait for its loss:  paceline standby {url} --coordinator …",
    )


def _describe(member: pb.Worker) -> str:
    return f"process {member.facts.get('pid', '?')} on {member.facts.get('host', '?')}"


class Held(Enum):
    NEVER = "never"  # no command has held the lease, as far as the coordinator remembers
    HELD = "held"
    LOST = "lost"  # it expired
    GIVEN_BACK = "given back"


@dataclass(frozen=True, slots=True)
class Holder:
    state: Held
    member: pb.Worker | None  # the newest one
    ending: str = ""  # of a lease that was given back

    def describe(self) -> str:
        return "no command" if self.member is None else _describe(self.member)


def read_holder(client: BlockingClient, name: str) -> Holder:
    try:
        listed = client.read("Members.List", pb.ListWorkers(run=COMMANDS, with_ended=True), pb.WorkerList)
    except RefusedError as error:
        if error.why != pb.Why.Name(pb.NOT_FOUND):
            raise
        return Holder(Held.NEVER, None)  # no command has joined yet
    members = [member for member in listed.workers if member.worker == name]
    if not members:
        return Holder(Held.NEVER, None)
    newest = max(members, key=lambda member: member.incarnation)
    if newest.phase == pb.WORKER_LOST:
        return Holder(Held.LOST, newest)
    if newest.phase == pb.WORKER_LEFT:
        return Holder(Held.GIVEN_BACK, newest, newest.reason)
    return Holder(Held.HELD, newest)


def end_replaced_runs(client: BlockingClient, url: str) -> list[str]:
    """End the entries of earlier commands of this run, which holds the lease now; their ids.

    Their workers can neither join nor commit any more, and agents no longer find their offers.
    """
    ended = []
    for run in client.read("Runs.List", pb.ListRuns(), pb.RunList).runs:
        plan = plan_of(run)
        if plan is not None and plan.checkpoint_store == url:
            ending = pb.EndRun(run=run.run, phase=pb.RUN_FAILED, reason="another command continues it")
            client.write("Runs.End", ending, pb.Run)
            ended.append(run.run)
    return ended


def plan_of(run: pb.Run) -> Plan | None:
    """The plan of a run at the coordinator; None if another version wrote it."""
    try:
        return loads(run.plan) if run.plan else None
    except PacelineError:
        return None


def find_store(coordinators: Coordinators, run: str) -> str:
    """The store of the run with this name or id at the coordinator, the newest one with a store."""
    with open_coordinators(coordinators, Role.VIEWER).blocking_client() as client:
        listed = client.read("Runs.List", pb.ListRuns(with_ended=True), pb.RunList).runs
    known: dict[str, str] = {}
    for entry in sorted(listed, key=lambda entry: entry.created_ms):
        plan = plan_of(entry)
        if plan is not None and plan.checkpoint_store is not None:
            known[plan.run] = known[entry.run] = plan.checkpoint_store
    if run not in known:
        named = ", ".join(name for name in known if not name.startswith("run-")) or "none"
        raise NotReadyError(
            f"the coordinator knows no run {run!r} with a store; it knows: {named}",
            "name one of them, or the address of the store:  s3://BUCKET/PREFIX",
        )
    return known[run]

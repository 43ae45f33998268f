"""Standby: waits until the command that trains a run is lost, to continue the run in its place.

The lease of the run at the coordinator decides (command_lease.py). A lease that expired is a loss. One that
was given back is not, except by a command that SIGTERM or SIGHUP ended, because its machine goes, or by one
that did not begin to train.
"""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.coordinator.client.aio import UnreachableError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.run_endpoint import Coordinators
from paceline.core.clock import SystemClock
from paceline.storage.objects import StoreError
from paceline.training.command_lease import NOT_BEGUN, Held, lease_name, read_holder
from paceline.training.run_sessions import open_run_store

POLL_S = 0.5
MACHINE_GOES = frozenset({"SIGTERM", "SIGHUP"})

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Lost:
    """The command is lost: the run is to be continued."""

    by: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over: finished, or stopped or failed with its command."""

    how: str


def wait_for_loss(coordinators: Coordinators, url: str, note: Note) -> Lost | Ended:
    """Wait until the command of the run in this store is lost, or the run is over."""
    with open_coordinators(coordinators).blocking_client() as client:
        said = ""
        while True:
            text, outcome = _look(client, url)
            if outcome is not None:
                return outcome
            if text != said:
                note(text)
                said = text
            SystemClock().sleep(POLL_S)


def _look(client: BlockingClient, url: str) -> tuple[str, Lost | Ended | None]:
    try:
        holder = read_holder(client, lease_name(url))
    except UnreachableError as error:
        return f"warning: the coordinator does not answer: {error.what}", None
    match holder.state:
        case Held.HELD:
            return f"standing by: {holder.describe()} trains the run in {url}", None
        case Held.LOST:
            return "", Lost(holder.describe())
        case Held.GIVEN_BACK if holder.ending == NOT_BEGUN:
            return _look_at_store(url)
        case Held.GIVEN_BACK if holder.ending in MACHINE_GOES:
            return "", Lost(f"{holder.describe()} ({holder.ending})")
        case Held.GIVEN_BACK:
            return "", Ended(holder.ending)
        case Held.NEVER:
            return _look_at_store(url)


def _look_at_store(url: str) -> tuple[str, Lost | Ended | None]:
    """The run has not begun, or the coordinator has forgotten its commands."""
    try:
        store = open_run_store(url)
        if store.result() is not None:
            return "", Ended("finished")
        if store.plan() is not None:
            return "", Lost("its command")
    except StoreError as error:
        return f"warning: whether there is a run cannot be read: {error.what}", None
    return f"standing by: no command trains a run in {url} yet", None

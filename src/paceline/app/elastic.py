"""How does an elastic run get its coordinator? One inside this process, unless one is given."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline.app import cluster_access, run_seat
from paceline.app.actions import hold
from paceline.app.losses import Losses
from paceline.app.resume import newest_here
from paceline.app.wishes import Wishes
from paceline.coordinator.blocking import BlockingClient
from paceline.coordinator.client import RefusedError, UnreachableError
from paceline.coordinator.embedded import EmbeddedNode
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell import security
from paceline.coordinator.shell.tls import Certificate
from paceline.coordinator.shell.tokens import FILE_NAME, Token
from paceline.events.log import EventLog
from paceline.launchers.elastic import ElasticSupervisor
from paceline.launchers.restarts import Restarts
from paceline.plan.catalog import server_names
from paceline.plan.codec import Json, dumps
from paceline.plan.plan import Plan

ENDINGS = {"finished": pb.RUN_FINISHED, "stopped": pb.RUN_STOPPED, "failed": pb.RUN_FAILED}


class RunRegistry:
    """The run's entry at the coordinator, as its launcher sees it."""

    def __init__(self, client: BlockingClient, run: str, note: Callable[[str], None]) -> None:
        self._client, self._run, self._note = client, run, note
        self._losses = Losses(client, run, note)
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

    def lost(self, who: str, pid: int, reason: str) -> None:
        """Said at once; nobody waits for the answer. If it is not heard, the worker's lease will run out."""
        self._losses.tell(who, pid, reason)

    def give_up(self) -> None:
        """The coordinator is not waited for any more: what it is not told, its leases find out."""
        self._is_given_up = True
        self._client.give_up()

    def close(self) -> None:
        self._client.give_up()  # the run is over: a loss that was not told yet matters to no one
        self._losses.close()

    def drop(self, step: int) -> None:
        """The checkpoint of this step is gone; one that was never noted, or is the newest, stays as it is."""
        # If nobody hears it, whoever resumes finds no file there, and takes the one before.
        with suppress(RefusedError, UnreachableError):
            self._client.write("Checkpoints.Drop", pb.DropCheckpoint(run=self._run, step=step), pb.Checkpoint)

    def end(self, outcome: str) -> None:
        if self._is_given_up:
            return  # that was said already
        try:
            self._client.write("Runs.End", pb.EndRun(run=self._run, phase=ENDINGS[outcome]), pb.Run)
        except (RefusedError, UnreachableError) as error:
            self._note(f"the coordinator was not told that the run is over: {error.what}")


@dataclass(frozen=True, slots=True)
class Coordinators:
    """A cluster that exists already."""

    addresses: tuple[str, ...]
    token_file: Path


@contextmanager
def supervised(
    plan: Plan,
    run_dir: Path,
    log: EventLog,
    note: Callable[[str], None],
    coordinators: Coordinators | None = None,
) -> Iterator[tuple[ElasticSupervisor, RunRegistry]]:
    """What an elastic run needs besides its workers, while it runs."""
    assert plan.elastic is not None, "the run is elastic"

    def say(text: str) -> None:
        note(text)
        log.write("supervision", decision=text)

    with ExitStack() as stack:
        place = stack.enter_context(_cluster(run_dir, coordinators or _named()))
        # A resumed run counts its generations from 1 again, and must not meet where those before it met.
        with suppress(FileNotFoundError):
            shutil.rmtree(run_dir / "generations")
        run = f"run-{random.randrange(2**32):08x}"
        registry = RunRegistry(place.client, run, note)
        stack.callback(registry.close)
        registry.create(plan)
        elastic = plan.elastic
        restarts = Restarts(elastic.restarts, elastic.min_workers, elastic.longest_wait_s)
        seat: dict[str, Json] = {"addresses": place.addresses, "token_file": place.token_file, "run": run}
        servers = None
        if server_names(plan):
            servers = Restarts(elastic.restarts, min_workers=1, longest_s=elastic.longest_wait_s)
        stack.enter_context(run_seat.written(run_dir, seat))
        is_held = partial(hold.is_held, run_dir)
        addresses = place.addresses.split(",")
        desk = stack.enter_context(
            Wishes(
                addresses,
                place.access,
                run,
                is_held=is_held,
                more_news=place.news,
                last_checkpoint=partial(_last_checkpoint, plan, run_dir),
            )
        )
        supervisor = ElasticSupervisor(
            seat,
            registry,
            restarts,
            say,
            elastic,
            plan.num_workers,
            server_restarts=servers,
            desk=desk,
            timeout_s=plan.timeout_s,
        )
        yield supervisor, registry


def _last_checkpoint(plan: Plan, run_dir: Path) -> str:
    newest = newest_here(plan, run_dir)
    if newest is None:
        return ""
    return f"the last checkpoint is step {sum(newest.clocks) // len(newest.clocks)}"


@dataclass(frozen=True, slots=True)
class _Place:
    client: BlockingClient
    addresses: str
    token_file: str
    access: Token | Certificate
    news: Callable[[], list[str]] = list  # of a coordinator of our own


@contextmanager
def _cluster(run_dir: Path, coordinators: Coordinators | None) -> Iterator[_Place]:
    """The given one, else one of our own, in this process."""
    if coordinators is None:
        with EmbeddedNode(run_dir) as node:
            token_file = (node.folder / FILE_NAME).resolve()
            access = security.client_access(token_file=token_file)
            yield _Place(node.client, node.address, str(token_file), access, node.news)
        return
    where = cluster_access.Where(
        usual_folder=run_dir, at=coordinators.addresses, token_file=coordinators.token_file
    )
    found = cluster_access.find(where)
    with BlockingClient(found.addresses, found.access) as client:
        token_file = coordinators.token_file.resolve()
        yield _Place(client, ",".join(found.addresses), str(token_file), found.access)


def _named() -> Coordinators | None:
    """What PACELINE_COORDINATOR says, with the tokens of this user."""
    addresses = cluster_access.named_by_environment()
    return Coordinators(addresses, cluster_access.user_token_file()) if addresses else None

"""Which checkpoint of an elastic run counts, when all workers were lost? What the coordinator has noted.

The worker that saves says so before it writes, and again when everything is on
the disk; from then on the checkpoint exists. Nothing here is on the path of a
step: it happens in the thread that writes. When the coordinator does not
answer, the checkpoint is written all the same, and is found by its files.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.checkpoints.catalog import DAMAGED, newest_shared, verified
from paceline.checkpoints.snapshot import WriteResult
from paceline.checkpoints.writer import Cataloguer
from paceline.coordinator.client.aio import RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import SystemClock, monotonic_s
from paceline.worker.elastic.membership import Membership
from paceline.worker.server.membership import ServerMembership

REPLY_TIMEOUT_S = 3.0  # how long the writing thread waits for the coordinator
RETRY_S = 0.05
WHO = "worker-0"  # who saves for all, whatever its name is


class RunCatalogue(Cataloguer):
    def __init__(self, membership: Membership, run: str) -> None:
        self._membership, self._run = membership, run
        self._trouble = ""

    @property
    def trouble(self) -> str:
        return self._trouble

    def begin(self, generation: int, at: int) -> None:
        beginning = pb.BeginCheckpoint(run=self._run, generation=generation, step=at, shards=1)
        self._say("Checkpoints.Begin", beginning)

    def durable(self, generation: int, at: int, file: Path, wrote: WriteResult) -> bool:
        shard = pb.Shard(shard=0, uri=str(file), bytes=wrote.nbytes, sha256=wrote.sha256)
        reporting = pb.ShardDurable(run=self._run, generation=generation, step=at, shard=shard)
        return self._say("Checkpoints.Report", reporting)

    def _say(self, name: str, request: pb.BeginCheckpoint | pb.ShardDurable) -> bool:
        """Was it accepted? A refusal says that the generation is over, and this entry with it."""
        self._trouble = ""
        try:
            self._membership.write(name, request, pb.Checkpoint, REPLY_TIMEOUT_S)
        except RefusedError:
            return False
        except (UnreachableError, TimeoutError) as error:
            self._trouble = f"the coordinator does not answer ({error})"
            return False
        return True


class ServerCatalogue(RunCatalogue):
    """Of parameter servers: under the epoch of their place, which may change while one is written."""

    def __init__(self, membership: ServerMembership, run: str, who: str) -> None:
        super().__init__(membership, run)
        self._places, self._who = membership, who

    def begin(self, generation: int, at: int) -> None:
        return  # all is said at once, when it is on the disk

    def durable(self, generation: int, at: int, file: Path, wrote: WriteResult) -> bool:
        until_s = monotonic_s() + REPLY_TIMEOUT_S
        while not self._is_noted(at, file, wrote):
            if self.trouble or monotonic_s() > until_s:
                return False
            SystemClock().sleep(RETRY_S)
        return True

    def _is_noted(self, at: int, file: Path, wrote: WriteResult) -> bool:
        """Only while we are primary."""
        place = self._places.standing.place
        if place.primary != self._who:
            return False
        super().begin(place.epoch, at)
        return not self.trouble and super().durable(place.epoch, at, file, wrote)


def read_catalogue(membership: Membership, run: str) -> list[pb.Checkpoint]:
    """What the catalogue has, oldest first; empty also when it cannot be asked."""
    listing = pb.ListCheckpoints(run=run)
    try:
        found = membership.read("Checkpoints.List", listing, pb.CheckpointList, REPLY_TIMEOUT_S)
    except (RefusedError, UnreachableError, TimeoutError):
        return []  # whoever cannot ask cannot join either; what is on the disk is what is known
    return list(found.checkpoints)


def find_resume_folder(
    catalogue: Sequence[pb.Checkpoint],
    root: Path,
    num_workers: int,
    resume_from: Path | None,
    note: Callable[[str], None],
) -> Path | None:
    """The folder of the newest checkpoint that is noted and verifies; None: there is none to read."""
    for entry in reversed(catalogue):
        folder = Path(entry.shards[0].uri).parent
        try:
            if verified(folder, WHO).sha256 == entry.shards[0].sha256:
                return folder
            why = "it is not the one that was noted"
        except DAMAGED as error:
            why = str(error)
        note(f"warning: checkpoint {folder.name} is damaged, the one before it is used: {why}")
    newest = newest_shared(root, num_workers)  # written, but the coordinator was not told in time
    return resume_from if newest is None else newest.folder

"""Checkpoint catalogue of an elastic run, kept by the coordinator: which checkpoint a run resumes from.

The worker that saves announces a checkpoint before it writes, and reports it when everything is on the disk;
from then on the checkpoint exists. Both happen in the writing thread, never on the path of a step. When the
coordinator does not answer, the checkpoint is written all the same, and is found by its files.
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
WHO = "worker-0"  # the name under which any worker saves for all


class RunCatalogue(Cataloguer):
    def __init__(self, membership: Membership, run: str) -> None:
        self._membership = membership
        self._run = run
        self._trouble = ""

    @property
    def trouble(self) -> str:
        return self._trouble

    def begin(self, generation: int, at: int) -> None:
        beginning = pb.BeginCheckpoint(run=self._run, generation=generation, step=at, shards=1)
        self._send("Checkpoints.Begin", beginning)

    def durable(self, generation: int, at: int, file: Path, wrote: WriteResult) -> bool:
        shard = pb.Shard(shard=0, uri=str(file), bytes=wrote.nbytes, sha256=wrote.sha256)
        reporting = pb.ShardDurable(run=self._run, generation=generation, step=at, shard=shard)
        return self._send("Checkpoints.Report", reporting)

    def _send(self, name: str, request: pb.BeginCheckpoint | pb.ShardDurable) -> bool:
        """Whether it was accepted. It is refused when the generation, and with it this entry, is over."""
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

    def __init__(self, membership: ServerMembership, run: str, participant: str) -> None:
        super().__init__(membership, run)
        self._places = membership
        self._participant = participant

    def begin(self, generation: int, at: int) -> None:
        return  # announced and reported together, when it is on the disk

    def durable(self, generation: int, at: int, file: Path, wrote: WriteResult) -> bool:
        until_s = monotonic_s() + REPLY_TIMEOUT_S
        while not self._is_noted(at, file, wrote):
            if self.trouble or monotonic_s() > until_s:
                return False
            SystemClock().sleep(RETRY_S)
        return True

    def _is_noted(self, at: int, file: Path, wrote: WriteResult) -> bool:
        """Only while we are primary."""
        place = self._places.view.place
        if place.primary != self._participant:
            return False
        super().begin(place.epoch, at)
        return not self.trouble and super().durable(place.epoch, at, file, wrote)


def read_catalogue(membership: Membership, run: str) -> list[pb.Checkpoint]:
    """The entries of the catalogue, oldest first; empty also when the coordinator does not answer."""
    request = pb.ListCheckpoints(run=run)
    try:
        listing = membership.read("Checkpoints.List", request, pb.CheckpointList, REPLY_TIMEOUT_S)
    except (RefusedError, UnreachableError, TimeoutError):
        return []  # a worker that gets no answer cannot join either; it uses what is on the disk
    return list(listing.checkpoints)


def find_resume_folder(
    catalogue: Sequence[pb.Checkpoint],
    root: Path,
    num_workers: int,
    resume_from: Path | None,
    note: Callable[[str], None],
) -> Path | None:
    """The folder of the newest checkpoint that is noted and verifies; None: there is none to read."""
    for entry in reversed(catalogue):
        # By name: the catalogue has the path on the host that wrote it.
        folder = root / Path(entry.shards[0].uri).parent.name
        try:
            if verified(folder, WHO).sha256 == entry.shards[0].sha256:
                return folder
            why = "it differs from the catalogued one"
        except DAMAGED as error:
            why = str(error)
        note(f"warning: checkpoint {folder.name} is damaged, using the previous one: {why}")
    newest = newest_shared(root, num_workers)  # written, but not reported to the coordinator in time
    return resume_from if newest is None else newest.folder

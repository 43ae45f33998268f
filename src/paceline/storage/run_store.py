"""The copy of a run folder in a store: what the run needs to continue, and its readers to judge it.

A session is one command that trains the run, from its start to its end, its loss or the take-over by another
command. It writes under `session-000001/` and nowhere else:

    session.json   created first, by one command only: where its part of the event log begins
    plan.json      and alerts.yaml, as in the run folder
    events/OFFSET  whole lines of the event log; each object begins where the one before ended
    at-NUMBER/     complete checkpoints
    result.json    last

The next session is the fence. It names the offset in the log up to which it continues the one before and the
checkpoint from which it resumed. What the session before writes later is behind that offset or that
checkpoint: readers never take it, and its command, which looks for the next session before it writes, stops.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.checkpoints.catalog import DAMAGED
from paceline.core.errors import AlreadyThereError, DamagedRecordError, ExitCode, PacelineError
from paceline.core.sealed_json import seal, unseal
from paceline.storage.checkpoint_store import CheckpointStore
from paceline.storage.objects import Objects, StoreError, open_objects

PLAN = "plan.json"
RESULT = "result.json"
RULES = "alerts.yaml"
_RECORD = "session.json"
PART_BYTES = 1 << 20  # an object of the log grows up to this size, so that a long run has few of them


class FencedError(PacelineError):
    """Another command continues this run, so this one must not write any more."""

    exit_code = ExitCode.TRAINING_FAILED
    code = "E810"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSession:
    number: int
    log_from: int  # offset at which its part of the log begins
    resumed_at: int | None  # number of the checkpoint that it resumed from; None: it began the run
    host: str
    token: str  # random: which command created it

    @property
    def name(self) -> str:
        return session_name(self.number)


def session_name(number: int) -> str:
    return f"session-{number:06d}"


class RunStore:
    def __init__(self, url: str, objects: Objects | None = None) -> None:
        self._objects = objects or open_objects(url)
        self._sessions: list[RunSession] = []  # as far as they are known; they never change
        self.url = url

    @property
    def objects(self) -> Objects:
        return self._objects

    def sessions(self) -> list[RunSession]:
        """All sessions, the first one first."""
        while (record := self._read_record(len(self._sessions) + 1)) is not None:
            self._sessions.append(record)
        return list(self._sessions)

    def create(self, *, log_from: int, resumed_at: int | None, token: str) -> RunSession | None:
        """The next session; None: another command has created it first."""
        record = RunSession(
            number=len(self._sessions) + 1,
            log_from=log_from,
            resumed_at=resumed_at,
            host=socket.gethostname(),
            token=token,
        )
        is_new = self._objects.create(f"{record.name}/{_RECORD}", seal(asdict(record))[0])
        # A request that succeeded may be repeated by the client when its answer was lost.
        return record if is_new or self._read_record(record.number) == record else None

    def begin(self, token: str) -> RunSession:
        """The first session of a run; refused if the store holds a run."""
        record = None if self.sessions() else self.create(log_from=0, resumed_at=None, token=token)
        if record is None:
            raise AlreadyThereError(
                f"{self.url} already holds a run",
                f"name another prefix, or resume that run:  paceline train --resume {self.url}",
            )
        return record

    def check_current(self, session: RunSession) -> None:
        """FencedError if another command has taken this session's run over."""
        own = self._read_record(session.number)
        newest = self._read_record(session.number + 1) or own
        if newest == session:
            return
        if newest is None:
            raise StoreError(
                f"{self.url} does not hold {session.name}", "check that the volume is mounted, or the bucket"
            )
        raise FencedError(
            f"the run in {self.url} was taken over by a command on {newest.host}, so this one stops",
            f"follow it there:  paceline status {self.url}",
        )

    # Small files: those of the newest session that has one.

    def read_file(self, name: str, *, after: int = 0) -> bytes | None:
        """Of the newest session that has it; None: no session behind number `after` has it."""
        for session in reversed(self.sessions()[after:]):
            with suppress(FileNotFoundError):
                return self._objects.read(f"{session.name}/{name}")
        return None

    def plan(self) -> bytes | None:
        return self.read_file(PLAN)

    def result(self) -> bytes | None:
        """Of the newest session only: one that resumes a run replaces the result."""
        return self.read_file(RESULT, after=len(self.sessions()) - 1) if self.sessions() else None

    # The event log.

    def log_end(self) -> int:
        """Offset behind the last byte of the log."""
        sessions = self.sessions()
        if not sessions:
            return 0
        newest = sessions[-1]
        return max([newest.log_from, *(start + size for start, size in self._parts(newest))])

    def read_log(self, start: int) -> Iterator[bytes]:
        """The bytes of the log from this offset on, over all sessions."""
        sessions = self.sessions()
        limits = [later.log_from for later in sessions[1:]]
        for session, limit in zip(sessions, [*limits, None], strict=True):
            if limit is not None and start >= limit:
                continue
            for data in self._read_part_of(session, start, limit):
                start += len(data)
                yield data
            if limit is not None and start < limit:
                raise DamagedRecordError(
                    f"{self.url} lacks the event log from byte {start} to {limit}",
                    "restore the objects that were removed from the store, or resume from the run folder",
                )

    def _read_part_of(self, session: RunSession, start: int, limit: int | None) -> Iterator[bytes]:
        for first, size in self._parts(session):
            if first > start:
                return  # a gap: what is behind it cannot be read
            if first + size <= start:
                continue
            data = self._objects.read(part_name(session, first), start - first)
            data = data if limit is None else data[: max(0, limit - start)]
            start += len(data)
            yield data
            if limit is not None and start >= limit:
                return

    def _parts(self, session: RunSession) -> list[tuple[int, int]]:
        """(offset, bytes) of the objects of a session's log, in order.

        Other files are left out: NFS keeps a file that is replaced while it is read as `.nfs…`.
        """
        under = f"{session.name}/events/"
        sizes = {name.removeprefix(under): size for name, size in self._objects.sizes(under).items()}
        return sorted((int(name), size) for name, size in sizes.items() if name.isdecimal())

    # Checkpoints.

    def checkpoints_of(self, session: RunSession) -> CheckpointStore:
        return CheckpointStore(self._objects, session.name)

    def checkpoints(self) -> dict[int, CheckpointStore]:
        """Every checkpoint in the history of the newest session, by number, with its place."""
        found: dict[int, CheckpointStore] = {}
        limit: int | None = None
        for session in reversed(self.sessions()):
            checkpoints = self.checkpoints_of(session)
            for number in checkpoints.numbers():
                if limit is None or number <= limit:
                    found.setdefault(number, checkpoints)
            if session.resumed_at is not None:
                limit = session.resumed_at if limit is None else min(limit, session.resumed_at)
        return dict(sorted(found.items()))

    def fetch_newest(self, root: Path, *, after: int) -> list[str]:
        """Bring the newest whole checkpoint behind `after` into `root`; the names that were passed over."""
        passed_over = []
        for number, checkpoints in reversed(self.checkpoints().items()):
            if number <= after:
                break
            try:
                checkpoints.download(number, root)
                break
            except DAMAGED:
                passed_over.append(f"at-{number:08d}")
        return passed_over

    def _read_record(self, number: int) -> RunSession | None:
        name = f"{session_name(number)}/{_RECORD}"
        try:
            facts, _ = unseal(self._objects.read(name))
            return RunSession(**facts)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRecordError(
                f"{self.url}/{name} cannot be read: {error}",
                "restore this object, or resume from the run folder",
            ) from error


def part_name(session: RunSession, start: int) -> str:
    return f"{session.name}/events/{start:020d}"


@dataclass(slots=True)
class LogWriter:
    """Appends to the log of a session: the newest object grows until it has PART_BYTES."""

    objects: Objects
    session: RunSession
    start: int  # offset of the newest object
    data: bytes = b""  # what it has

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def append(self, more: bytes) -> None:
        """Unchanged when the store fails."""
        if len(self.data) >= PART_BYTES:
            self.start = self.end
            self.data = b""
        data = self.data + more
        self.objects.write(part_name(self.session, self.start), data)
        self.data = data

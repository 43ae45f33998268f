"""Copy of a run folder in a store while the run trains (storage/run_store.py), and its fence.

Two threads of the command. One copies new lines of the event log every few seconds, after it has checked
that no other command continues the run. The other uploads the newest complete checkpoint: its manifest is
written when the log has been copied at least to where it ended when the checkpoint was complete. So what
the store holds is always a run folder as it could have been at one moment. Checkpoints in between are
skipped when the store is slower than the run.

An error of the store never ends the training: it is reported once, and the copy catches up. `check` stops a
command that was replaced, with FencedError in the thread that trains, and one whose copy ended by a fault.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from paceline.checkpoints.catalog import Checkpoint, newest_complete, newest_shared, number_of
from paceline.core.clock import monotonic_s
from paceline.core.errors import PacelineError
from paceline.events.segments import chunks, end_of_lines
from paceline.plan.codec import Json
from paceline.plan.plan import Plan
from paceline.storage.objects import StoreError
from paceline.storage.run_store import PLAN, RESULT, RULES, FencedError, LogWriter, RunSession, RunStore
from paceline.training.resume import CHECKPOINT_DIR, has_shared_snapshot
from paceline.training.run_sessions import next_session, record_session

COPY_S = 2.0  # between two copies of new lines
RETRY_S = 5.0  # between two attempts to upload a checkpoint
FINISH_S = 60.0  # for what is left at the end of the run
LOG_BYTES = 4 << 20  # at once
_TROUBLE = (PacelineError, OSError)  # of the store, or of the disk
_LOG = "log"  # parts of the copy
_CHECKPOINTS = "checkpoints"

Note = Callable[[str], None]


class RunCopier:
    def __init__(
        self, plan: Plan, run_dir: Path, store: RunStore | None, note: Note, *, copy_s: float = COPY_S
    ) -> None:
        self.uploaded: list[str] = []  # names of checkpoints
        self._plan = plan
        self._run_dir = run_dir
        self._store = store
        self._note = note
        self._copy_s = copy_s
        self._drop: Callable[[int], None] | None = None
        self._drop_lock = threading.Lock()
        self._copying = threading.Lock()  # held while the log is copied
        self._uploading = threading.Lock()  # held while a checkpoint is uploaded
        self._claim: Callable[[RunStore], RunSession] | None = None  # until the session is created
        self._writer: LogWriter | None = None
        self._copied: dict[str, bytes] = {}  # small files, as the store has them
        self._fenced: FencedError | None = None
        self._fault: Exception | None = None  # which ended a thread
        self._behind: set[str] = set()  # parts whose last attempt failed
        self._changed = threading.Condition()
        self._removed: deque[int] = deque()
        self._is_pending = self._is_closing = False
        self._has_removed_earlier = False  # the checkpoints of earlier sessions
        self._last_uploaded = -1  # number of the newest uploaded checkpoint
        self._keeper: threading.Thread | None = None  # started by the first checkpoint
        self._copier: threading.Thread | None = None

    # Sessions.

    def begin(self) -> None:
        """The first session of a new run; an error of the store is raised, since nothing has begun."""
        if self._store is not None:
            self._take(self._store, self._store.begin(secrets.token_hex(16)))

    def resume(self, checkpoint: Checkpoint) -> None:
        """The next session of a run that resumes from this checkpoint.

        FencedError if the folder's copy was continued by another command. Without the store the run trains,
        and the session is created when the store is back.
        """
        if self._store is None:
            return
        token = secrets.token_hex(16)
        number = number_of(checkpoint.folder)

        def claim(store: RunStore) -> RunSession:
            return next_session(store, self._run_dir, token, resumed_at=number)

        self._claim = claim
        self._is_pending = True  # so that the session has the checkpoint that it began with
        try:
            self._take(self._store, claim(self._store))
        except StoreError as error:
            self._report(error, _LOG)

    def _take(self, store: RunStore, session: RunSession) -> None:
        record_session(self._run_dir, session)
        self._writer = LogWriter(store.objects, session, start=session.log_from)
        self._claim = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Copy while the block runs, then what is left; after an error there is one attempt."""
        if self._store is not None:
            self._copier = threading.Thread(
                target=self._guard, args=(partial(self._copy_all, self._store),), name="run-copy", daemon=True
            )
            self._copier.start()
            if self._is_pending:
                self._start_keeper()
        try:
            yield
        except BaseException:
            self.close(wait=False)
            raise
        self.close(wait=True)

    def check(self) -> None:
        """FencedError when another command has taken the run over; the fault that ended a thread."""
        if self._fenced is not None:
            raise self._fenced
        if self._fault is not None:
            raise self._fault

    # Called by the launcher.

    def on_checkpoint(self, message: dict[str, Json]) -> None:
        """Handle a worker's message that it wrote a checkpoint."""
        with self._changed:
            self._removed.extend(int(number) for number in str(message["removed"]).split(",") if number)
            self._is_pending = True
            self._changed.notify_all()
        self._start_keeper()

    @contextmanager
    def reporting_removals(self, drop: Callable[[int], None]) -> Iterator[None]:
        """Within this context, `drop(step)` is called for each checkpoint that was removed."""
        self._drop = drop
        try:
            yield
        finally:
            with self._drop_lock:
                self._drop = None

    def close(self, *, wait: bool) -> None:
        """End the threads. With `wait`, first copy what is left, or report why that failed."""
        with self._changed:
            self._is_closing = True
            self._is_pending |= wait
            self._changed.notify_all()
        if wait and self._keeper is not None:
            self._keeper.join()
        if self._copier is not None:
            self._copier.join()
        if self._store is not None and self._fenced is None:
            self._finish(self._store, FINISH_S if wait else 0.0)

    def _finish(self, store: RunStore, within_s: float) -> None:
        """Copy the last lines and the result, which is last, so that a copy with a result is whole."""
        until_s = monotonic_s() + within_s
        while not self._try(store, self._copy_rest, _LOG, _CHECKPOINTS):
            left_s = until_s - monotonic_s()
            if left_s <= 0:
                self._note(
                    f"warning: {store.url} lacks the end of this run; when it is back:  "
                    f"paceline train --resume {self._run_dir}"
                )
                return
            threading.Event().wait(min(self._copy_s, left_s))

    # The log and the small files.

    def _guard(self, work: Callable[[], None]) -> None:
        """A thread's work. A fault that nothing expects ends the run, which would go on without a copy."""
        try:
            work()
        except Exception as error:
            self._fault = error
            self._note(f"warning: the copy of the run in {self._run_dir} has ended: {error!r}")

    def _copy_all(self, store: RunStore) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closing, timeout=self._copy_s):
                    return
            self._try(store, self._copy, _LOG)
            if self._fenced is not None:
                return

    def _try(self, store: RunStore, action: Callable[[RunStore], object], *parts: str) -> bool:
        try:
            action(store)
        except FencedError as error:
            self._fenced = error
            return True
        except _TROUBLE as error:
            self._report(error, *parts)
            return False
        with self._changed:
            has_caught_up = bool(self._behind) and self._behind.issubset(parts)
            self._behind.difference_update(parts)
        if has_caught_up:
            self._note(f"the copy of the run in {store.url} has caught up")
        return True

    def _report(self, error: BaseException, *parts: str) -> None:
        assert self._store is not None, "there is a store that failed"
        with self._changed:
            is_new = not self._behind
            self._behind.update(parts)
        if is_new:
            self._note(
                f"warning: the copy of the run in {self._store.url} is behind, and is retried: {error}"
            )

    def _copy(self, store: RunStore) -> LogWriter:
        """Everything but checkpoints and the result. FencedError before anything is written."""
        with self._copying:
            if self._claim is not None:
                self._take(store, self._claim(store))
            writer = self._writer
            assert writer is not None, "a copy begins with a session"
            store.check_current(writer.session)
            log = self._run_dir / "events.jsonl"
            for data in chunks(log, writer.end, end=end_of_lines(log), size=LOG_BYTES):
                writer.append(data)
            for name in (PLAN, RULES):
                self._copy_file(writer, name)
            return writer

    def _copy_file(self, writer: LogWriter, name: str) -> None:
        path = self._run_dir / name
        if path.exists() and (data := path.read_bytes()) != self._copied.get(name):
            writer.objects.write(f"{writer.session.name}/{name}", data)
            self._copied[name] = data

    def _copy_rest(self, store: RunStore) -> None:
        self._upload_newest(store)
        writer = self._copy(store)
        self._copy_file(writer, RESULT)

    # Checkpoints.

    def _start_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(
                target=self._guard, args=(self._keep,), name="checkpoint-keeper", daemon=True
            )
            self._keeper.start()

    def _keep(self) -> None:
        is_retried = False
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_pending or self._is_closing, timeout=RETRY_S if is_retried else None
                )
                if self._is_closing and not self._is_pending:
                    return
                self._is_pending = False
            self._drop_removed()
            if self._store is not None:
                is_retried = not self._try(self._store, self._upload_newest, _CHECKPOINTS)

    def _drop_removed(self) -> None:
        while self._removed:
            number = self._removed.popleft()
            with self._drop_lock:
                if self._drop is not None:  # workers number them by shares, servers by versions
                    shares = self._plan.num_workers if has_shared_snapshot(self._plan) else 1
                    self._drop(number // shares)

    def _upload_newest(self, store: RunStore) -> None:
        with self._uploading:  # after an error of the run the keeper may still upload
            self._upload_checkpoint(store)

    def _upload_checkpoint(self, store: RunStore) -> None:
        newest = newest_shared if has_shared_snapshot(self._plan) else newest_complete
        checkpoint = newest(self._run_dir / CHECKPOINT_DIR, self._plan.num_workers)
        if checkpoint is None or number_of(checkpoint.folder) <= self._last_uploaded:
            return
        session = self._copy(store).session
        checkpoints = store.checkpoints_of(session)
        try:
            checkpoints.upload(checkpoint.folder, before_commit=lambda: self._copy(store))
        except FileNotFoundError:
            return  # a newer one replaced it meanwhile, and its message is here or will be
        self._last_uploaded = number_of(checkpoint.folder)
        self.uploaded.append(checkpoint.folder.name)
        self._remove_old(store, session)

    def _remove_old(self, store: RunStore, session: RunSession) -> None:
        checkpoints = store.checkpoints_of(session)
        numbers = checkpoints.numbers()
        for number in numbers[: -self._plan.keep_checkpoints]:
            checkpoints.remove(number)
        if len(numbers) < self._plan.keep_checkpoints or self._has_removed_earlier:
            return
        self._has_removed_earlier = True
        for earlier in map(store.checkpoints_of, store.sessions()[: session.number - 1]):
            for number in earlier.numbers():
                earlier.remove(number)

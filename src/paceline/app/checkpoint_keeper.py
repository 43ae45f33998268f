"""Who looks after checkpoints that are on the disk? A thread of the command, never a worker.

It copies the newest whole one into the object store, and tells the coordinator
which ones are gone. Workers say when there is something new. If it falls
behind, it takes the newest and leaves out those between. What fails is said
once and tried again with the next one; training does not notice.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.app.resume import FOLDER, has_shared
from paceline.checkpoints.catalog import newest_complete, newest_shared, number_of
from paceline.checkpoints.object_store import ObjectStore, StoreError
from paceline.plan.codec import Json
from paceline.plan.plan import Plan


class CheckpointKeeper:
    def __init__(
        self, plan: Plan, run_dir: Path, store: ObjectStore | None, note: Callable[[str], None]
    ) -> None:
        self._drop: Callable[[int], None] | None = None
        self._dropping = threading.Lock()
        self.uploaded: list[str] = []
        self._plan, self._root, self._store, self._note = plan, run_dir / FOLDER, store, note
        self._changed = threading.Condition()
        self._removed: deque[int] = deque()
        self._has_news = self._is_closing = self._is_failing = False
        self._sent = -1  # the newest that the store has from us
        self._thread: threading.Thread | None = None  # from the first checkpoint on

    def heard(self, message: dict[str, Json]) -> None:
        """A worker's message that a checkpoint was written."""
        with self._changed:
            self._removed.extend(int(number) for number in str(message["removed"]).split(",") if number)
            self._has_news = True
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="checkpoint-keeper", daemon=True)
            self._thread.start()

    @contextmanager
    def telling(self, drop: Callable[[int], None]) -> Iterator[None]:
        """While this lasts, `drop` tells the catalogue after which step a checkpoint is gone."""
        self._drop = drop
        try:
            yield
        finally:
            with self._dropping:
                self._drop = None

    def close(self, *, wait: bool) -> None:
        """With `wait` the newest checkpoint is in the store when this returns, or it was said why not."""
        with self._changed:
            self._is_closing = True
            self._has_news |= wait
            self._changed.notify_all()
        if wait and self._thread is not None:
            self._thread.join()

    def _keep(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_news or self._is_closing)
                if not self._has_news:
                    return
                self._has_news = False
            self._drop_removed()
            if self._store is not None:
                self._copy_newest(self._store)

    def _drop_removed(self) -> None:
        while self._removed:
            number = self._removed.popleft()
            with self._dropping:
                if self._drop is not None:  # workers name them by shares, servers by versions
                    shares = self._plan.num_workers if has_shared(self._plan) else 1
                    self._drop(number // shares)

    def _copy_newest(self, store: ObjectStore) -> None:
        newest = newest_shared if has_shared(self._plan) else newest_complete
        found = newest(self._root, self._plan.num_workers)
        if found is None or number_of(found.folder) <= self._sent:
            return
        try:
            store.upload(found.folder)
            self._sent = number_of(found.folder)
            self.uploaded.append(found.folder.name)
            for number in store.numbers()[: -self._plan.keep_checkpoints]:
                store.remove(number)
        except (StoreError, FileNotFoundError) as error:  # or it was removed meanwhile, for newer ones
            if not self._is_failing:
                self._note(f"warning: checkpoint {found.folder.name} is not in {store.url}: {error}")
            self._is_failing = True
            return
        self._is_failing = False

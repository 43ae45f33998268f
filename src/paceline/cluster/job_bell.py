"""When is it worth looking at a job again? As soon as the server says that something of it has changed.

A watch only rings. What is true is read anew each time, so nothing is lost when a watch is cut or its past is
forgotten by the server (410): then it rings too, because anything may have happened.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.cluster.kinds import Kind
from paceline.cluster.port import Api, ApiError, ForbiddenError, GoneError, NotThereError
from paceline.kube.diagnosis.snapshot import name_of

_PAUSE_S = 2.0
_BREATH_S = 0.2
_WATCH_S = 50.0


@dataclass(slots=True)
class Bell:
    api: Api
    namespace: str
    job: str
    ring: Callable[[], None]
    _over: threading.Event = field(default_factory=threading.Event)

    def listen(self, *kinds: Kind) -> None:
        for kind in kinds:
            threading.Thread(
                target=self._listen, args=(kind,), name=f"watch {kind.plural}", daemon=True
            ).start()

    def close(self) -> None:
        """Threads end with their next word from the server, or with the process."""
        self._over.set()

    def _listen(self, kind: Kind) -> None:
        since = ""
        while not self._over.is_set():
            try:
                if not since:
                    since = self.api.find(kind, self.namespace).version
                    self.ring()
                for change in self.api.watch(kind, self.namespace, since=since, seconds=_WATCH_S):
                    if self._over.is_set():
                        return
                    since = change.version
                    if name_of(change.object).startswith(self.job):
                        self.ring()
                self._over.wait(_BREATH_S)  # a server that ends every watch at once is not run down
            except GoneError:
                since = ""
            except (ForbiddenError, NotThereError):  # looking now and then must do
                return
            except ApiError:  # cut off, or a login that is being renewed
                self._over.wait(_PAUSE_S)

"""How do the logs of all pods of a job arrive, whatever happens to connections? A thread for each container.

A stream that is cut is opened again a little before the point where it was cut; kube/submission/log_lines.py
knows which lines are new.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.clock import monotonic_s
from paceline.cluster.kinds import POD
from paceline.cluster.port import Api, ApiError, ForbiddenError, NotThereError
from paceline.kube.diagnosis.snapshot import Object, name_of
from paceline.kube.reading import mapping, mappings
from paceline.kube.secrets import hidden
from paceline.kube.submission.log_lines import LogCursor
from paceline.kube.submission.prefix import prefix_of

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
_BEGUN = ("terminated", "running")
_GOING_S = 0.5  # for what those wrote last that run on when their job is over, such as Ray's head


@dataclass(frozen=True, slots=True)
class Line:
    prefix: str
    text: str
    pod: str = ""


@dataclass(slots=True)
class LogStreams:
    api: Api
    namespace: str
    job: str
    put: Callable[[Line], None]
    _threads: dict[tuple[str, str, int], threading.Thread] = field(default_factory=dict)
    _ended: set[tuple[str, str, int]] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)

    def follow(self, pods: Sequence[Object]) -> None:
        """Those containers that have begun, and are not followed yet."""
        for pod in pods:
            uid = str(mapping(pod, "metadata").get("uid", name_of(pod)))
            for status in mappings(pod, "status", "containerStatuses"):
                restarts = status.get("restartCount")
                key = (uid, str(status.get("name")), restarts if isinstance(restarts, int) else 0)
                if mapping(status, "state", "terminated"):
                    self._ended.add(key)
                if key not in self._threads and any(mapping(status, "state", one) for one in _BEGUN):
                    self._threads[key] = self._start(pod, key[1], key[2])

    def _start(self, pod: Object, container: str, restarts: int) -> threading.Thread:
        arguments = (name_of(pod), container, restarts, prefix_of(pod, self.job))
        thread = threading.Thread(
            target=self._stream, args=arguments, name=f"log {name_of(pod)}", daemon=True
        )
        thread.start()
        return thread

    def finish(self, within_s: float) -> bool:
        """Wait for the ends of the logs of containers that have ended; False when some have none yet. Then
        nothing more is put."""
        began_s = monotonic_s()
        for key, thread in self._threads.items():
            most_s = within_s if key in self._ended else min(within_s, _GOING_S)
            thread.join(max(0.0, began_s + most_s - monotonic_s()))
        self._over.set()
        return not any(thread.is_alive() for thread in self._threads.values())

    def _stream(self, pod: str, container: str, restarts: int, prefix: str) -> None:
        cursor, pause_s = LogCursor(), _FIRST_PAUSE_S
        while not self._over.is_set():
            cursor.opened()
            try:
                for line in self.api.logs(pod, self.namespace, container, since=cursor.since, follow=True):
                    text = cursor.take(line)
                    if self._over.is_set():
                        return
                    if text is not None:
                        pause_s = _FIRST_PAUSE_S
                        self.put(Line(prefix, hidden(text), pod))
                if self._has_ended(pod, container, restarts):
                    return
            except (NotThereError, ForbiddenError) as error:
                if isinstance(error, ForbiddenError):
                    self.put(Line(prefix, f"(its log may not be read: {error})", pod))
                return
            except ApiError:
                # Cut off, a container that is not ready yet, or a login that is being renewed.
                self._over.wait(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _has_ended(self, pod: str, container: str, restarts: int) -> bool:
        """The stream came to an orderly end; but servers also end streams of containers that go on. One that
        was started again has a stream of its own."""
        try:
            now = self.api.get(POD, pod, self.namespace)
        except NotThereError:
            return True
        except ApiError:
            return False
        mine = [one for one in mappings(now, "status", "containerStatuses") if one.get("name") == container]
        return not any(
            mapping(one, "state", "running") and one.get("restartCount", 0) == restarts for one in mine
        )

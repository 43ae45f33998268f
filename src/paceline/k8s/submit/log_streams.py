"""Log streams of all pods of a job, across lost connections. A thread for each container.

A stream that is cut is opened again a little before the point where it was cut; k8s/submit/log_lines.py
knows which lines are new.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from paceline.core.clock import monotonic_s
from paceline.core.redaction import LineRedactor
from paceline.k8s.client.api import Api, ApiError, ForbiddenError, NotThereError, RefusedError
from paceline.k8s.diagnose.snapshot import Object, name_of
from paceline.k8s.kinds import POD
from paceline.k8s.objects import mapping, mappings, strip_ansi
from paceline.k8s.submit.log_lines import LogCursor, prefix_of

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 15.0
_BEGUN = ("terminated", "running")
_GOING_S = 0.5  # for the last lines of containers that outlive their job, such as Ray's head


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
        """Those containers that have begun, and are not followed yet. One that was started again before it
        was inspected has left a log too."""
        for pod in pods:
            for status in mappings(pod, "status", "containerStatuses"):
                restarts = _restarts(status)
                if not mapping(status, "state", "running"):
                    self._ended.add(_key(pod, status, restarts))
                if restarts > 0:
                    self._ended.add(_key(pod, status, restarts - 1))
                    self._start(pod, status, restarts - 1)
                if _has_begun(status):
                    self._start(pod, status, restarts)

    def _start(self, pod: Object, status: Object, restarts: int) -> None:
        key = _key(pod, status, restarts)
        if key in self._threads:
            return
        of = _Of(name_of(pod), key[0], key[1], restarts, prefix_of(pod, self.job))
        target = self._stream if restarts == _restarts(status) else self._read_previous
        thread = threading.Thread(
            target=target, args=(of, LogCursor()), name=f"log {name_of(pod)}", daemon=True
        )
        self._threads[key] = thread
        thread.start()

    def finish(self, within_s: float) -> bool:
        """Wait for the ends of the logs of containers that have ended; False when some have none yet. Then
        nothing more is put."""
        began_s = monotonic_s()
        for key, thread in self._threads.items():
            most_s = within_s if key in self._ended else min(within_s, _GOING_S)
            thread.join(max(0.0, began_s + most_s - monotonic_s()))
        self._over.set()
        return not any(thread.is_alive() for thread in self._threads.values())

    def _stream(self, of: "_Of", cursor: LogCursor) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._over.is_set():
            cursor.opened()
            before = cursor.news
            try:
                self._take(of, cursor, follow=True)
                cut = False
            except (NotThereError, ForbiddenError) as error:
                self._log_forbidden(of, error)
                return
            except ApiError:
                cut = True  # or a container that is not ready yet, or a login that is being renewed
            if not cut and self._now(of) is _Now.ENDED:
                return
            # Cut; but servers also end streams of containers that continue.
            pause_s = _FIRST_PAUSE_S if cursor.news > before else min(pause_s * 2, _LONGEST_PAUSE_S)
            self._over.wait(pause_s)
            now = self._now(of)
            if now is _Now.NEXT:  # a stream that is opened now would be that of the next one
                self._read_previous(of, cursor)
            if now in (_Now.NEXT, _Now.GONE):
                return

    def _read_previous(self, of: "_Of", cursor: LogCursor) -> None:
        """Read the rest of a restarted container's previous log. Servers keep one."""
        pause_s = _FIRST_PAUSE_S
        while not self._over.is_set() and self._now(of) is not _Now.GONE:
            cursor.opened()
            try:
                self._take(of, cursor, previous=True)
                return
            except (NotThereError, ForbiddenError, RefusedError) as error:  # it is kept no longer
                self._log_forbidden(of, error)
                return
            except ApiError:
                self._over.wait(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _take(self, of: "_Of", cursor: LogCursor, *, follow: bool = False, previous: bool = False) -> None:
        """Raises ApiError."""
        where = (of.pod, self.namespace, of.container)
        redactor = LineRedactor()
        for line in self.api.logs(*where, since=cursor.since, follow=follow, previous=previous):
            text = cursor.take(line)
            if self._over.is_set():
                return
            if text is not None:
                self.put(Line(of.prefix, redactor.line(strip_ansi(text)), of.pod))

    def _log_forbidden(self, of: "_Of", error: ApiError) -> None:
        if isinstance(error, ForbiddenError):
            self.put(Line(of.prefix, f"(its log cannot be read: {error})", of.pod))

    def _now(self, of: "_Of") -> "_Now":
        try:
            now = self.api.get(POD, of.pod, self.namespace)
        except NotThereError:
            return _Now.GONE
        except ApiError:
            return _Now.RUNS  # as far as is known
        if _uid(now) != of.uid:
            return _Now.GONE  # a new pod of the same name has its own stream
        statuses = [
            status
            for status in mappings(now, "status", "containerStatuses")
            if status.get("name") == of.container
        ]
        later = max((_restarts(status) - of.restarts for status in statuses), default=0)
        if later > 0:
            return _Now.NEXT if later == 1 else _Now.GONE
        return _Now.RUNS if any(mapping(status, "state", "running") for status in statuses) else _Now.ENDED


class _Now(Enum):
    """State of a container whose stream has ended."""

    RUNS = "runs"
    ENDED = "ended"
    NEXT = "started again"
    GONE = "lost with its pod, or the container restarted several times"


@dataclass(frozen=True, slots=True)
class _Of:
    """One incarnation of one container."""

    pod: str
    uid: str
    container: str
    restarts: int
    prefix: str


def _uid(pod: Object) -> str:
    return str(mapping(pod, "metadata").get("uid", name_of(pod)))


def _key(pod: Object, status: Object, restarts: int) -> tuple[str, str, int]:
    return _uid(pod), str(status.get("name")), restarts


def _restarts(status: Object) -> int:
    count = status.get("restartCount")
    return count if isinstance(count, int) else 0


def _has_begun(status: Object) -> bool:
    """Whether it has started, also if it ended and waits for a restart: until then, its log is the newest."""
    return any(mapping(status, "state", state) for state in _BEGUN) or bool(
        mapping(status, "lastState", "terminated")
    )

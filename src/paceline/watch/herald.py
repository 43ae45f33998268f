"""Who sends messages while a run trains? One herald for each run, however many look at it.

It follows the log as everybody does, asks each notifier's courier what is due, and
hands that to the notifier's own thread: one that hangs holds up nobody. What was sent,
and what was not, goes into the log.
"""

import fcntl
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.errors import PacelineError
from paceline.events.log import EventLog
from paceline.watch.courier import Courier, Limited, Message, Told
from paceline.watch.feed import Feed
from paceline.watch.notifiers import NotDeliveredError, Notifier, open_notifier
from paceline.watch.rules import NotifierSetting, Rules
from paceline.watch.run_clock import RunClock

LOCK_NAME = "alerts.lock"
BACKLOG = 100
FIRST_PAUSE_S = 0.2
LAST_WORDS_S = 30.0


class AlreadyWatchedError(PacelineError):
    """Another command sends this run's messages."""


class Herald:
    """`tick` looks once; between `with` and its end nobody else sends for this run."""

    def __init__(self, run_dir: Path, rules: Rules, say: Callable[[str], None]) -> None:
        self._run_dir, self._rules, self._say = run_dir, rules, say
        self.feed = Feed(run_dir, rules=rules)

    def __enter__(self) -> Self:
        self._lock = (self._run_dir / LOCK_NAME).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise AlreadyWatchedError(
                f"another command already sends the messages of {self._run_dir}", "end that one first"
            ) from error
        path = self._run_dir / "events.jsonl"
        self._log = EventLog(path, who="herald", clock=RunClock(path))
        self._lines = [
            _Line(s, self._rules.repeat_s, self._run_dir, self._say, self._record)
            for s in self._rules.notifiers
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines:
            line.close()
        self._log.close()
        self._lock.close()

    def tick(self) -> bool:
        """Read what is new and pass on what is due; False once the run is over."""
        self.feed.read()
        self._offer()
        return not self.feed.view.track.is_over

    def end(self) -> None:
        """The run ends now: what fires is told to be over."""
        self.feed.read()
        self.feed.view.end()
        self._offer()

    def _offer(self) -> None:
        now_ns, view = self.feed.now_ns(), self.feed.view
        alerts = view.snapshot(now_ns)["alerts"]
        assert isinstance(alerts, list), "a snapshot lists its alerts"
        told = [alert for alert in alerts if isinstance(alert, dict)]
        for line in self._lines:
            line.offer((now_ns - view.t0_ns) / 1e9, view.track.run, told, view.track.started_unix_s)

    def _record(self, notifier: str, outcome: str, alerts: int) -> None:
        with suppress(OSError):  # the log is gone with its disk; the message is not
            self._log.write("notified", notifier=notifier, outcome=outcome, alerts=alerts)


class _Line:
    """One notifier, with its courier and its thread."""

    def __init__(
        self,
        setting: NotifierSetting,
        repeat_s: float,
        folder: Path,
        say: Callable[[str], None],
        record: Callable[[str, str, int], None],
    ) -> None:
        self._setting, self._say, self._record = setting, say, record
        self._courier = Courier(setting, repeat_s)
        self._notifier = open_notifier(setting, folder, say)
        self._waiting: queue.Queue[tuple[str, Message, float] | None] = queue.Queue(BACKLOG)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"notifier {setting.name}", daemon=True)
        self._thread.start()

    def offer(self, now_s: float, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        if self._waiting.full():
            return  # it is still busy with what it has; the courier will find this due again
        match self._courier.due(now_s, alerts):
            case Message() as message:
                self._waiting.put((run, message, began_unix_s))
            case Limited(name, count):
                self._record(name, "limited", count)
            case None:
                pass

    def close(self) -> None:
        """What is waiting is still sent, if that does not take too long."""
        self._waiting.put(None)
        self._thread.join(LAST_WORDS_S)
        self._is_over.set()

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            run, message, began_unix_s = item
            outcome = "sent"
            try:
                deliver(
                    self._notifier, self._setting.retries, run, message.alerts, began_unix_s, self._is_over
                )
            except (NotDeliveredError, OSError) as error:
                outcome = "failed"
                self._say(f"warning: {error}")
            self._record(self._setting.name, outcome, len(message.alerts))


def deliver(
    notifier: Notifier,
    retries: int,
    run: str,
    alerts: tuple[Told, ...],
    began_unix_s: float,
    is_over: threading.Event,
) -> None:
    """Again after 0.2, 0.4, 0.8 … seconds; the last failure is the caller's."""
    for attempt in range(retries + 1):
        try:
            return notifier.send(run, alerts, began_unix_s)
        except (NotDeliveredError, OSError):
            if attempt == retries or is_over.wait(FIRST_PAUSE_S * 2**attempt):
                raise
    return None

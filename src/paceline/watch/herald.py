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

from paceline.clock import monotonic_s
from paceline.errors import PacelineError
from paceline.events.log import EventLog
from paceline.redaction import redact, redact_json
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

    code = "E321"


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
        try:
            self._log = EventLog(path, who="herald", clock=RunClock(path))
        except BaseException:
            self._lock.close()
            raise
        self._lines = [
            _Line(s, self._rules, self._run_dir, self._say, self._record) for s in self._rules.notifiers
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        give_up_s = monotonic_s() + LAST_WORDS_S  # for all of them together
        for line in self._lines:
            line.finish()
        for line in self._lines:
            line.join(give_up_s)
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
        for line in self._lines:
            line.hurry()
        self._offer()

    def _offer(self) -> None:
        now_ns, view = self.feed.now_ns(), self.feed.view
        told = view.alerts(now_ns, with_ended=any(line.has_told for line in self._lines))
        for line in self._lines:
            line.offer((now_ns - view.t0_ns) / 1e9, view.track.run, told, view.track.started_unix_s)

    def _record(self, notifier: str, outcome: str, alerts: int) -> None:
        try:
            self._log.write("notified", notifier=notifier, outcome=outcome, alerts=alerts)
        except (OSError, AssertionError) as error:  # the disk is full or gone; messages still go out
            self._say(f"warning: that {notifier} was told ({outcome}) is not in the log: {error}")


class _Line:
    """One notifier, with its courier and its thread."""

    def __init__(
        self,
        setting: NotifierSetting,
        rules: Rules,
        folder: Path,
        say: Callable[[str], None],
        record: Callable[[str, str, int], None],
    ) -> None:
        self._setting, self._say, self._record = setting, say, record
        self._courier = Courier(setting, rules.repeat_s, rules.group_wait_s, rules.group_interval_s)
        self._notifier = open_notifier(setting, folder, say)
        self._waiting: queue.Queue[tuple[str, Message, float] | None] = queue.Queue(BACKLOG)
        self._is_over = threading.Event()
        self._undelivered: queue.SimpleQueue[Message] = queue.SimpleQueue()  # for the courier's own thread
        self._thread = threading.Thread(target=self._work, name=f"notifier {setting.name}", daemon=True)
        self._thread.start()

    def offer(self, now_s: float, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        while not self._undelivered.empty():
            self._courier.failed(self._undelivered.get(), now_s)
        if self._waiting.full():
            return  # it is still busy with what it has; the courier will find this due again
        match self._courier.due(now_s, alerts):
            case Message() as message:
                self._waiting.put((run, message, began_unix_s))
            case Limited(name, count):
                self._record(name, "limited", count)
            case None:
                pass

    @property
    def has_told(self) -> bool:
        return self._courier.has_told or not self._undelivered.empty()

    def hurry(self) -> None:
        self._courier.hurry()

    def finish(self) -> None:
        """Nothing more will be offered; what is waiting is still sent, if that does not take too long."""
        with suppress(queue.Full):  # then it hangs, and is left behind
            self._waiting.put_nowait(None)

    def join(self, give_up_s: float) -> None:
        self._thread.join(max(0.0, give_up_s - monotonic_s()))
        self._is_over.set()
        if self._thread.is_alive():
            self._say(f"warning: {self._setting.name} still hangs; its last messages may be lost")

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            run, message, began_unix_s = item
            outcome = "sent"
            try:
                deliver(
                    self._notifier, self._setting.retries, run, message.alerts, began_unix_s, self._is_over
                )
            except Exception as error:
                # Whatever it is: this thread is the only one that sends, and must not end by it.
                outcome = "failed"
                self._undelivered.put(message)
                is_known = isinstance(error, NotDeliveredError | OSError)
                self._say(
                    redact(f"warning: {error}" if is_known else f"warning: {type(error).__name__}: {error}")
                )
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
    alerts = redact_json(alerts)
    for attempt in range(retries + 1):
        try:
            return notifier.send(run, alerts, began_unix_s)
        except (NotDeliveredError, OSError):
            if attempt == retries or is_over.wait(FIRST_PAUSE_S * 2**attempt):
                raise
    return None

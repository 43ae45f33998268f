"""Alert delivery while a run trains: one `AlertNotifier` per run follows its log and sends.

It asks the policy of each notifier what is due, and hands the message to the notifier's own
thread, so a notifier that hangs does not delay the others. Sent and failed messages are
recorded in the log. A file lock makes sure that only one process sends for a run.

Each session of a run (it may be resumed, on another machine or after a reboot) has its own clock
origin: events that are appended here use the clock of the newest session (`RunClock`).
"""

import fcntl
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.core.clock import monotonic_s, unix_now_s
from paceline.core.errors import NoSuchRunError, PacelineError, Problem, RulesFileError
from paceline.core.redaction import redact, redact_json
from paceline.events.log import EventLog
from paceline.events.segments import newest_session
from paceline.monitoring.alerts.notification_policy import AlertDict, Message, NotificationPolicy, RateLimited
from paceline.monitoring.alerts.notifiers import NotDeliveredError, Notifier, open_notifier, sample_alert
from paceline.monitoring.alerts.rule_file import default_rules, load_rules
from paceline.monitoring.alerts.rules import NotifierSetting, Rules
from paceline.monitoring.view.feed import RULES_NAME, Feed

# Each session of a run (it may be resumed, on another machine or after a reboot) counts from another moment:
# what is written now must count as what the session itself writes.


class RunClock:
    """The run's own, by the calendar as it was once: this command may run on another machine than the run.

    From then on it counts by itself, so that a calendar that is set anew changes nothing.
    """

    def __init__(self, path: Path) -> None:
        try:
            anchor_ns, anchor_unix_s = _anchor(path)
        except (OSError, ValueError, KeyError) as error:
            raise NoSuchRunError(f"{path} is no event log", "name the folder of a run") from error
        self._opened_ns = anchor_ns + round((unix_now_s() - anchor_unix_s) * 1e9)
        self._opened_s = monotonic_s()

    def now_ns(self) -> int:
        return self._opened_ns + round((monotonic_s() - self._opened_s) * 1e9)

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("nobody waits for this clock")


def _anchor(path: Path) -> tuple[int, float]:
    """A moment of the newest session by its own clock, and by the calendar."""
    session = newest_session(path)
    if session is not None:
        return session.at_ns, session.unix_s
    with path.open("rb") as file:
        header = json.loads(file.readline())
    return int(header["t0_ns"]), float(header["started_unix_s"])


LOCK_NAME = "alerts.lock"
BACKLOG = 100
FIRST_PAUSE_S = 0.2
FINAL_DELIVERY_S = 30.0


class AlreadyWatchedError(PacelineError):
    """Another command sends this run's messages."""

    code = "E321"


class AlertNotifier:
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
            _NotifierQueue(s, self._rules, self._run_dir, self._say, self._record)
            for s in self._rules.notifiers
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        give_up_s = monotonic_s() + FINAL_DELIVERY_S  # for all of them together
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


class _NotifierQueue:
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
        self._courier = NotificationPolicy(
            setting, rules.repeat_s, rules.group_wait_s, rules.group_interval_s
        )
        self._notifier = open_notifier(setting, folder, say)
        self._waiting: queue.Queue[tuple[str, Message, float] | None] = queue.Queue(BACKLOG)
        self._is_over = threading.Event()
        self._undelivered: queue.SimpleQueue[Message] = queue.SimpleQueue()  # for the courier's own thread
        self._thread = threading.Thread(target=self._work, name=f"notifier {setting.name}", daemon=True)
        self._thread.start()

    def offer(self, now_s: float, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        while not self._undelivered.empty():
            self._courier.failed(self._undelivered.get(), now_s)
        if self._waiting.full():
            return  # it is still busy with what it has; the courier will find this due again
        match self._courier.due(now_s, alerts):
            case Message() as message:
                self._waiting.put((run, message, began_unix_s))
            case RateLimited(name, count):
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
    alerts: tuple[AlertDict, ...],
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


POLL_S = 0.5


def rules_for(run_dir: Path | None, said: Path | None) -> Rules:
    """Of the file that was named, else of the run's folder, else the default ones."""
    if said is not None:
        return load_rules(said)
    own = None if run_dir is None else run_dir / RULES_NAME
    return load_rules(own) if own is not None and own.exists() else default_rules()


def watch_alerts(run_dir: Path, rules: Rules, say: Callable[[str], None], is_over: threading.Event) -> None:
    """Send what is due until the run has ended, or `is_over`."""
    with AlertNotifier(run_dir, rules, say) as herald:
        while herald.tick() and not is_over.wait(POLL_S):
            pass
        herald.end()


def require_rules(said: str | None, run_dir: Path) -> Rules | None:
    """What is wrong with the rules of a run is said before it starts."""
    if said is None:
        return None
    own = run_dir / RULES_NAME  # a resumed run keeps its rules, also where their first file is gone
    return load_rules(own if own.exists() else Path(said))


@contextmanager
def alerting(said: str | None, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
    """While a run trains: its rules are kept in its folder, and messages sent if they name notifiers."""
    rules = require_rules(said, run_dir)
    if rules is None or said is None:
        yield
        return
    if not (run_dir / RULES_NAME).exists():
        _copy_rules(Path(said), run_dir / RULES_NAME)
    if not rules.notifiers:
        yield
        return
    is_over = threading.Event()
    args = (run_dir, rules, note, is_over)
    herald = threading.Thread(target=_watch_or_report, args=args, name="herald", daemon=True)
    herald.start()
    try:
        yield
    finally:
        is_over.set()
        herald.join()


def _copy_rules(said: Path, own: Path) -> None:
    """For its owner alone: the address of a webhook is a password."""
    fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(said.read_bytes())


def _watch_or_report(
    run_dir: Path, rules: Rules, note: Callable[[str], None], is_over: threading.Event
) -> None:
    """What ends the messages does not end the run."""
    try:
        watch_alerts(run_dir, rules, note, is_over)
    except (PacelineError, OSError) as error:
        note(f"warning: the run continues, but its alerts are no longer sent: {error}")


def try_notifier(rules: Rules, name: str, folder: Path, say: Callable[[str], None]) -> NotifierSetting:
    """Send one test message by this notifier; its error if it cannot."""
    setting = next((one for one in rules.notifiers if name in (one.name, one.kind.value)), None)
    if setting is None:
        known = ", ".join(one.name for one in rules.notifiers) or "none"
        what = f"the rules name no notifier {name!r}; they have: {known}"
        raise RulesFileError([Problem(what, "add it under notifiers: in the file of rules (--rules FILE)")])
    alerts = (sample_alert(), sample_alert({"state": "resolved", "resolved_s": 1.0}))
    notifier = open_notifier(setting, folder, say)
    for alert in alerts:
        deliver(notifier, setting.retries, "test", (alert,), unix_now_s(), threading.Event())
    return setting


def silence_alerts(
    run_dir: Path, *, for_s: float, rule: str = "", worker: str = "", by: str = "operator", comment: str = ""
) -> None:
    """Alerts of this rule and worker (empty: any) are shown and not told for so long."""
    path = run_dir / "events.jsonl"
    clock = RunClock(path)
    log = EventLog(path, who="operator", clock=clock)
    try:
        until_ns = clock.now_ns() + round(for_s * 1e9)
        log.write("alert_silenced", rule=rule, worker=worker, until_ns=until_ns, by=by, comment=comment)
    finally:
        log.close()

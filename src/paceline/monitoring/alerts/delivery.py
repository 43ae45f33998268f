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


class RunClock:
    """The clock of the run's newest session, anchored to the calendar once, since the run may be remote.

    After that it is monotonic, so that setting the system clock has no effect.
    """

    def __init__(self, path: Path) -> None:
        try:
            anchor_ns, anchor_unix_s = _anchor(path)
        except (OSError, ValueError, KeyError) as error:
            raise NoSuchRunError(f"{path} is not an event log", "name the folder of a run") from error
        self._opened_ns = anchor_ns + round((unix_now_s() - anchor_unix_s) * 1e9)
        self._opened_s = monotonic_s()

    def now_ns(self) -> int:
        return self._opened_ns + round((monotonic_s() - self._opened_s) * 1e9)

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("this clock is never slept on")


def _anchor(path: Path) -> tuple[int, float]:
    """One moment of the newest session, by its own clock and by the calendar."""
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
    """Another command already notifies for this run."""

    code = "E321"


class AlertNotifier:
    """Notifies for one run, exclusively, inside a `with` block; `tick` polls once."""

    def __init__(self, run_dir: Path, rules: Rules, report: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._rules = rules
        self._report = report
        self.feed = Feed(run_dir, rules=rules)

    def __enter__(self) -> Self:
        self._lock = (self._run_dir / LOCK_NAME).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise AlreadyWatchedError(
                f"another process already sends the alerts of {self._run_dir}", "stop that process first"
            ) from error
        path = self._run_dir / "events.jsonl"
        try:
            self._log = EventLog(path, who="herald", clock=RunClock(path))
        except BaseException:
            self._lock.close()
            raise
        self._queues = [
            _NotifierQueue(setting, self._rules, self._run_dir, self._report, self._record)
            for setting in self._rules.notifiers
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        give_up_s = monotonic_s() + FINAL_DELIVERY_S  # for all of them together
        for notifier_queue in self._queues:
            notifier_queue.finish()
        for notifier_queue in self._queues:
            notifier_queue.join(give_up_s)
        self._log.close()
        self._lock.close()

    def tick(self) -> bool:
        """Read new lines and queue due messages; False once the run is over."""
        self.feed.read()
        self._submit()
        return not self.feed.view.track.is_over

    def end(self) -> None:
        """The run ends now: resolve the firing alerts."""
        self.feed.read()
        self.feed.view.end()
        for notifier_queue in self._queues:
            notifier_queue.flush_now()
        self._submit()

    def _submit(self) -> None:
        now_ns = self.feed.now_ns()
        view = self.feed.view
        alerts = view.alerts(
            now_ns, with_ended=any(notifier_queue.has_open_alerts for notifier_queue in self._queues)
        )
        for notifier_queue in self._queues:
            notifier_queue.submit(
                (now_ns - view.t0_ns) / 1e9, view.track.run, alerts, view.track.started_unix_s
            )

    def _record(self, notifier: str, outcome: str, alerts: int) -> None:
        try:
            self._log.write("notified", notifier=notifier, outcome=outcome, alerts=alerts)
        except (OSError, AssertionError) as error:  # the disk is full or gone; messages still go out
            self._report(f"warning: the delivery to {notifier} ({outcome}) could not be logged: {error}")


class _NotifierQueue:
    """One notifier, with its policy, its queue and its thread."""

    def __init__(
        self,
        setting: NotifierSetting,
        rules: Rules,
        folder: Path,
        report: Callable[[str], None],
        record: Callable[[str, str, int], None],
    ) -> None:
        self._setting = setting
        self._report = report
        self._record = record
        self._policy = NotificationPolicy(setting, rules.repeat_s, rules.group_wait_s, rules.group_interval_s)
        self._notifier = open_notifier(setting, folder, report)
        self._messages: queue.Queue[tuple[str, Message, float] | None] = queue.Queue(BACKLOG)
        self._is_over = threading.Event()
        # Read by the thread of the policy.
        self._failed_messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_loop, name=f"notifier {setting.name}", daemon=True)
        self._thread.start()

    def submit(self, now_s: float, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        while not self._failed_messages.empty():
            self._policy.failed(self._failed_messages.get(), now_s)
        if self._messages.full():
            return  # it is still busy; the policy will return these alerts again
        match self._policy.due(now_s, alerts):
            case Message() as message:
                self._messages.put((run, message, began_unix_s))
            case RateLimited(name, count):
                self._record(name, "limited", count)
            case None:
                pass

    @property
    def has_open_alerts(self) -> bool:
        return self._policy.has_open_alerts or not self._failed_messages.empty()

    def flush_now(self) -> None:
        self._policy.flush_now()

    def finish(self) -> None:
        """No more messages follow; queued ones are still sent, within a time limit."""
        with suppress(queue.Full):  # then it hangs, and is abandoned
            self._messages.put_nowait(None)

    def join(self, give_up_s: float) -> None:
        self._thread.join(max(0.0, give_up_s - monotonic_s()))
        self._is_over.set()
        if self._thread.is_alive():
            self._report(f"warning: {self._setting.name} does not respond; its last messages may be lost")

    def _send_loop(self) -> None:
        while (item := self._messages.get()) is not None:
            run, message, began_unix_s = item
            outcome = "sent"
            try:
                deliver(
                    self._notifier, self._setting.retries, run, message.alerts, began_unix_s, self._is_over
                )
            except Exception as error:
                # Any error: this thread is the only sender, and must survive it.
                outcome = "failed"
                self._failed_messages.put(message)
                is_known = isinstance(error, NotDeliveredError | OSError)
                self._report(
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
    """Send, with retries after 0.2, 0.4, 0.8 … seconds; raises the last error."""
    alerts = redact_json(alerts)
    for attempt in range(retries + 1):
        try:
            return notifier.send(run, alerts, began_unix_s)
        except (NotDeliveredError, OSError):
            if attempt == retries or is_over.wait(FIRST_PAUSE_S * 2**attempt):
                raise
    return None


POLL_S = 0.5


def rules_for(run_dir: Path | None, given: Path | None) -> Rules:
    """Rules of the given file, else of the run's folder, else the defaults."""
    if given is not None:
        return load_rules(given)
    run_rules = None if run_dir is None else run_dir / RULES_NAME
    return load_rules(run_rules) if run_rules is not None and run_rules.exists() else default_rules()


def watch_alerts(
    run_dir: Path, rules: Rules, report: Callable[[str], None], is_over: threading.Event
) -> None:
    """Send due messages until the run has ended, or `is_over`."""
    with AlertNotifier(run_dir, rules, report) as notifier:
        while notifier.tick() and not is_over.wait(POLL_S):
            pass
        notifier.end()


def require_rules(given: str | None, run_dir: Path) -> Rules | None:
    """Load the rules of a run, so that their problems are reported before it starts."""
    if given is None:
        return None
    own = run_dir / RULES_NAME  # a resumed run keeps its rules, also if the original file was removed
    return load_rules(own if own.exists() else Path(given))


@contextmanager
def alerting(given: str | None, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
    """While a run trains: store its rules in its folder, and notify if they name notifiers."""
    rules = require_rules(given, run_dir)
    if rules is None or given is None:
        yield
        return
    if not (run_dir / RULES_NAME).exists():
        _copy_rules(Path(given), run_dir / RULES_NAME)
    if not rules.notifiers:
        yield
        return
    is_over = threading.Event()
    args = (run_dir, rules, note, is_over)
    thread = threading.Thread(target=_watch_or_report, args=args, name="alert-notifier", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _copy_rules(given: Path, own: Path) -> None:
    """Readable by the owner only: the URL of a webhook is a password."""
    fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(given.read_bytes())


def _watch_or_report(
    run_dir: Path, rules: Rules, note: Callable[[str], None], is_over: threading.Event
) -> None:
    """A failure ends the notifications, not the run."""
    try:
        watch_alerts(run_dir, rules, note, is_over)
    except (PacelineError, OSError) as error:
        note(f"warning: the run continues, but its alerts are no longer sent: {error}")


def try_notifier(rules: Rules, name: str, folder: Path, report: Callable[[str], None]) -> NotifierSetting:
    """Send test messages by this notifier; raises its error."""
    setting = next(
        (candidate for candidate in rules.notifiers if name in (candidate.name, candidate.kind.value)), None
    )
    if setting is None:
        known = ", ".join(candidate.name for candidate in rules.notifiers) or "none"
        message = f"there is no notifier {name!r}; the rules define: {known}"
        raise RulesFileError(
            [Problem(message, "add it under notifiers: in the file of rules (--rules FILE)")]
        )
    alerts = (sample_alert(), sample_alert({"state": "resolved", "resolved_s": 1.0}))
    notifier = open_notifier(setting, folder, report)
    for alert in alerts:
        deliver(notifier, setting.retries, "test", (alert,), unix_now_s(), threading.Event())
    return setting


def silence_alerts(
    run_dir: Path, *, for_s: float, rule: str = "", worker: str = "", by: str = "operator", comment: str = ""
) -> None:
    """Silence alerts of this rule and worker (empty: any) for a time: they are shown, not sent."""
    path = run_dir / "events.jsonl"
    clock = RunClock(path)
    log = EventLog(path, who="operator", clock=clock)
    try:
        until_ns = clock.now_ns() + round(for_s * 1e9)
        log.write("alert_silenced", rule=rule, worker=worker, until_ns=until_ns, by=by, comment=comment)
    finally:
        log.close()

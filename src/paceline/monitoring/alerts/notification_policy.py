"""Notification policy: which alerts are due for a notifier now. Pure.

Each alert is sent once when it fires and once when it resolves, within the rate limit. An alert
that is silenced, inhibited or injected is not sent; if that ends while it still fires, it is. A
resolution is sent only to notifiers that were sent the firing. What the rate limit holds back is
sent as soon as the limit allows, and a failed message after RETRY_S.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.monitoring.alerts.rules import NotifierSetting, Severity
from paceline.plan.codec import Json

AlertDict = Mapping[str, Json]  # an alert, as a snapshot serializes it
MINUTE_S = 60.0
RETRY_S = 30.0  # after a message that was not delivered despite retries


@dataclass(frozen=True, slots=True)
class Message:
    notifier: str
    alerts: tuple[AlertDict, ...]  # that fire, or are resolved


@dataclass(frozen=True, slots=True)
class RateLimited:
    """Messages above the notifier's rate limit; reported once for each alert."""

    notifier: str
    alerts: int


@dataclass(slots=True)
class NotificationPolicy:
    """The policy of one notifier, with its state."""

    setting: NotifierSetting
    repeat_s: float
    group_wait_s: float = 0.0
    group_interval_s: float = 0.0
    _sent_at_s: dict[str, float] = field(default_factory=dict)  # by fingerprint
    _message_times_s: deque[float] = field(default_factory=deque)
    _held_back: set[str] = field(default_factory=set)
    _not_before_s: float = -math.inf
    _due_since_s: float | None = None  # for group_wait_s

    def due(self, now_s: float, alerts: Sequence[AlertDict]) -> Message | RateLimited | None:
        """The message to send now, if any. `alerts`: all of them, firing, pending and resolved."""
        if now_s < self._not_before_s:
            return None
        firing = {str(a["fingerprint"]): a for a in alerts if a["state"] == "firing"}
        started = [a for key, a in firing.items() if self._is_eligible(a) and self._is_due(key, now_s)]
        over = [key for key in self._sent_at_s if key not in firing]
        ended = [a for key in over if (a := _resolved(key, alerts)) is not None]
        if not started and not ended:
            for key in over:  # resolved and no longer listed
                del self._sent_at_s[key]
            self._due_since_s = None
            return None
        self._due_since_s = now_s if self._due_since_s is None else self._due_since_s
        if now_s - self._due_since_s < self.group_wait_s:
            return None
        if not self._is_within_rate(now_s):
            fresh = {str(a["fingerprint"]) for a in (*started, *ended)} - self._held_back
            self._held_back |= fresh
            return RateLimited(self.setting.name, len(fresh)) if fresh else None
        self._message_times_s.append(now_s)
        self._due_since_s = None
        self._not_before_s = now_s + self.group_interval_s
        for alert in started:
            self._sent_at_s[str(alert["fingerprint"])] = now_s
        for key in over:
            del self._sent_at_s[key]
        self._held_back.clear()
        return Message(self.setting.name, (*started, *ended))

    def failed(self, message: Message, now_s: float) -> None:
        """The message was not delivered: its alerts are due again after RETRY_S."""
        self._not_before_s = now_s + RETRY_S
        for alert in message.alerts:
            key = str(alert["fingerprint"])
            if alert["state"] == "resolved":
                self._sent_at_s.setdefault(key, now_s)
            else:
                self._sent_at_s.pop(key, None)

    def flush_now(self) -> None:
        """Send without grouping and backoff: the run ends."""
        self._not_before_s = -math.inf
        self.group_wait_s = 0.0

    @property
    def has_open_alerts(self) -> bool:
        """Whether a resolution is still to be sent."""
        return bool(self._sent_at_s)

    def _is_eligible(self, alert: AlertDict) -> bool:
        is_muted = alert["silenced"] or alert["inhibited_by"] is not None or alert["injected"]
        return not is_muted and Severity[str(alert["severity"]).upper()] >= self.setting.min_severity

    def _is_due(self, key: str, now_s: float) -> bool:
        sent_s = self._sent_at_s.get(key)
        return sent_s is None or now_s - sent_s >= self.repeat_s

    def _is_within_rate(self, now_s: float) -> bool:
        while self._message_times_s and now_s - self._message_times_s[0] >= MINUTE_S:
            self._message_times_s.popleft()
        return len(self._message_times_s) < self.setting.most_per_minute


def _resolved(key: str, alerts: Sequence[AlertDict]) -> AlertDict | None:
    return next((a for a in alerts if a["fingerprint"] == key and a["state"] == "resolved"), None)

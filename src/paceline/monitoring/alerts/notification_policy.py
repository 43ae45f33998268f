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

AlertDict = Mapping[str, Json]  # an alert, as a snapshot tells it
MINUTE_S = 60.0
RETRY_S = 30.0  # after a message that was not delivered, however often it was tried


@dataclass(frozen=True, slots=True)
class Message:
    notifier: str
    alerts: tuple[AlertDict, ...]  # that fire, or are over


@dataclass(frozen=True, slots=True)
class RateLimited:
    """More than the notifier may say in a minute; said once for each alert."""

    notifier: str
    alerts: int


@dataclass(slots=True)
class NotificationPolicy:
    """For one notifier."""

    setting: NotifierSetting
    repeat_s: float
    group_wait_s: float = 0.0
    group_interval_s: float = 0.0
    _told_s: dict[str, float] = field(default_factory=dict)  # by fingerprint: when
    _sent_s: deque[float] = field(default_factory=deque)
    _held_back: set[str] = field(default_factory=set)
    _not_before_s: float = -math.inf
    _news_since_s: float | None = None  # what is due waits for what comes with it

    def due(self, now_s: float, alerts: Sequence[AlertDict]) -> Message | RateLimited | None:
        """`alerts`: all that there are, firing, pending and resolved."""
        if now_s < self._not_before_s:
            return None
        firing = {str(a["fingerprint"]): a for a in alerts if a["state"] == "firing"}
        begun = [a for mark, a in firing.items() if self._is_wanted(a) and self._is_news(mark, now_s)]
        over = [mark for mark in self._told_s if mark not in firing]
        ended = [a for mark in over if (a := _end_of(mark, alerts)) is not None]
        if not begun and not ended:
            for mark in over:  # so long over that nobody tells it any more
                del self._told_s[mark]
            self._news_since_s = None
            return None
        self._news_since_s = now_s if self._news_since_s is None else self._news_since_s
        if now_s - self._news_since_s < self.group_wait_s:
            return None
        if not self._has_room(now_s):
            fresh = {str(a["fingerprint"]) for a in (*begun, *ended)} - self._held_back
            self._held_back |= fresh
            return RateLimited(self.setting.name, len(fresh)) if fresh else None
        self._sent_s.append(now_s)
        self._news_since_s, self._not_before_s = None, now_s + self.group_interval_s
        for alert in begun:
            self._told_s[str(alert["fingerprint"])] = now_s
        for mark in over:
            del self._told_s[mark]
        self._held_back.clear()
        return Message(self.setting.name, (*begun, *ended))

    def failed(self, message: Message, now_s: float) -> None:
        """It did not arrive: what it said is due again, a little later."""
        self._not_before_s = now_s + RETRY_S
        for alert in message.alerts:
            mark = str(alert["fingerprint"])
            if alert["state"] == "resolved":
                self._told_s.setdefault(mark, now_s)
            else:
                self._told_s.pop(mark, None)

    def hurry(self) -> None:
        """There is no later."""
        self._not_before_s, self.group_wait_s = -math.inf, 0.0

    @property
    def has_told(self) -> bool:
        """Of alerts whose end somebody waits for."""
        return bool(self._told_s)

    def _is_wanted(self, alert: AlertDict) -> bool:
        is_muted = alert["silenced"] or alert["inhibited_by"] is not None or alert["injected"]
        return not is_muted and Severity[str(alert["severity"]).upper()] >= self.setting.min_severity

    def _is_news(self, mark: str, now_s: float) -> bool:
        told_s = self._told_s.get(mark)
        return told_s is None or now_s - told_s >= self.repeat_s

    def _has_room(self, now_s: float) -> bool:
        while self._sent_s and now_s - self._sent_s[0] >= MINUTE_S:
            self._sent_s.popleft()
        return len(self._sent_s) < self.setting.most_per_minute


def _end_of(mark: str, alerts: Sequence[AlertDict]) -> AlertDict | None:
    return next((a for a in alerts if a["fingerprint"] == mark and a["state"] == "resolved"), None)

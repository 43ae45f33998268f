"""How does a message get to somebody? By one of six ways, each tried again when it fails.

What is sent is the same for all: the alerts, as a snapshot tells them. Secrets come
from files, never from a rule file.
"""

import json
import shlex
import smtplib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Protocol

from paceline.errors import PacelineError
from paceline.plan.codec import Json
from paceline.watch.courier import Told
from paceline.watch.rules import NotifierKind, NotifierSetting

_COLOURS = {"critical": "#d32f2f", "warning": "#f9a825", "info": "#1976d2", "resolved": "#2e7d32"}


class NotDeliveredError(PacelineError):
    """A message about alerts did not arrive, however often it was tried."""


class Notifier(Protocol):
    def send(self, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        """NotDeliveredError, or what the way itself raises, where it failed."""
        ...


def open_notifier(setting: NotifierSetting, folder: Path, say: Callable[[str], None]) -> Notifier:
    """`folder`: what paths are relative to. `say`: a line for whoever sits there."""
    match setting.kind:
        case NotifierKind.TERMINAL:
            return Terminal(say)
        case NotifierKind.LOG:
            return LogFile(folder / setting.options["path"])
        case NotifierKind.WEBHOOK:
            return Webhook(setting)
        case NotifierKind.COMMAND:
            return Command(setting)
        case NotifierKind.SMTP:
            return Mail(setting, folder)
        case NotifierKind.ALERTMANAGER:
            return Alertmanager(setting)


def line_of(alert: Told) -> str:
    word = "RESOLVED" if alert["state"] == "resolved" else str(alert["severity"]).upper()
    return f"{word} {alert['rule']}: {alert['summary']}"


class Terminal:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def send(self, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        for alert in alerts:
            self._say(line_of(alert))


class LogFile:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            for alert in alerts:
                file.write(json.dumps({"run": run, **alert}) + "\n")


class Webhook:
    """In the shape of Slack, which Mattermost, Rocket.Chat and Discord (…/slack) read too, or as it is."""

    def __init__(self, setting: NotifierSetting) -> None:
        self._setting = setting

    def send(self, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        if self._setting.options.get("format", "slack") == "json":
            body: dict[str, Json] = {"run": run, "alerts": [dict(a) for a in alerts]}
        else:
            body = slack_message(run, alerts)
        _post(self._setting.options["url"], body, self._setting.timeout_s)


def slack_message(run: str, alerts: Sequence[Told]) -> dict[str, Json]:
    firing = sum(alert["state"] == "firing" for alert in alerts)
    text = f"{run}: {firing} firing, {len(alerts) - firing} resolved"
    return {"text": text, "attachments": [_attachment(alert) for alert in alerts]}


def _attachment(alert: Told) -> dict[str, Json]:
    look = "resolved" if alert["state"] == "resolved" else str(alert["severity"])
    labels = alert["labels"] if isinstance(alert["labels"], dict) else {}
    fields: list[Json] = [{"title": name, "value": value, "short": True} for name, value in labels.items()]
    return {
        "color": _COLOURS[look],
        "title": line_of(alert),
        "text": alert["description"],
        "fallback": line_of(alert),
        "fields": fields,
    }


class Command:
    """Gets the alerts as JSON on its standard input; no shell reads its line."""

    def __init__(self, setting: NotifierSetting) -> None:
        self._setting = setting

    def send(self, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        told = json.dumps({"run": run, "alerts": [dict(a) for a in alerts]}).encode()
        try:
            done = subprocess.run(
                shlex.split(self._setting.options["command"]),
                input=told,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self._setting.timeout_s,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failed(f"the command {self._setting.options['command']!r}: {error}") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-200:]
            raise _failed(f"the command ended with exit code {done.returncode}: {said}")


class Mail:
    def __init__(self, setting: NotifierSetting, folder: Path) -> None:
        self._setting, self._folder = setting, folder

    def send(self, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        options = self._setting.options
        message = EmailMessage()
        message["From"], message["To"] = options["from"], options["to"]
        message["Subject"] = f"[paceline] {run}: {line_of(alerts[0])}"
        message.set_content("\n\n".join(f"{line_of(a)}\n{a['description']}\n{a['runbook']}" for a in alerts))
        try:
            port = int(options.get("port", "25"))
            with smtplib.SMTP(options["host"], port, timeout=self._setting.timeout_s) as server:
                if "user" in options:
                    server.starttls()
                    secret = (self._folder / options["password_file"]).read_text().strip()
                    server.login(options["user"], secret)
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            raise _failed(f"the mail server {options['host']}: {error}") from error


class Alertmanager:
    """Its API v2; it groups and repeats by its own settings."""

    def __init__(self, setting: NotifierSetting) -> None:
        self._setting = setting

    def send(self, run: str, alerts: Sequence[Told], began_unix_s: float) -> None:
        url = self._setting.options["url"].rstrip("/") + "/api/v2/alerts"
        _post(url, [_for_alertmanager(a, began_unix_s) for a in alerts], self._setting.timeout_s)


def _for_alertmanager(alert: Told, began_unix_s: float) -> dict[str, Json]:
    labels = alert["labels"] if isinstance(alert["labels"], dict) else {}
    made: dict[str, Json] = {
        "labels": {"alertname": alert["rule"], "severity": alert["severity"], **labels},
        "annotations": {
            "summary": alert["summary"],
            "description": alert["description"],
            "runbook_url": alert["runbook"],
        },
        "startsAt": _stamp(began_unix_s + float(str(alert["active_s"]))),
    }
    if alert["state"] == "resolved":
        made["endsAt"] = _stamp(began_unix_s + float(str(alert["resolved_s"])))
    return made


def _stamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _post(url: str, body: Json, timeout_s: float) -> None:
    if not url.startswith(("http://", "https://")):
        raise _failed(f"{url} is no address of the web")
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise _failed(f"{url} answered {error.code}") from error
    except OSError as error:
        raise _failed(f"{url}: {error}") from error


def _failed(what: str) -> NotDeliveredError:
    return NotDeliveredError(
        f"a message about alerts was not delivered: {what}", "try it: paceline alerts test"
    )


def sample_alert(mapping: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """What `paceline alerts test` sends."""
    return {
        "fingerprint": "000000000000",
        "rule": "Test",
        "severity": "info",
        "state": "firing",
        "since_s": 0.0,
        "active_s": 0.0,
        "resolved_s": None,
        "labels": {"run": "test"},
        "value": 1.0,
        "summary": "this is a test, nothing is wrong",
        "description": "Sent by paceline alerts test.",
        "runbook": "docs/guides/alerts.md",
        **(mapping or {}),
    }

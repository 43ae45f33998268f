"""Notifiers: terminal, log file, webhook, command, e-mail, Alertmanager.

All of them send the same content: the alerts as dictionaries of a snapshot. A secret may be in a
separate file (`url_file`, `password_file`), and no error contains it: the path of a webhook's
URL is a password, so errors name only its host. Redirects are refused: a redirected POST becomes a
GET, to which any other host may answer 200.
"""

import http.client
import json
import shlex
import smtplib
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import urlsplit

from paceline.core.errors import PacelineError
from paceline.monitoring.alerts.notification_policy import AlertDict
from paceline.monitoring.alerts.rules import NotifierKind, NotifierSetting
from paceline.plan.codec import Json

MAX_RESPONSE_BYTES = 65_536  # of a response, which is discarded


class NotDeliveredError(PacelineError):
    """A notification was not delivered, despite retries."""

    code = "E320"


def not_delivered(reason: str, hint: str = "try it: paceline alerts test") -> NotDeliveredError:
    return NotDeliveredError(f"a message about alerts was not delivered: {reason}", hint)


def redact_url(url: str) -> str:
    """The part of a URL that may appear in a log."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname or '?'}{port}/…"
    except ValueError:
        return "an invalid URL"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None  # so it becomes an HTTPError


def post_json(url: str, body: Json, timeout_s: float) -> None:
    """POST; raises NotDeliveredError unless this very URL accepted it."""
    where = redact_url(url)
    if not url.startswith(("http://", "https://")):
        raise not_delivered(f"{where} is not an http:// or https:// URL")
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with opener.open(request, timeout=timeout_s) as response:
            response.read(MAX_RESPONSE_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            raise not_delivered(f"{where} answered {error.code}") from None
    except urllib.error.URLError as error:
        raise not_delivered(f"{where}: {error.reason}") from None
    except OSError as error:
        raise not_delivered(f"{where}: {error}") from None
    except (http.client.HTTPException, ValueError) as error:
        # Their messages may contain the URL.
        raise not_delivered(f"{where}: {type(error).__name__}") from None


DISCORD_CHARACTERS = 2000  # more are refused
_COLOURS = {"critical": "#d32f2f", "warning": "#f9a825", "info": "#1976d2", "resolved": "#2e7d32"}


class Notifier(Protocol):
    def send(self, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        """Raises NotDeliveredError, or an error of the transport."""
        ...


def open_notifier(setting: NotifierSetting, folder: Path, notify: Callable[[str], None]) -> Notifier:
    """`folder`: the base of relative paths. `notify`: prints a line on the terminal."""
    match setting.kind:
        case NotifierKind.TERMINAL:
            return Terminal(notify, is_loud=setting.options.get("bell") == "True")
        case NotifierKind.LOG:
            return LogFile(folder / setting.options["path"])
        case NotifierKind.WEBHOOK:
            return Webhook(setting, folder)
        case NotifierKind.COMMAND:
            return Command(setting)
        case NotifierKind.SMTP:
            return Mail(setting, folder)
        case NotifierKind.ALERTMANAGER:
            return Alertmanager(setting, folder)


def format_line(alert: AlertDict) -> str:
    word = "RESOLVED" if alert["state"] == "resolved" else str(alert["severity"]).upper()
    return f"{word} {alert['rule']}: {alert['summary']}"


class Terminal:
    def __init__(self, notify: Callable[[str], None], *, is_loud: bool = False) -> None:
        self._notify = notify
        self._end = "\a" if is_loud else ""  # rings the bell

    def send(self, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        for alert in alerts:
            self._notify(format_line(alert) + self._end)


class LogFile:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            for alert in alerts:
                file.write(json.dumps({"run": run, **alert}) + "\n")


def url_of(setting: NotifierSetting, folder: Path) -> str:
    """Read each time, so that a changed secret needs no restart."""
    if "url" in setting.options:
        return setting.options["url"]
    return (folder / setting.options["url_file"]).read_text(encoding="utf-8").strip()


class Webhook:
    """POSTs in the format of Slack (also Mattermost and Rocket.Chat), of Discord, or as plain JSON."""

    def __init__(self, setting: NotifierSetting, folder: Path) -> None:
        self._setting = setting
        self._folder = folder

    def send(self, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        match self._setting.options.get("format", "slack"):
            case "json":
                body: dict[str, Json] = {"run": run, "alerts": [dict(a) for a in alerts]}
            case "discord":
                body = discord_message(run, alerts)
            case _:
                body = slack_message(run, alerts)
        post_json(url_of(self._setting, self._folder), body, self._setting.timeout_s)


def discord_message(run: str, alerts: Sequence[AlertDict]) -> dict[str, Json]:
    lines = [f"**{run}**", *(f"{format_line(alert)}\n{alert['description']}" for alert in alerts)]
    # No mentions: a name in an alert must not ping a user.
    return {"content": "\n".join(lines)[:DISCORD_CHARACTERS], "allowed_mentions": {"parse": []}}


def slack_message(run: str, alerts: Sequence[AlertDict]) -> dict[str, Json]:
    firing = sum(alert["state"] == "firing" for alert in alerts)
    text = f"{run}: {firing} firing, {len(alerts) - firing} resolved"
    return {"text": text, "attachments": [_attachment(alert) for alert in alerts]}


def _attachment(alert: AlertDict) -> dict[str, Json]:
    style = "resolved" if alert["state"] == "resolved" else str(alert["severity"])
    labels = alert["labels"] if isinstance(alert["labels"], dict) else {}
    fields: list[Json] = [{"title": name, "value": value, "short": True} for name, value in labels.items()]
    return {
        "color": _COLOURS[style],
        "title": format_line(alert),
        "text": alert["description"],
        "fallback": format_line(alert),
        "fields": fields,
    }


class Command:
    """Runs a command, without a shell, with the alerts as JSON on its standard input."""

    def __init__(self, setting: NotifierSetting) -> None:
        self._setting = setting

    def send(self, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        payload = json.dumps({"run": run, "alerts": [dict(a) for a in alerts]}).encode()
        try:
            done = subprocess.run(
                shlex.split(self._setting.options["command"]),
                input=payload,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self._setting.timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise not_delivered(f"the command took longer than {self._setting.timeout_s:g} s") from error
        except OSError as error:  # names the program, without arguments
            raise not_delivered(f"the command cannot be run: {error.strerror}: {error.filename}") from error
        if done.returncode:
            stderr = done.stderr.decode(errors="replace").strip()[-200:]
            raise not_delivered(f"the command ended with exit code {done.returncode}: {stderr}")


class Mail:
    def __init__(self, setting: NotifierSetting, folder: Path) -> None:
        self._setting = setting
        self._folder = folder

    def send(self, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        options = self._setting.options
        message = EmailMessage()
        message["From"] = options["from"]
        message["To"] = options["to"]
        more = f" and {len(alerts) - 1} more" if len(alerts) > 1 else ""
        subject = f"[paceline] {run}: {format_line(alerts[0])}{more}"
        message["Subject"] = " ".join(subject.split())  # a header is one line
        message.set_content(
            "\n\n".join(f"{format_line(a)}\n{a['description']}\n{a['runbook']}" for a in alerts)
        )
        try:
            port = int(options.get("port", "25"))
            with smtplib.SMTP(options["host"], port, timeout=self._setting.timeout_s) as server:
                if "user" in options or "ca_file" in options:
                    # Before the login. It raises without STARTTLS, and on a certificate that does not verify.
                    server.starttls(context=self._tls_context())
                if "user" in options:
                    secret = (self._folder / options["password_file"]).read_text().strip()
                    server.login(options["user"], secret)
                server.send_message(message)
        except ssl.SSLCertVerificationError as error:
            what = f"the certificate of the mail server {options['host']} is refused: {error.verify_message}"
            hint = "set host to the name in its certificate, or ca_file to the certificate of its authority"
            raise not_delivered(f"{what}; no password was sent", hint) from None
        except smtplib.SMTPNotSupportedError as error:
            what = f"the mail server {options['host']}: {error}; a password is sent with STARTTLS only"
            raise not_delivered(what, "use a port with STARTTLS, usually port: 587") from None
        except smtplib.SMTPAuthenticationError as error:
            raise not_delivered(
                f"the mail server {options['host']} rejected the login: {error.smtp_code}"
            ) from None
        except (OSError, smtplib.SMTPException) as error:
            raise not_delivered(f"the mail server {options['host']}: {error}") from error

    def _tls_context(self) -> ssl.SSLContext:
        """Trusts the system's authorities, or `ca_file` alone; the host name is checked either way."""
        ca_file = self._setting.options.get("ca_file")
        return ssl.create_default_context(cafile=None if ca_file is None else str(self._folder / ca_file))


class Alertmanager:
    """POSTs to API v2 of Alertmanager, which groups and repeats by its own settings."""

    def __init__(self, setting: NotifierSetting, folder: Path) -> None:
        self._setting = setting
        self._folder = folder

    def send(self, run: str, alerts: Sequence[AlertDict], began_unix_s: float) -> None:
        url = url_of(self._setting, self._folder).rstrip("/") + "/api/v2/alerts"
        post_json(url, [_for_alertmanager(a, began_unix_s) for a in alerts], self._setting.timeout_s)


def _for_alertmanager(alert: AlertDict, began_unix_s: float) -> dict[str, Json]:
    labels = alert["labels"] if isinstance(alert["labels"], dict) else {}
    entry: dict[str, Json] = {
        "labels": {"alertname": alert["rule"], "severity": alert["severity"], **labels},
        "annotations": {
            "summary": alert["summary"],
            "description": alert["description"],
            "runbook_url": alert["runbook"],
        },
        "startsAt": _stamp(began_unix_s + float(str(alert["active_s"]))),
    }
    if alert["state"] == "resolved":
        entry["endsAt"] = _stamp(began_unix_s + float(str(alert["resolved_s"])))
    return entry


def _stamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def sample_alert(mapping: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """Alert that `paceline alerts test` sends."""
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
        "summary": "test message; nothing is wrong",
        "description": "Sent by paceline alerts test.",
        "runbook": "docs/guides/monitoring.md",
        **(mapping or {}),
    }

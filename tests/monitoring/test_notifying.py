"""Each notifier receives the alerts of its policy once: real servers, processes and files."""

import json
import socket
import ssl
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.servers.certificates import tls_contexts
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording
from tests.monitoring.scripted_log import ScriptedLog, a_plan
from tests.monitoring.sinks import mail_sink, web_sink

from paceline.core.errors import ConfigError
from paceline.monitoring.alerts.delivery import (
    AlertNotifier,
    AlreadyWatchedError,
    alerting,
    try_notifier,
    watch_alerts,
)
from paceline.monitoring.alerts.notification_policy import Message, NotificationPolicy, RateLimited
from paceline.monitoring.alerts.notifiers import NotDeliveredError, discord_message, sample_alert
from paceline.monitoring.alerts.rule_file import read_rules
from paceline.monitoring.alerts.rules import NotifierKind, NotifierSetting, Rules, Severity
from paceline.plan.codec import Json

TWO_CONDITIONS = """
rules:
  - name: SharpAndSlow
    severity: critical
    all:
      - {metric: paceline_custom, where: {name: sharpness}, reduce: avg, window: 3s, above: 5}
      - {metric: paceline_host_cpu_usage_ratio, above: 0.5}
    by: [run]
    for: 3s
    summary: sharpness is {value}
notifiers:
  - {kind: webhook, url: "%s", min_severity: info}
"""


def script(seconds: int) -> ScriptedLog:
    """Sharpness is high from second 10 to 20, the CPU is busy from 5 to 30."""
    log = ScriptedLog()
    for second in range(1, seconds + 1):
        log.steps("worker-0", second * 10, [second - 0.5])
        at_ns = 5_000_000_000_000 + second * 1_000_000_000
        sharp = 9.0 if 10 <= second < 20 else 1.0
        log.rows("worker-0", "custom", at_ns=at_ns, step=second, name="sharpness", value=sharp)
        log.second(second, cpu_share=0.9 if 5 <= second < 30 else 0.1)
    return log


def test_a_two_condition_alert_is_pending_fires_once_and_is_resolved_and_the_webhook_agrees(
    tmp_path: Path,
) -> None:
    log = script(40)
    log.tell(40.5, "launcher", "run_finished", outcome="finished")
    head, rest = log.lines[:2], log.lines[2:]
    log.lines = list(head)
    log.write(tmp_path, a_plan(workers=1))
    with web_sink() as sink:
        rules = read_rules(TWO_CONDITIONS % sink.url, "test")
        seen: list[str] = []
        with AlertNotifier(tmp_path, rules, seen.append) as notifier_thread:
            for line in rest:  # as a run writes it, looked at after each line
                with (tmp_path / "events.jsonl").open("a") as file:
                    file.write(line + "\n")
                notifier_thread.tick()
        words = [f"{t.to}" for t in notifier_thread.feed.view.transitions]
        assert words == ["pending", "firing", "resolved"]
        until(lambda: len(sink.got) == 2, "both messages are here")
    titles = [message["attachments"][0]["title"] for message in sink.got]
    assert titles[0].startswith("CRITICAL SharpAndSlow: sharpness ")
    assert titles[1].startswith("RESOLVED SharpAndSlow")
    reported = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [e["outcome"] for e in reported if e.get("kind") == "notified"] == ["sent", "sent"]


def test_only_one_notifier_sends_for_a_run(tmp_path: Path) -> None:
    script(3).write(tmp_path, a_plan(workers=1))
    rules = read_rules("rules: []", "test")
    with (
        AlertNotifier(tmp_path, rules, print),
        pytest.raises(AlreadyWatchedError),
        AlertNotifier(tmp_path, rules, print),
    ):
        pass


def test_a_run_that_is_over_has_no_alerts_and_the_watch_ends(tmp_path: Path) -> None:
    log = script(18)
    log.tell(18.5, "launcher", "run_finished", outcome="stopped")
    log.write(tmp_path, a_plan(workers=1))
    with web_sink() as sink:
        watch_alerts(tmp_path, read_rules(TWO_CONDITIONS % sink.url, "test"), print, threading.Event())
    assert sink.got == [], "an alert that began and ended before the start is not sent"


@pytest.mark.parametrize("shape", ["slack", "json"])
def test_a_webhook_is_tried_again_until_it_takes_the_message(shape: str, tmp_path: Path) -> None:
    with web_sink(failures=2) as sink:
        text = f"rules: []\nnotifiers: [{{kind: webhook, url: '{sink.url}', format: {shape}}}]"
        try_notifier(read_rules(text, "test"), "webhook", tmp_path, print)
    assert len(sink.got) == 2


def test_alertmanager_gets_alerts_in_its_own_shape(tmp_path: Path) -> None:
    with web_sink() as sink:
        text = f"rules: []\nnotifiers: [{{kind: alertmanager, url: '{sink.url.removesuffix('/hook')}'}}]"
        try_notifier(read_rules(text, "test"), "alertmanager", tmp_path, print)
    assert sink.paths == ["/api/v2/alerts"] * 2
    begun, ended = (message[0] for message in sink.got)
    assert begun["labels"] == {"alertname": "Test", "severity": "info", "run": "test"}
    assert "endsAt" not in begun
    assert "endsAt" in ended


def test_a_mail_a_command_a_log_and_the_terminal_have_the_same_content(tmp_path: Path) -> None:
    messages: list[str] = []
    keep = f"{sys.executable} -c \"import sys; open('{tmp_path}/got.json', 'a').write(sys.stdin.read())\""
    with mail_sink() as (port, mails):
        rules = read_rules(
            f"""
rules: []
notifiers:
  - {{kind: smtp, host: 127.0.0.1, port: {port}, from: us@example.org, to: you@example.org}}
  - {{kind: command, command: {json.dumps(keep)}}}
  - {{kind: log, path: alerts.jsonl}}
  - {{kind: terminal}}
""",
            "test",
        )
        for name in ("smtp", "command", "log", "terminal"):
            try_notifier(rules, name, tmp_path, messages.append)
    sentence = "test message; nothing is wrong"
    assert len(mails) == 2
    assert all(sentence in text for text in mails)
    assert sentence in (tmp_path / "got.json").read_text()
    assert [json.loads(line)["state"] for line in (tmp_path / "alerts.jsonl").read_text().splitlines()] == [
        "firing",
        "resolved",
    ]
    assert messages == [f"INFO Test: {sentence}", f"RESOLVED Test: {sentence}"]


class MailServer(threading.Thread):
    """One that speaks SMTP with STARTTLS; `got` is every command that it received, in clear or not."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(daemon=True)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.got: list[str] = []

    def run(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            with suppress(OSError), line:
                self._serve(line)

    def _serve(self, line: socket.socket) -> None:
        line.sendall(b"220 here\r\n")
        self._answer(line, is_secure=False)

    def _answer(self, line: socket.socket, *, is_secure: bool) -> None:
        while words := _read_line(line):
            self.got.append(words)
            verb = words.upper().split()[0]
            if verb == "EHLO":
                offers = "AUTH PLAIN" if is_secure or self._context is None else "STARTTLS"
                line.sendall(f"250-here\r\n250 {offers}\r\n".encode())
            elif verb == "STARTTLS" and self._context is not None:
                line.sendall(b"220 go\r\n")
                with self._context.wrap_socket(line, server_side=True) as secured:
                    return self._answer(secured, is_secure=True)
            elif verb == "QUIT":
                line.sendall(b"221 bye\r\n")
                return None
            elif verb == "AUTH":
                line.sendall(b"235 welcome\r\n")
            elif verb == "DATA":
                line.sendall(b"354 go\r\n")
                while _read_line(line) != ".":
                    pass
                line.sendall(b"250 kept\r\n")
            else:
                line.sendall(b"250 fine\r\n")
        return None

    def __enter__(self) -> "MailServer":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join()

    def verbs(self) -> list[str]:
        return [words.upper().split()[0] for words in self.got]


def _read_line(line: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\r\n"):
        more = line.recv(1)
        if not more:
            return ""
        data += more
    return data.decode().rstrip("\r\n")


def _mail_rules(port: int, more: str, host: str = "127.0.0.1") -> Rules:
    login = "user: me, password_file: password, retries: 0"
    mail = f"{{kind: smtp, host: {host}, port: {port}, from: us@a.org, to: you@a.org, {login}{more}}}"
    return read_rules(f"rules: []\nnotifiers: [{mail}]", "test")


@pytest.mark.parametrize("fault", ["unknown authority", "other name", "no STARTTLS"])
def test_a_mail_server_without_a_valid_certificate_gets_no_password(fault: str, tmp_path: Path) -> None:
    server, _ = tls_contexts(tmp_path)
    (tmp_path / "password").write_text("hunter2\n")
    more = ", ca_file: certificate.pem" if fault == "other name" else ""
    host = "localhost" if fault == "other name" else "127.0.0.1"  # the certificate is of 127.0.0.1
    context = None if fault == "no STARTTLS" else server
    with MailServer(context) as mails, pytest.raises(NotDeliveredError) as refused:
        try_notifier(_mail_rules(mails.port, more, host), "smtp", tmp_path, print)
    assert "hunter2" not in f"{refused.value}{refused.value.hint}"
    assert not {"AUTH", "MAIL", "DATA"} & set(mails.verbs())


def test_a_mail_server_of_a_named_authority_gets_login_and_message(tmp_path: Path) -> None:
    server, _ = tls_contexts(tmp_path)
    (tmp_path / "password").write_text("hunter2\n")
    with MailServer(server) as mails:
        try_notifier(_mail_rules(mails.port, ", ca_file: certificate.pem"), "smtp", tmp_path, print)
    verbs = mails.verbs()
    assert verbs.index("STARTTLS") < verbs.index("AUTH") < verbs.index("DATA")


def test_what_cannot_be_delivered_is_an_error_with_its_reason(tmp_path: Path, wording: Wording) -> None:
    rules = read_rules("rules: []\nnotifiers: [{kind: command, command: 'false', retries: 0}]", "test")
    with wording.raises(NotDeliveredError):
        try_notifier(rules, "command", tmp_path, print)
    with wording.raises(ConfigError):
        try_notifier(rules, "mail", tmp_path, print)


def setting(most: int = 20, least: Severity = Severity.INFO) -> NotifierSetting:
    return NotifierSetting(name="w", kind=NotifierKind.TERMINAL, min_severity=least, most_per_minute=most)


def alert(mark: str, state: str = "firing", **more: Json) -> dict[str, Json]:
    quiet: dict[str, Json] = {"silenced": False, "inhibited_by": None, "injected": False}
    return {**sample_alert(), **quiet, "fingerprint": mark, "state": state, **more}


def test_an_alert_that_still_fires_is_repeated_after_an_hour_only() -> None:
    policy = NotificationPolicy(setting(), repeat_s=3600)
    messages = [at for at in range(0, 8000, 10) if policy.due(at, [alert("a")]) is not None]
    assert messages == [0, 3600, 7200]


def test_the_resolution_is_sent_to_receivers_of_the_alert() -> None:
    policy = NotificationPolicy(setting(), repeat_s=3600)
    assert policy.due(0, [alert("a", silenced=True)]) is None
    assert policy.due(1, [alert("a", "resolved")]) is None
    assert isinstance(policy.due(2, [alert("b")]), Message)
    assert isinstance(policy.due(3, [alert("b", "resolved")]), Message)
    assert policy.due(4, [alert("b", "resolved")]) is None


def test_muted_and_minor_alerts_are_kept_to_oneself() -> None:
    policy = NotificationPolicy(setting(least=Severity.CRITICAL), repeat_s=3600)
    muted: list[dict[str, Json]] = [{"silenced": True}, {"inhibited_by": "WorkerDown"}, {"injected": True}]
    for more in muted:
        assert policy.due(0, [{**alert("a", severity="critical"), **more}]) is None
    assert policy.due(0, [alert("a", severity="warning")]) is None
    assert isinstance(policy.due(1, [alert("a", severity="critical")]), Message)


def test_a_limit_holds_messages_back_and_loses_none() -> None:
    policy = NotificationPolicy(setting(most=2), repeat_s=3600)
    assert isinstance(policy.due(0, [alert("a")]), Message)
    assert isinstance(policy.due(1, [alert("a"), alert("b")]), Message)
    three = [alert("a"), alert("b"), alert("c")]
    assert policy.due(2, three) == RateLimited("w", 1)
    assert policy.due(3, three) is None
    held = policy.due(61, three)
    assert isinstance(held, Message)
    assert [a["fingerprint"] for a in held.alerts] == ["c"]


def test_what_was_not_delivered_is_due_again_a_little_later() -> None:
    policy = NotificationPolicy(setting(), repeat_s=3600)
    begun = policy.due(0, [alert("a")])
    assert isinstance(begun, Message)
    policy.failed(begun, 1)
    assert policy.due(2, [alert("a")]) is None
    again = policy.due(32, [alert("a")])
    assert isinstance(again, Message)
    ended = policy.due(33, [alert("a", "resolved")])
    assert isinstance(ended, Message)
    policy.failed(ended, 34)
    policy.flush_now()  # the run is over
    last = policy.due(35, [alert("a", "resolved")])
    assert isinstance(last, Message)
    assert [a["state"] for a in last.alerts] == ["resolved"]


def test_an_error_names_no_secret(tmp_path: Path, wording: Wording) -> None:
    with web_sink(failures=9) as sink:
        (tmp_path / "hook").write_text(f"{sink.url}/T000/SECRET\n")
        text = "rules: []\nnotifiers: [{kind: webhook, url_file: hook, retries: 0}]"
        with wording.raises(NotDeliveredError) as caught:
            try_notifier(read_rules(text, "test"), "webhook", tmp_path, print)
    assert "SECRET" not in f"{caught.value}{caught.value.__cause__}{caught.value.hint}"
    (tmp_path / "hook").write_text("http://127.0.0.1:notaport/SECRET")
    with pytest.raises(NotDeliveredError) as caught:
        try_notifier(read_rules(text, "test"), "webhook", tmp_path, print)
    assert "SECRET" not in str(caught.value)


def test_a_redirect_is_no_delivery(tmp_path: Path, wording: Wording) -> None:
    with web_sink(moved_to="/elsewhere") as sink:
        text = f"rules: []\nnotifiers: [{{kind: webhook, url: '{sink.url}', retries: 0}}]"
        with wording.raises(NotDeliveredError):
            try_notifier(read_rules(text, "test"), "webhook", tmp_path, print)
    assert sink.got == []


def test_a_message_of_discord_is_short_and_mentions_no_one(tmp_path: Path) -> None:
    with web_sink() as sink:
        text = f"rules: []\nnotifiers: [{{kind: webhook, url: '{sink.url}', format: discord}}]"
        try_notifier(read_rules(text, "test"), "webhook", tmp_path, print)
    assert sink.got[0]["content"].startswith("**test**\nINFO Test: ")
    assert sink.got[0]["allowed_mentions"] == {"parse": []}
    assert len(str(discord_message("r", [sample_alert({"description": "x" * 5000})])["content"])) == 2000


def test_every_resolution_is_sent_however_many_come_at_once(tmp_path: Path) -> None:
    rules = read_rules(
        "rules: [{name: Far, all: [{metric: paceline_custom, above: 5}], by: [run, worker]}]\n"
        "notifiers: [{kind: log, path: told.jsonl, min_severity: info}]",
        "test",
    )
    log = ScriptedLog()
    for second, value in ((1, 9.0), (2, 1.0)):
        for number in range(40):
            at_ns = 5_000_000_000_000 + second * 1_000_000_000
            log.rows(f"worker-{number}", "custom", at_ns=at_ns, step=1, name="x", value=value)
        log.second(second)
    head, first, rest = log.lines[:2], log.lines[2:43], log.lines[43:]
    log.lines = list(head)
    log.write(tmp_path, a_plan(workers=1))
    with AlertNotifier(tmp_path, rules, print) as notifier_thread:
        for part in (first, rest):
            with (tmp_path / "events.jsonl").open("a") as file:
                file.write("".join(line + "\n" for line in part))
            notifier_thread.tick()
    reported = [json.loads(line)["state"] for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert (reported.count("firing"), reported.count("resolved")) == (40, 40)


def test_a_notifier_that_breaks_continues_and_the_alert_thread_ends(tmp_path: Path) -> None:
    """Whatever a way of sending raises, the next message is tried, and nothing hangs at the end."""
    script(18).write(tmp_path, a_plan(workers=1))
    (tmp_path / "hook").write_bytes(b"\xff\xfe no text")
    rules = read_rules(TWO_CONDITIONS.replace('url: "%s"', "url_file: hook, retries: 0"), "test")
    messages: list[str] = []
    with AlertNotifier(tmp_path, rules, messages.append) as notifier_thread:
        notifier_thread.tick()
    assert any("UnicodeDecodeError" in line for line in messages)
    assert '"outcome":"failed"' in (tmp_path / "events.jsonl").read_text()


def test_rules_are_kept_for_their_owner_and_a_broken_log_ends_messages_not_the_run(
    tmp_path: Path, wording: Wording
) -> None:
    script(3).write(tmp_path / "run", a_plan(workers=1))
    (tmp_path / "mine.yaml").write_text("defaults: true\nnotifiers: [{kind: terminal}]")
    log = tmp_path / "run" / "events.jsonl"
    log.unlink()
    log.mkdir()  # a log that cannot be read
    messages: list[str] = []
    with alerting(str(tmp_path / "mine.yaml"), tmp_path / "run", messages.append):
        until(lambda: bool(messages), "the end of the alerts is reported")
    wording(messages[0])
    assert (tmp_path / "run" / "alerts.yaml").stat().st_mode & 0o777 == 0o600


def test_alerts_that_fire_together_are_sent_together_and_a_blip_not_at_all() -> None:
    policy = NotificationPolicy(setting(), repeat_s=3600, group_wait_s=5, group_interval_s=30)
    assert policy.due(0, [alert("blip")]) is None
    assert policy.due(2, [alert("blip", "resolved")]) is None
    assert policy.due(10, [alert("a")]) is None
    assert policy.due(12, [alert("a"), alert("b")]) is None
    both = policy.due(15, [alert("a"), alert("b")])
    assert isinstance(both, Message)
    assert [a["fingerprint"] for a in both.alerts] == ["a", "b"]
    assert policy.due(20, [alert("a"), alert("b", "resolved")]) is None, "not before half a minute is over"
    assert policy.due(46, [alert("a"), alert("b", "resolved")]) is None, "it waits for what comes with it"
    ended = policy.due(51, [alert("a"), alert("b", "resolved")])
    assert isinstance(ended, Message)
    assert [a["fingerprint"] for a in ended.alerts] == ["b"]
    policy.flush_now()
    assert isinstance(policy.due(52, [alert("a", "resolved")]), Message)

"""`paceline alerts`: list, deliver, test and silence the alerts of a run."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import changed_run_argument, common_options, optional_run_argument
from paceline.cli.output import emit, print_message
from paceline.core.errors import ConfigError, Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.plan.codec import Json

_rules = click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="Alert rules file. [default: the run's rules, else the built-in rules]",
)


@click.group("alerts")
@common_options
def alerts(session: Session) -> None:
    """List, send, silence and validate alerts."""


@alerts.command("list")
@optional_run_argument
@click.option("--all", "is_all", is_flag=True, help="Include resolved alerts.")
@_rules
@common_options
def list_alerts(session: Session, run: Path | None, is_all: bool, rules: Path | None) -> None:
    """List the alerts of RUN (default: the newest under runs/), firing before pending.

    With --rules, another rules file is evaluated on the recorded events; no notifications are sent.
    """
    from paceline.monitoring.alerts.rule_file import load_rules
    from paceline.monitoring.view.feed import find_run, read_snapshot

    loaded = None if rules is None else load_rules(session.folder / rules)
    recorded = read_snapshot(find_run(session.folder, run), loaded)["alerts"]
    assert isinstance(recorded, list), "a snapshot lists its alerts"
    shown = [a for a in recorded if isinstance(a, dict) and (is_all or a["state"] != "resolved")]
    lines = [
        f"{a['state']:<9}{str(a['severity']).upper():<9} {a['rule']}: {a['summary']}{_muted(a)}"
        for a in shown
    ]
    emit(session, "alerts.list", {"alerts": list(shown)}, lines or ["no alerts"])


def _muted(alert: "dict[str, Json]") -> str:
    if alert["silenced"]:
        return " (silenced)"
    if alert["inhibited_by"] is not None:
        return f" (because of {alert['inhibited_by']})"
    return " (injected)" if alert["injected"] else ""


@alerts.command("watch")
@optional_run_argument
@_rules
@common_options
def watch(session: Session, run: Path | None, rules: Path | None) -> None:
    """Send the alerts of RUN through the notifiers in its rules, until the run ends or Ctrl-C."""
    from paceline.monitoring.alerts import delivery
    from paceline.monitoring.view.feed import find_run

    run_dir = find_run(session.folder, run)
    rule_set = delivery.rules_for(run_dir, session.resolve_path(rules))
    if not rule_set.notifiers:
        message = "the rules define no notifiers"
        raise ConfigError(
            [Problem(message, "add `notifiers:` to a rules file and pass it with --rules FILE")]
        )
    delivery.watch_alerts(run_dir, rule_set, lambda text: print_message(session, text), threading.Event())
    data: Json = {"run": str(run_dir), "notifiers": [notifier.name for notifier in rule_set.notifiers]}
    emit(session, "alerts.watch", data, [])


@alerts.command("test")
@click.argument("notifier")
@click.option(
    "--rules",
    type=click.Path(path_type=Path),
    required=True,
    help="Alert rules file that defines the notifier.",
)
@common_options
def test(session: Session, notifier: str, rules: Path) -> None:
    """Send two test messages through NOTIFIER: a firing and a resolved alert."""
    from paceline.monitoring.alerts import delivery

    rule_set = delivery.rules_for(None, session.folder / rules)
    setting = delivery.try_notifier(
        rule_set, notifier, session.folder, lambda text: print_message(session, text)
    )
    data: Json = {"notifier": setting.name, "kind": setting.kind.value}
    emit(session, "alerts.test", data, [f"{setting.name}: two test messages were delivered"])


@alerts.command("silence")
@changed_run_argument
@click.option(
    "--for",
    "duration",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Duration of the silence, such as 10m or 1h.",
)
@click.option("--rule", default="", metavar="NAME", help="Rule to silence. [default: all]")
@click.option("--worker", default="", metavar="NAME", help="Worker to silence. [default: all]")
@click.option("--comment", default="", metavar="TEXT", help="Reason for the silence.")
@common_options
def silence(session: Session, run: Path, duration: str, rule: str, worker: str, comment: str) -> None:
    """Suppress notifications of RUN for a while; its alerts are still listed."""
    from paceline.monitoring.alerts.delivery import rules_for
    from paceline.monitoring.alerts.delivery import silence_alerts as write_silence
    from paceline.monitoring.alerts.rule_file import seconds
    from paceline.monitoring.view.feed import find_run

    run_dir = find_run(session.folder, run)
    for_s = seconds(duration)
    problems = []
    if not for_s:
        problems.append(Problem(f"{duration!r} is not a duration", "use 10m or 1h", "--for"))
    names = [known_rule.name for known_rule in rules_for(run_dir, None).rules]
    if rule and rule not in names:
        problems.append(Problem(f"there is no rule {rule!r}", f"there are {', '.join(names)}", "--rule"))
    if problems or for_s is None:
        raise ConfigError(problems)
    write_silence(run_dir, for_s=for_s, rule=rule, worker=worker, comment=comment)
    target = " ".join(filter(None, [rule or "all alerts", worker and f"of {worker}"]))
    data: Json = {"run": str(run_dir), "rule": rule, "worker": worker, "for_s": for_s}
    emit(session, "alerts.silence", data, [f"{target}: silenced for {duration}"])


@alerts.command("export")
@_rules
@click.option("--out", type=click.Path(path_type=Path), help="Output file. [default: stdout]")
@common_options
def export(session: Session, rules: Path | None, out: Path | None) -> None:
    """Write the rules in Prometheus format."""
    from paceline.monitoring.alerts.delivery import rules_for
    from paceline.monitoring.metrics.provisioning import rules_file

    text = rules_file(rules_for(None, session.resolve_path(rules)))
    if out is not None:
        (session.folder / out).write_text(text, encoding="utf-8")
    files: Json = [] if out is None else [str(out)]
    emit(
        session,
        "alerts.export",
        {"text": text, "files": files},
        text.splitlines() if out is None else [str(out)],
    )


@alerts.command("check")
@click.argument("rules", required=False, type=click.Path(path_type=Path))
@common_options
def check(session: Session, rules: Path | None) -> None:
    """Validate RULES (default: the built-in rules) and report all problems at once."""
    from paceline.monitoring.alerts.delivery import rules_for
    from paceline.monitoring.metrics.provisioning import expression

    rule_set = rules_for(None, session.resolve_path(rules))
    data: Json = {
        "rules": [
            {"name": r.name, "severity": r.severity.word, "for_s": r.hold_s, "expression": expression(r)}
            for r in rule_set.rules
        ],
        "notifiers": [notifier.name for notifier in rule_set.notifiers],
    }
    lines = [f"{r.severity.word:<9} {r.name}: {expression(r)}" for r in rule_set.rules]
    notifiers = ", ".join(notifier.name for notifier in rule_set.notifiers) or "none"
    emit(session, "alerts.check", data, [*lines, f"{len(rule_set.rules)} rules, notifiers: {notifiers}"])

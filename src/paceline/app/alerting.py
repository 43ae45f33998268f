"""What can somebody do about alerts? Have them sent, try a way of sending, check a file of rules."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.clock import unix_now_s
from paceline.errors import PacelineError, Problem, RulesFileError
from paceline.watch.feed import RULES_NAME
from paceline.watch.herald import Herald, deliver
from paceline.watch.notifiers import open_notifier, sample_alert
from paceline.watch.rule_file import default_rules, load_rules
from paceline.watch.rules import NotifierSetting, Rules

LOOK_S = 0.5


def rules_for(run_dir: Path | None, said: Path | None) -> Rules:
    """Of the file that was named, else of the run's folder, else the default ones."""
    if said is not None:
        return load_rules(said)
    own = None if run_dir is None else run_dir / RULES_NAME
    return load_rules(own) if own is not None and own.exists() else default_rules()


def watch(run_dir: Path, rules: Rules, say: Callable[[str], None], is_over: threading.Event) -> None:
    """Send what is due until the run has ended, or `is_over`."""
    with Herald(run_dir, rules, say) as herald:
        while herald.tick() and not is_over.wait(LOOK_S):
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
        _keep(Path(said), run_dir / RULES_NAME)
    if not rules.notifiers:
        yield
        return
    is_over = threading.Event()
    args = (run_dir, rules, note, is_over)
    herald = threading.Thread(target=_watch_or_say, args=args, name="herald", daemon=True)
    herald.start()
    try:
        yield
    finally:
        is_over.set()
        herald.join()


def _keep(said: Path, own: Path) -> None:
    """For its owner alone: the address of a webhook is a password."""
    fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(said.read_bytes())


def _watch_or_say(run_dir: Path, rules: Rules, note: Callable[[str], None], is_over: threading.Event) -> None:
    """What ends the messages does not end the run."""
    try:
        watch(run_dir, rules, note, is_over)
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

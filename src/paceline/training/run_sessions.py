"""Sessions of a run folder in its store: fetch the run onto another machine, and continue it there.

`store.json` in the run folder names the session that this folder wrote, or was fetched from. A folder whose
session is not the newest one belongs to a command that was replaced: it is never continued.
"""

import json
from collections.abc import Callable
from pathlib import Path

from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.disk import write_durably
from paceline.core.errors import ConfigError, DamagedRecordError, NoCheckpointError, NotReadyError, Problem
from paceline.events.segments import end_of_lines
from paceline.plan.codec import COPY, loads
from paceline.plan.plan import Plan
from paceline.plan.urls import find_store_problem
from paceline.storage.objects import StoreError
from paceline.storage.run_store import PLAN, RULES, FencedError, RunSession, RunStore

SESSION_FILE = "store.json"
POLL_S = 1.0
SILENT_S = 6.0  # a command that trains copies new lines of its log every two seconds

Note = Callable[[str], None]


class RunHeldError(NotReadyError):
    """Another command trains this run."""

    code = "E212"


def record_session(run_dir: Path, session: RunSession) -> None:
    record = {"session": session.number, "token": session.token}
    write_durably(run_dir / SESSION_FILE, [json.dumps(record).encode()])


def require_newest(store: RunStore, run_dir: Path) -> RunSession:
    """The newest session, which this folder wrote; FencedError if another command continued the run."""
    sessions = store.sessions()
    if not sessions:
        raise StoreError(
            f"{store.url} holds no run, but {run_dir} has a copy there",
            "restore the objects that were removed, or start a new run",
        )
    if _own_session(run_dir) != (sessions[-1].number, sessions[-1].token):
        raise _continued_elsewhere(store, run_dir, sessions[-1])
    return sessions[-1]


def next_session(store: RunStore, run_dir: Path, token: str, *, resumed_at: int) -> RunSession:
    """Create the session in which this folder continues its run; FencedError if another one does."""
    sessions = store.sessions()
    if sessions and sessions[-1].token == token:  # by an attempt that was interrupted
        return sessions[-1]
    require_newest(store, run_dir)
    log_from = min(end_of_lines(run_dir / "events.jsonl"), store.log_end())
    session = store.create(log_from=log_from, resumed_at=resumed_at, token=token)
    if session is None:
        raise _continued_elsewhere(store, run_dir, store.sessions()[-1])
    return session


def _continued_elsewhere(store: RunStore, run_dir: Path, newest: RunSession) -> FencedError:
    return FencedError(
        f"the run in {run_dir} was continued by a command on {newest.host}",
        f"resume its newest state, if that command has ended:  paceline train --resume {store.url}",
    )


def _own_session(run_dir: Path) -> tuple[int, str] | None:
    """(number, token) of the session that this folder wrote or was fetched from."""
    path = run_dir / SESSION_FILE
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_bytes())
        return int(record["session"]), str(record["token"])
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedRecordError(
            f"{path} cannot be read: {error}", "remove this folder, and resume the run from its store"
        ) from error


def open_run_store(url: str) -> RunStore:
    """The store at an address that a user gave."""
    problem = find_store_problem(url)
    if problem is not None:
        raise ConfigError([Problem(*problem, "RUN")])
    return RunStore(url)


def stored_run(url: str) -> tuple[RunStore, Plan]:
    """The store at this URL, and the plan of its run."""
    store = open_run_store(url)
    text = store.plan()
    if text is None:
        raise NoCheckpointError(
            f"{url} holds no run", "use the --run-store that the run was started with, and check the address"
        )
    plan = loads(text, where=f"{url}/{PLAN}")
    # It becomes the name of a folder here.
    if Path(plan.run).name != plan.run or plan.run in ("", ".."):
        raise DamagedRecordError(
            f"{url}/{PLAN} names the run {plan.run!r}, which is no name of a folder",
            "check the address: another program has written this plan",
        )
    return store, plan


def fetch_run(store: RunStore, run_dir: Path) -> None:
    """The run in this new folder, as the newest session left it; its checkpoints are fetched when it resumes.

    The log is cut behind its last whole line. plan.json is written last: without it the folder holds no run.
    """
    newest = store.sessions()[-1]
    plan = store.plan()
    assert plan is not None, "stored_run has read it"
    rules = store.read_file(RULES)
    if rules is not None:
        write_durably(run_dir / RULES, [rules])
    write_durably(run_dir / "events.jsonl", store.read_log(0))
    record_session(run_dir, newest)
    for name in (COPY, PLAN):
        write_durably(run_dir / name, [plan])


def require_silence(store: RunStore, note: Note, *, silent_s: float = SILENT_S) -> None:
    """RunHeldError if another command still writes the run; for runs without a lease at a coordinator."""
    tail = b"".join(store.read_log(max(0, store.log_end() - 65_536))).splitlines()
    if tail and b'"kind":"run_finished"' in tail[-1]:
        return
    before = (len(store.sessions()), store.log_end())
    note(f"checking for {silent_s:g} s that no other command trains this run")
    until_s = monotonic_s() + silent_s
    while monotonic_s() < until_s:
        SystemClock().sleep(POLL_S)
        if (len(store.sessions()), store.log_end()) != before:
            raise RunHeldError(
                f"a command on {store.sessions()[-1].host} trains the run in {store.url}",
                f"follow it:  paceline status {store.url}; or stop it first",
            )

"""How does a job that is followed look on a terminal? Lines of all ranks with prefixes; talk on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import CannotWriteError, ExitCode

if TYPE_CHECKING:
    from paceline.app.cluster_reach import Cluster, Place
    from paceline.app.job_follow import Follower
    from paceline.cluster.job_logs import Line
    from paceline.kube.diagnosis.finding import Finding
    from paceline.plan.codec import Json


def follow_job(
    session: Session,
    cluster: "Cluster",
    place: "Place",
    name: str,
    *,
    for_s: float,
    output: Path | None,
    command: str,
) -> ExitCode:
    """For so many seconds, then a watcher goes on; 0: to the end. `output`: a file for the lines too."""
    from paceline.app.job_watcher import start_watcher
    from paceline.cluster.port import ApiError

    told: list[Finding] = []
    with kept_lines(session, output) as keep:
        follower = _follower(session, cluster, name, told, keep)
        try:
            done = follower.follow(for_s or None)
        except KeyboardInterrupt as stopped:
            raise type(stopped)(_goes_on(name, cluster)) from None  # for `guard`: what to do now
        except ApiError:
            say(session, _goes_on(name, cluster))
            raise
    answer: dict[str, Json] = {"name": name, "namespace": cluster.namespace, "attempt": done.attempt}
    answer["finding"] = told[-1].to_json() if told else None
    if done.end is not None:
        answer |= {"ended": True, "says": done.end.says, "exit_code": int(done.end.code)}
        say(session, done.end.says)
        emit(session, command, answer, [])
        return done.end.code
    watcher = start_watcher(place, cluster.namespace, name)
    say(
        session,
        f"after {for_s:.0f} s the shell returns; process {watcher.pid} goes on watching: {watcher.log}",
    )
    say(session, f"see it from any machine: paceline job attach {name} -n {cluster.namespace}")
    answer |= {"ended": False, "watcher": watcher.pid, "log": str(watcher.log)}
    emit(session, command, answer, [])
    return ExitCode.OK


def _goes_on(name: str, cluster: "Cluster") -> str:
    attach = f"paceline job attach {name} -n {cluster.namespace}"
    return f"the job goes on, and nobody here starts it again if it fails: {attach}"


@contextmanager
def kept_lines(session: Session, output: Path | None) -> Iterator[Callable[[str], None]]:
    """Lines are appended to a file, if one is named. Raises PacelineError."""
    if output is None:
        yield lambda _line: None
        return
    path = session.folder / output
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        hint = "name a file in a folder that exists and can be written to"
        raise CannotWriteError(f"cannot write {path}: {error.strerror}", hint) from error
    with file:
        # Each line at once: whoever is killed leaves what was seen.
        yield lambda line: print(line, file=file, flush=True)


def _follower(
    session: Session, cluster: "Cluster", name: str, told: "list[Finding]", keep: Callable[[str], None]
) -> "Follower":
    """`told`: every finding is put there too."""
    from paceline.app.job_follow import Follower, Shown

    def line(one: "Line") -> None:
        # With --json, stdout holds the answer alone.
        stream = sys.stderr if session.common.json else sys.stdout
        text = f"{one.prefix} {one.text}"
        print(text, file=stream, flush=True)
        keep(text)

    def tell(finding: "Finding") -> None:
        told.append(finding)
        for text in finding.lines():
            say(session, text)

    return Follower(
        cluster=cluster,
        name=name,
        shown=Shown(line=line, say=lambda text: say(session, text), tell=tell),
        evidence=session.folder / ".paceline" / "jobs",
    )

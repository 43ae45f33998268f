"""Why is the job of a recording stuck or dead, and what is to be done? No cluster is asked."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ConfigError, Problem, UnreadableFileError
from paceline.kube.diagnosis.finding import Finding
from paceline.kube.diagnosis.judge import Verdict, Watching, judge
from paceline.kube.diagnosis.progress import newest_checkpoint
from paceline.kube.diagnosis.record import KUBECTL, job_names, narrowed, read_record
from paceline.kube.diagnosis.retry import RetryPolicy
from paceline.kube.diagnosis.snapshot import Log, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """`finding` is None when nothing is wrong, as far as the recording shows."""

    finding: Finding | None
    verdict: Verdict
    seen: str  # how much there was to look at


def explain_record(path: Path, logs: Sequence[Path] = (), job: str | None = None) -> Explained:
    """`job`: only what belongs to it. A log's file is called like its pod."""
    text = _text(path, f"record one: {KUBECTL}")
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = (
            f"{error.msg}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "too deep"
        )
        hint = f"kubectl writes it with -o json: {KUBECTL}"
        raise ConfigError([Problem(f"the recording is not JSON: {reason}", hint, str(path))]) from error
    hint = "kubectl logs POD --timestamps > POD.log"
    told = [Log(pod=_pod(one), text=_text(one, hint), previous=_is_previous(one)) for one in logs]
    snapshot = read_record(value, str(path), told)
    if job is not None:
        whole, snapshot = snapshot, narrowed(snapshot, job)
        if not (snapshot.pods or snapshot.jobs or snapshot.events or snapshot.logs):
            hint = (
                f"recorded are {', '.join(job_names(whole)) or 'no jobs'}; without a name, all is looked at"
            )
            raise ConfigError([Problem(f"the recording holds nothing of a job {job!r}", hint, "NAME")])
    checkpoint = newest_checkpoint(snapshot)
    verdict, finding, _ = judge(snapshot, Watching(), RetryPolicy(), checkpoint=checkpoint)
    return Explained(finding=finding, verdict=verdict, seen=_seen(snapshot))


def _pod(path: Path) -> str:
    return path.name.removesuffix(".log").removesuffix(".previous")


def _is_previous(path: Path) -> bool:
    return path.name.removesuffix(".log").endswith(".previous")


def _text(path: Path, hint: str) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnreadableFileError(f"cannot read {path}: {error.strerror}", hint) from error


def _seen(snapshot: Snapshot) -> str:
    counted = {"pods": len(snapshot.pods), "events": len(snapshot.events), "logs": len(snapshot.logs)}
    return ", ".join(f"{number} {name}" for name, number in counted.items())

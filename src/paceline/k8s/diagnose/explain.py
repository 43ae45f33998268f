"""Explains a job from a file: a recording, output of `kubectl describe`, or a log. Contacts no cluster."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from paceline.core.disk import write_durably
from paceline.core.errors import ConfigError, Problem, UnreadableFileError
from paceline.core.humanize import pluralize
from paceline.core.redaction import redact, redact_lines
from paceline.k8s.diagnose.diagnosis import diagnose, unreadable_finding
from paceline.k8s.diagnose.findings import Finding, Remedy
from paceline.k8s.diagnose.kubectl_describe import parse_described
from paceline.k8s.diagnose.pods import newest_checkpoint
from paceline.k8s.diagnose.recording import KUBECTL, job_names, narrow_to_job, read_record
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.diagnose.snapshot import Log, Snapshot
from paceline.k8s.diagnose.verdict import Verdict, Wait, WatchState, judge

# A recording that was cut is an error. A log may also consist of JSON, one object per line.
_OPENS_RECORDING = re.compile(r"\s*\{\s*(?:$|\"(?:apiVersion|kind|items|objects|metadata|at|logs|answers)\")")
_IN_RECORDINGS = ("items", "objects", "logs", "answers", "watch", "kind", "apiVersion")
_YAML = re.compile(r"^(?:- )?apiVersion: ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`finding` is None when nothing is wrong, as far as the recording shows."""

    finding: Finding | None
    verdict: Verdict
    seen: str  # amount of evidence


def explain_recording(path: Path, logs: Sequence[Path] = (), job: str | None = None) -> Explanation:
    """`path`: JSON or YAML of kubectl, output of `kubectl describe`, or a log. `job`: only its objects.

    A log's file is called like its pod.
    """
    text = _text(path, f"record one: {KUBECTL}")
    hint = "kubectl logs POD --timestamps > POD.log"
    extra_logs = [Log(pod=_pod(log), text=_text(log, hint), previous=_is_previous(log)) for log in logs]
    value = _objects(text, path)
    if value is None:
        if not text.strip():
            hint = f"give it a recording ({KUBECTL}), the output of kubectl describe, or a log"
            raise ConfigError([Problem("the file is empty", hint, str(path))])
        snapshot = parse_described(text, "" if str(path) == "-" else _pod(path))
        return _judged(replace(snapshot, logs=(*snapshot.logs, *extra_logs)), timeless=True)
    snapshot = read_record(value, str(path), extra_logs)
    if job is not None:
        whole = snapshot
        snapshot = narrow_to_job(snapshot, job)
        if not (snapshot.pods or snapshot.jobs or snapshot.events or snapshot.logs):
            hint = (
                f"the recording has {', '.join(job_names(whole)) or 'no jobs'}; without a name, all jobs "
                "are explained"
            )
            raise ConfigError([Problem(f"the recording has no job {job!r}", hint, "NAME")])
    return _judged(snapshot, timeless=False)


def _objects(text: str, path: Path) -> object | None:
    """Content of JSON or YAML; None for other text."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            value: object = json.loads(text)
            return None if _is_log_line(value) else value
        except (json.JSONDecodeError, RecursionError) as error:
            if not _OPENS_RECORDING.match(text) or _is_json(text.lstrip().partition("\n")[0]):
                return None  # a log, whose lines may begin like this
            reason = (
                f"{error.msg}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "too deep"
            )
            hint = f"kubectl writes it with -o json: {KUBECTL}"
            raise ConfigError([Problem(f"the recording is not JSON: {reason}", hint, str(path))]) from error
    if not _YAML.search(text):
        return None
    try:
        documents = [document for document in yaml.safe_load_all(text) if isinstance(document, dict)]
    except (yaml.YAMLError, RecursionError):
        return None  # a log that quotes a manifest
    return {"items": documents} if documents else None


def _is_log_line(value: object) -> bool:
    """One object that is no part of a recording; a refusal by the API is such a line, too."""
    if not isinstance(value, dict) or not value:
        return False
    return value.get("kind") == "Status" or not any(key in value for key in _IN_RECORDINGS)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return False
    return True


def _judged(snapshot: Snapshot, *, timeless: bool) -> Explanation:
    """`timeless`: the text does not state when it was taken. Then ages in it are taken as given.

    Without ages, a wrong setting counts as lasting, and a failure that may pass does not.
    """
    past = WatchState()
    if timeless:
        first = diagnose(snapshot)
        is_setting = first is not None and first.failure.remedy in (Remedy.STOP, Remedy.FIX)
        is_dated = first is not None and first.at_s is not None and first.at_s < snapshot.at_s
        if first is not None and is_setting and not is_dated and first.failure.patience_s:
            since_s = snapshot.at_s - first.failure.patience_s
            past = WatchState(failure=first.failure.name, pod=first.pod, since_s=since_s)
    checkpoint = newest_checkpoint(snapshot)
    verdict, finding, _ = judge(snapshot, past, RetryPolicy(), checkpoint=checkpoint)
    if finding is None and timeless:
        finding = unreadable_finding(snapshot)
        verdict = Wait(says="no decision is made from this text alone", until_s=None)
    return Explanation(finding=finding, verdict=verdict, seen=_counts(snapshot))


def save_evidence(snapshot: Snapshot, folder: Path, attempt: int) -> Path:
    """Write the evidence of an attempt as a recording that `job explain --from` reads. Raises OSError.

    Values of environment variables are left out, and detected secrets are redacted.
    """
    logs = [
        {
            "pod": log.pod,
            "container": log.container,
            "previous": log.previous,
            "text": list(redact_lines(log.text.splitlines())),
        }
        for log in snapshot.logs
    ]
    objects = [_without_values(obj) for obj in snapshot.objects]
    text = json.dumps({"at": snapshot.at_s, "objects": objects, "logs": logs}, indent=1)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"attempt-{attempt}.json"
    write_durably(path, [text.encode()], mode=0o600)
    return path


def _without_values(value: object) -> object:
    match value:
        case dict():
            return {
                name: [{"name": item.get("name")} for item in inner if isinstance(item, dict)]
                if name == "env" and isinstance(inner, list)
                else _without_values(inner)
                for name, inner in value.items()
            }
        case list():
            return [_without_values(item) for item in value]
        case str():
            return redact(value)
        case _:
            return value


def _pod(path: Path) -> str:
    return path.name.removesuffix(".log").removesuffix(".previous")


def _is_previous(path: Path) -> bool:
    return path.name.removesuffix(".log").endswith(".previous")


def _text(path: Path, hint: str) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnreadableFileError(f"cannot read {path}: {error.strerror}", hint) from error


def _counts(snapshot: Snapshot) -> str:
    counted = {"pod": len(snapshot.pods), "event": len(snapshot.events), "log": len(snapshot.logs)}
    return ", ".join(pluralize(number, name) for name, number in counted.items())

"""How is a run handed to a Ray cluster, to be made when there is room? As the command that would make it.

The command runs on the cluster's head, and waits there until its workers have room: so experiments queue.
"""

import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline import environ
from paceline.app.ray_cluster import known
from paceline.config.key import Kind
from paceline.config.keys import KEYS
from paceline.config.written import Written
from paceline.errors import NotReadyError
from paceline.launchers.ray_jobs_door import Job, Jobs

_SET_HERE = ("launcher", "address", "run_dir")


def dashboard_of(said: str | None, folder: Path) -> str:
    """What was said, or the cluster that `paceline ray up` made."""
    if said is not None:
        return said if "://" in said else f"http://{said}"
    cluster = known(folder)
    if cluster is not None and cluster.is_up and cluster.dashboard:
        return cluster.dashboard
    raise NotReadyError(
        "no Ray cluster with a dashboard is known here",
        "make one with `paceline ray up`, or name its dashboard with --dashboard http://HOST:8265",
    )


def job_name(run: str) -> str:
    return f"{run}-{secrets.token_hex(3)}"


def submit(
    dashboard: str,
    *,
    job: str,
    flags: Sequence[Written],
    sets: Sequence[str],
    config: Path | None,
    run_dir: Path,
    folder: Path,
) -> Job:
    """Returns at once."""
    cluster = known(folder)
    is_here = cluster is not None and cluster.dashboard == dashboard
    words = [sys.executable if is_here else "python", "-m", "paceline", "train", *_said(flags)]
    words += [word for pair in sets for word in ("--set", pair)]
    words += [] if config is None else ["--config", str(config.resolve())]
    words += ["--launcher", "ray", "--address", "auto", "--run-dir", str(run_dir)]
    variables = {environ.PREFIX + name.upper(): value for name, value in environ.config_variables().items()}
    jobs = Jobs(dashboard)
    jobs.submit(shlex.join(words), job=job, run_dir=str(run_dir), variables=variables)
    return jobs.job(job)


def _said(flags: Sequence[Written]) -> list[str]:
    """Flags as they were written."""
    words: list[str] = []
    for written in flags:
        key = KEYS[written.key]
        if key.name in _SET_HERE:
            continue
        if key.kind is Kind.YES_NO:
            words.append(key.flag if written.raw else f"--no-{key.flag.removeprefix('--')}")
        elif isinstance(written.raw, Mapping):
            words += [word for name, value in written.raw.items() for word in (key.flag, f"{name}={value}")]
        else:
            words += [key.flag, str(written.raw)]
    return words

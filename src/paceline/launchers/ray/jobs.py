"""Ray jobs: submit the command of a run to a Ray cluster, where it queues until there are resources.

The command runs on the cluster's head, and waits there until its workers have resources.
"""

import asyncio
import contextlib
import logging
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.key import Kind
from paceline.config.keys import KEYS
from paceline.config.values import RawSetting
from paceline.core import environ
from paceline.core.errors import NotReadyError, PacelineError
from paceline.launchers.ray.client import RayUnreachableError, check_reachable, check_version
from paceline.launchers.ray.local_cluster import read_cluster

_HINT = (
    "name the cluster's dashboard with --dashboard http://HOST:8265, or start a cluster with `paceline "
    "ray up`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    id: str
    status: str  # Ray's status, in lower case: pending, running, stopped, succeeded, failed
    command: str
    message: str
    exit_code: int | None
    run_dir: str | None  # None: a job of another program
    started_ms: int | None
    ended_ms: int | None

    @property
    def is_over(self) -> bool:
        return self.status in ("stopped", "succeeded", "failed")


class Jobs:
    def __init__(self, dashboard: str) -> None:
        """RayUnreachableError, within seconds, unless it answers."""
        check_version()
        environ.prepare_ray()
        check_reachable(dashboard.partition("://")[2].rstrip("/"), service="Ray dashboard")
        from ray.job_submission import JobSubmissionClient

        self._dashboard = dashboard
        try:
            self._client: Any = JobSubmissionClient(dashboard)  # Any: Ray has no types here
        except (ConnectionError, RuntimeError) as error:
            message = f"no Ray dashboard at {dashboard}: {_first_line(error)}"
            raise RayUnreachableError(message, _HINT) from error
        logging.getLogger("ray").setLevel(logging.ERROR)  # how it talks HTTP is no news

    def submit(self, command: str, *, job: str, run_dir: str, variables: dict[str, str]) -> str:
        with self._translated(job):
            submission_id: str = self._client.submit_job(
                entrypoint=command,
                submission_id=job,
                metadata={"paceline_run_dir": run_dir},
                runtime_env={"env_vars": variables},
            )
        return submission_id

    def job(self, job: str) -> Job:
        with self._translated(job):
            return _job(self._client.get_job_info(job))

    def all(self) -> list[Job]:
        """Those that were submitted, oldest first."""
        with self._translated(""):
            jobs = [_job(details) for details in self._client.list_jobs() if details.submission_id]
        return sorted(jobs, key=lambda job: job.started_ms or 0)

    def logs(self, job: str) -> str:
        with self._translated(job):
            text: str = self._client.get_job_logs(job)
        return text

    def follow(self, job: str, notify: Callable[[str], None]) -> None:
        """Forward the output of the job until its end."""

        async def tail() -> None:
            async with contextlib.aclosing(self._client.tail_job_logs(job)) as lines:
                async for text in lines:
                    notify(text)

        self.job(job)  # a better error if there is no such job
        with self._translated(job):
            asyncio.run(tail())

    def stop(self, job: str) -> bool:
        """Request a stop; False if the job had already ended."""
        with self._translated(job):
            return bool(self._client.stop_job(job))

    @contextmanager
    def _translated(self, job: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if "does not exist" in str(error):
                message = f"there is no job {job} at {self._dashboard}"
                raise PacelineError(message, "`paceline ray list` shows them") from error
            raise PacelineError(f"Ray refused it: {_first_line(error)}", _HINT) from error
        except OSError as error:  # including errors of requests
            raise RayUnreachableError(f"Ray does not answer at {self._dashboard}: {error}", _HINT) from error


def _job(details: Any) -> Job:  # Any: Ray's own
    return Job(
        id=str(details.submission_id),
        status=str(details.status.value).lower(),
        command=str(details.entrypoint),
        message=str(details.message or ""),
        exit_code=details.driver_exit_code,
        run_dir=(details.metadata or {}).get("paceline_run_dir"),
        started_ms=details.start_time,
        ended_ms=details.end_time,
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_SET_HERE = ("launcher", "address", "run_dir")


def dashboard_address(address: str | None, folder: Path) -> str:
    """The given address, or that of the cluster that `paceline ray up` made."""
    if address is not None:
        return address if "://" in address else f"http://{address}"
    cluster = read_cluster(folder)
    if cluster is not None and cluster.is_up and cluster.dashboard:
        return cluster.dashboard
    raise NotReadyError(
        "no Ray dashboard is configured",
        "start a cluster with `paceline ray up`, or name its dashboard with --dashboard http://HOST:8265",
    )


def job_name(run: str) -> str:
    return f"{run}-{secrets.token_hex(3)}"


def submit_job(
    dashboard: str,
    *,
    job: str,
    flags: Sequence[RawSetting],
    sets: Sequence[str],
    config: Path | None,
    run_dir: Path,
    folder: Path,
) -> Job:
    """Returns at once."""
    cluster = read_cluster(folder)
    is_here = cluster is not None and cluster.dashboard == dashboard
    argv = [sys.executable if is_here else "python", "-m", "paceline", "train", *_flags_as_given(flags)]
    argv += [word for pair in sets for word in ("--set", pair)]
    argv += [] if config is None else ["--config", str(config.resolve())]
    argv += ["--launcher", "ray", "--address", "auto", "--run-dir", str(run_dir)]
    variables = {environ.PREFIX + name.upper(): value for name, value in environ.config_variables().items()}
    jobs = Jobs(dashboard)
    jobs.submit(shlex.join(argv), job=job, run_dir=str(run_dir), variables=variables)
    return jobs.job(job)


def _flags_as_given(flags: Sequence[RawSetting]) -> list[str]:
    """Flags as the user wrote them."""
    argv: list[str] = []
    for written in flags:
        key = KEYS[written.key]
        if key.name in _SET_HERE:
            continue
        if key.kind is Kind.YES_NO:
            argv.append(key.flag if written.raw else f"--no-{key.flag.removeprefix('--')}")
        elif isinstance(written.raw, Mapping):
            argv += [word for name, value in written.raw.items() for word in (key.flag, f"{name}={value}")]
        else:
            argv += [key.flag, str(written.raw)]
    return argv

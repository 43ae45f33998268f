"""Metrics server of a run that is training: `/metrics` for Prometheus, by a process of its own.

The process follows the event log like any other reader, so that a scrape takes no time from training, and
ends with the command. Without a token file it listens on loopback; with one on every address, and each
request must carry the token. If it cannot start, that is reported and training continues.
See docs/guides/monitoring.md.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.config.load import load
from paceline.config.train_config import TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError
from paceline.plan.check_task import check_metrics

SETTINGS = ("metrics_port", "metrics_token_file")
_SHUTDOWN_TIMEOUT_S = 10.0
_ALL_ADDRESSES = "0.0.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsEndpoint:
    port: int  # 0: any free port
    token_file: Path | None = None  # None: only this machine may read the metrics


def metrics_endpoint(config: TrainConfig, folder: Path) -> MetricsEndpoint | None:
    """Where the run serves its metrics; None: nowhere. Paths are relative to `folder`."""
    if config.metrics_port is None:
        return None
    token_file = None if config.metrics_token_file is None else folder / config.metrics_token_file
    return MetricsEndpoint(port=config.metrics_port, token_file=token_file)


def endpoint_of_flags(flags: Sequence[RawSetting], folder: Path) -> MetricsEndpoint | None:
    """The endpoint of a run that is resumed, whose other settings are those of its plan."""
    loaded = load(flags=[flag for flag in flags if flag.key in SETTINGS])
    problems = [*loaded.problems, *check_metrics(loaded.config)]
    if problems:
        raise ConfigError(problems)
    return metrics_endpoint(loaded.config, folder)


@contextmanager
def serving_metrics(
    endpoint: MetricsEndpoint | None, run_dir: Path, note: Callable[[str], None]
) -> Iterator[None]:
    if endpoint is None:
        yield
        return
    process = subprocess.Popen(
        ["nice", "-n", "5", sys.executable, "-m", "paceline", *_arguments(endpoint, run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C in the terminal must reach only the command
    )
    assert process.stdin is not None, "stdin is a pipe"
    assert process.stdout is not None, "stdout is a pipe"
    reader = threading.Thread(target=_report, args=(process.stdout, note), name="metrics", daemon=True)
    reader.start()
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(_SHUTDOWN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()


def _arguments(endpoint: MetricsEndpoint, run_dir: Path) -> list[str]:
    argv = ["metrics", "serve", str(run_dir), "--port", str(endpoint.port), "--beside", "--json"]
    if endpoint.token_file is not None:
        argv += ["--host", _ALL_ADDRESSES, "--token-file", str(endpoint.token_file)]
    return argv


def _report(lines: IO[str], note: Callable[[str], None]) -> None:
    with lines:
        for line in lines:
            message = json.loads(line)
            if message["ok"]:
                note(f"metrics: {message['data']['url']}")
            else:
                problem = message["error"]["problems"][0]
                note(f"warning: metrics are not served: {problem['what']}; {problem['hint']}")

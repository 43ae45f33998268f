"""Exporter process: `python -m paceline.export RUN NAME[=WHERE] live SINCE`, or `… once`.

A process of its own, so that no vendor SDK can slow the training, catch its signals, or end it.
It reports with JSON lines on its original stdout; output of the SDK goes to the run's logs. In
live mode it ends when its stdin closes: when the run is over, or when the launcher is gone.
"""

import json
import os
import select
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from paceline.config.load import read_export
from paceline.core import environ
from paceline.core.errors import PacelineError
from paceline.export.follower import export, follow

POLL_S = 0.5
_NICENESS = 19  # workers first: on a busy machine the exporter gets about a hundredth of a core
_ENVIRONMENT = {
    # No telemetry.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    # MLflow must be configured to accept plain files; its small client supports no other local store.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    # Fail after seconds, not minutes, if the server is unreachable.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def main() -> None:
    run_dir = Path(sys.argv[1])
    target_text, mode, *rest = sys.argv[2:]
    (target,) = read_export(target_text, where=None, folder=Path())
    os.nice(_NICENESS)
    environ.set_default_variables(**_ENVIRONMENT)
    report_fd = os.dup(1)
    _log_to(run_dir / "logs" / f"export-{target.kind}.log")
    try:
        if mode == "live":
            result = follow(run_dir, target, since=int(rest[0]), is_over=_is_over)
        else:
            result = export(run_dir, target)
        _send_line(report_fd, {"place": result.place, "points": result.points})
    except PacelineError as error:
        _send_line(report_fd, {"error": error.to_dicts()})
    except Exception as error:  # of the vendor SDK: reported in one line, and logged in full
        traceback.print_exc()
        message = f"export {target.kind} failed: {type(error).__name__}: {error}".splitlines()[0][:500]
        _send_line(
            report_fd, {"error": [{"what": message, "hint": f"see {run_dir}/logs/export-{target.kind}.log"}]}
        )


def _is_over() -> bool:
    """Nothing is written to stdin: it becomes readable when it closes."""
    readable, _, _ = select.select([0], [], [], POLL_S)
    return bool(readable)


def _send_line(fd: int, message: object) -> None:
    with suppress(BrokenPipeError):  # the command was killed
        os.write(fd, (json.dumps(message) + "\n").encode())


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    main()

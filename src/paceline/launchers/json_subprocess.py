"""JSON subprocess: runs a module that imports torch, for a command that must not.

The module runs in a process of its own and writes JSON lines to its stdout. It ends when the command does
(core/processes.py), and reports an error as a line {"error": …} before it exits.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from paceline.core import environ
from paceline.core.errors import ConfigError, ExitCode, NotReadyError, PacelineError, Problem
from paceline.plan.codec import Json


def json_lines(module: str, arguments: Sequence[str]) -> Iterator[dict[str, Json]]:
    """Each object that `python -m module arguments` prints, as a stream."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is for the command, which then ends this one
        text=True,
        env=environ.for_child(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"),
    )
    assert process.stdout is not None, "stdout is a pipe"
    try:
        for line in process.stdout:
            message = json.loads(line)
            if "error" in message:
                problems = [Problem(p["what"], p["hint"], code=p.get("code", "")) for p in message["error"]]
                raise rebuild_error(problems)
            yield message
        if process.wait() != 0:
            raise PacelineError(
                f"{module} ended with exit code {process.returncode}",
                "see its output above, or run again with -v",
            )
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def rebuild_error(problems: list[Problem]) -> PacelineError:
    """The error that the other process met: its code, and the exit code that goes with it."""
    from paceline.core.error_catalog.index import ERROR_CATALOG  # imported only after a failure

    first = problems[0]
    row = ERROR_CATALOG.get(first.code)
    if row is None or row.exit_code is ExitCode.BAD_CONFIG:
        return ConfigError(problems)
    kind = NotReadyError if row.exit_code is ExitCode.NOT_READY else PacelineError
    return kind(first.what, first.hint).known_as(first.code)

"""Subprocess that runs a scenario and prints JSON lines: messages, ticks and expectations.

`python -m paceline.faults.scenarios.main NAME TIMES FOLDER`; it stops when its stdin closes.
"""

import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from paceline.core.errors import PacelineError
from paceline.faults.scenarios.catalog import SCENARIOS
from paceline.faults.scenarios.expectations import ScenarioReporter


def main(name: str, times: int, run_dir: Path) -> None:
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        reporter = ScenarioReporter(
            lambda line: _emit({"said": line}), lambda tick: _emit({"tick": tick.json()})
        )
        expectations = SCENARIOS[name].body(run_dir, times, reporter)
    except PacelineError as error:
        _emit({"problem": f"{error.what}; {error.hint}"})
        return
    _emit({"expectations": [asdict(expectation) for expectation in expectations]})


def _emit(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


def _end_with_stdin() -> None:
    if not sys.stdin.read():
        os.kill(os.getpid(), signal.SIGINT)  # the scenario then ends its processes itself


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

"""Who goes on watching when the shell has returned? A process of its own, with a log that can be read."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from paceline import environ
from paceline.app.cluster_reach import Place
from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True)
class Watcher:
    pid: int
    log: Path


def start_watcher(place: Place, namespace: str, name: str) -> Watcher:
    """It follows the job to its end, whatever becomes of the terminal."""
    folder = environ.state_folder() / "jobs" / namespace
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "paceline", "job", "attach", name, "--for", "0"]
    placed = Place(kubeconfig=place.kubeconfig, context=place.context, namespace=namespace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*command, *placed.words()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environ.for_child(),
                start_new_session=True,  # closing the terminal does not end it
            )
    except OSError as error:
        hint = f"the job goes on; watch it yourself: paceline job attach {name} -n {namespace} --for 0"
        raise PacelineError(f"no watcher could be started: {error}", hint) from error
    process.returncode = 0  # it outlives us on purpose: nobody waits for it, and nobody shall warn
    return Watcher(process.pid, log)

"""Which probes are made, and how long may each take? All at once; a late one is called late."""

import queue
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline import environ
from paceline.app.doctor import judge, probes
from paceline.app.doctor.line import Line
from paceline.clock import monotonic_s
from paceline.config.facts import look_up_facts
from paceline.config.train_config import TrainConfig

LIMIT_S = 20.0
TORCH_LIMIT_S = 60.0  # importing it takes long on a machine that has just started
USUAL_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    look: Callable[[], Line | list[Line]]
    limit_s: float = LIMIT_S
    is_needed: bool = False  # nothing trains without it, so a machine of which it is not known is not ready

    def late(self) -> Line:
        return judge.late(self.name, self.limit_s, is_needed=self.is_needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    folder: Path
    workers: int = USUAL_WORKERS
    port: int  # where the dashboard usually listens
    page: Path  # where its page is built to
    coordinator: str | None = None  # HOST:PORT,…
    ray: str | None = None


def look(asked: Asked) -> list[Line]:
    return run(_probes(asked))


def run(wanted: list[Probe]) -> list[Line]:
    """Their lines, in their order. A probe that raises is a bug, and is raised here."""
    answers: queue.Queue[tuple[int, list[Line] | BaseException]] = queue.Queue()
    for number, probe in enumerate(wanted):
        threading.Thread(target=_answer, args=(number, probe, answers), daemon=True).start()
    began_s = monotonic_s()
    found: dict[int, list[Line]] = {}
    while waiting := [n for n in range(len(wanted)) if n not in found]:
        rest_s = {n: wanted[n].limit_s - (monotonic_s() - began_s) for n in waiting}
        try:
            number, answer = answers.get(timeout=max(0.0, min(rest_s.values())))
        except queue.Empty:
            for n in (n for n in waiting if rest_s[n] - min(rest_s.values()) <= 0.0):
                found[n] = [wanted[n].late()]
            continue
        if isinstance(answer, BaseException):
            raise answer
        found.setdefault(number, answer)
    return [line for number in range(len(wanted)) for line in found[number]]


def _answer(
    number: int, probe: Probe, answers: "queue.Queue[tuple[int, list[Line] | BaseException]]"
) -> None:
    try:
        answer = probe.look()
        answers.put((number, answer if isinstance(answer, list) else [answer]))
    except subprocess.TimeoutExpired:
        answers.put((number, [probe.late()]))
    except OSError as error:
        answers.put((number, [judge.unknown(probe.name, str(error))]))
    except BaseException as error:
        answers.put((number, error))


def _probes(asked: Asked) -> list[Probe]:
    facts = look_up_facts(TrainConfig())
    wanted = [
        Probe("python", probes.python),
        Probe("torch", probes.torch_and_gpu, TORCH_LIMIT_S, is_needed=True),
        Probe("packages", probes.packages),
        Probe("extras", probes.extras),
        Probe("cores", lambda: probes.cores(facts, asked.workers)),
        Probe("shared memory", probes.shared_memory),
        Probe("file limit", probes.file_limit),
        Probe("disk", lambda: probes.disk(asked.folder)),
        Probe("ports", probes.loopback),
        Probe("dashboard port", lambda: probes.dashboard_port(asked.port)),
        Probe("dashboard page", lambda: probes.page(asked.page)),
        Probe("processes", probes.orphans),
        Probe("runs", lambda: probes.run_folders(asked.folder)),
        Probe("container engine", probes.engine),
    ]
    return wanted + _configured(asked)


def _configured(asked: Asked) -> list[Probe]:
    """Whoever is not configured is not asked."""
    wanted = []
    for address in probes.coordinator_nodes(asked.coordinator or ""):
        wanted.append(_reach("coordinator", address, "start it, or unset PACELINE_COORDINATOR"))
    if (ray := asked.ray or environ.ray_address()) and ":" in ray:
        address = ray.rpartition("://")[2].partition("/")[0]
        wanted.append(_reach("ray", address, "start it (paceline ray up), or unset RAY_ADDRESS"))
    if (server := probes.kubernetes_server()) is not None:
        wanted.append(_reach("kubernetes", server, "is a VPN off? paceline cluster list shows the contexts"))
        wanted.append(Probe("clock", lambda: probes.clock_against(server)))
    return wanted


def _reach(name: str, address: str, fix: str) -> Probe:
    return Probe(name, lambda: probes.reached(name, address.strip(), fix))

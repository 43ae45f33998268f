"""Probes of this machine, run concurrently, each with a time limit; a late one is reported as late."""

import http.client
import json
import os
import queue
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path

from paceline.config.environment import Facts, probe_machine
from paceline.config.train_config import TrainConfig
from paceline.coordinator.client import nodes_file
from paceline.core import clock, environ
from paceline.core.clock import monotonic_s
from paceline.doctor import checks
from paceline.doctor.checks import CheckResult, Process, Torch

KNOCK_S = 3.0
COMMAND_S = 10.0
TORCH_S = 60.0
STALE_S = 60.0  # a run that lives writes to its log far more often
NEEDED = ("click", "torch", "numpy", "grpcio", "protobuf", "pyyaml", "rich", "safetensors")
NOT_FOR_USERS = frozenset({"dev", "bench", "peers"})
_OURS = (
    "paceline.worker.entry.zygote",
    "paceline.worker.entry.torchrun_server_main",
    "paceline.launchers.isolated",
)
_ASK_TORCH = """
import json, torch
has_gpu = torch.version.cuda and torch.cuda.is_available()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_gpu else ""
print(json.dumps([torch.__version__, torch.version.cuda or "", torch.cuda.device_count(), nccl]))
"""


def python() -> CheckResult:
    return checks.python(sys.version_info[:3], sys.executable)


def ask_torch() -> Torch:
    """In a process of its own: that it can be imported is what has to be known."""
    words = [sys.executable, "-c", _ASK_TORCH]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TORCH_S, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return Torch(error=said[-1] if said else f"exit code {done.returncode}")
    version, cuda, devices, nccl = json.loads(done.stdout.splitlines()[-1])
    return Torch(version=version, cuda=cuda, devices=devices, nccl=nccl)


def driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    cards = done.stdout.strip().splitlines()
    return f"{len(cards)} x {cards[0]}" if done.returncode == 0 and cards else ""


def torch_and_gpu() -> list[CheckResult]:
    found = ask_torch()
    return [checks.torch(found), checks.gpu(driver(), found)]


def packages() -> CheckResult:
    needed = _needed() or NEEDED
    return checks.packages({name: _version(name) for name in needed})


def extras() -> CheckResult:
    """Installed is an extra whose packages all are; what it needs is in our own metadata."""
    of_extra: dict[str, list[str]] = {}
    for text in _requirements():
        name = _name(text)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", text)
        if extra is not None and extra[1] not in NOT_FOR_USERS:
            of_extra.setdefault(extra[1], []).append(name)
    return checks.extras({extra: all(map(_version, names)) for extra, names in sorted(of_extra.items())})


def loopback() -> CheckResult:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return checks.loopback("")
    except OSError as error:
        return checks.loopback(error.strerror or str(error))


def dashboard_port(port: int) -> CheckResult:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return checks.dashboard_port(port, is_free=True)
    except OSError:
        return checks.dashboard_port(port, is_free=False)


def file_limit() -> CheckResult:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return checks.file_limit(-1 if soft == resource.RLIM_INFINITY else soft)


def shared_memory(folder: Path = Path("/dev/shm")) -> CheckResult:  # looked at, not written
    return checks.shared_memory(shutil.disk_usage(folder).free if folder.is_dir() else None)


def disk(folder: Path) -> CheckResult:
    return checks.disk(str(folder.resolve()), shutil.disk_usage(folder).free, os.access(folder, os.W_OK))


def cores(facts: Facts, workers: int) -> CheckResult:
    return checks.cores(facts.cpu_count, workers)


def reached(name: str, address: str, fix: str) -> CheckResult:
    """Does somebody listen at HOST:PORT?"""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
    except (OSError, ValueError) as error:
        return checks.reached(name, address, getattr(error, "strerror", None) or str(error), fix)
    return checks.reached(name, address, "", fix)


def coordinator_nodes(said: str) -> list[str]:
    """Addresses, or those of the folder that `paceline coordinator up` wrote."""
    if said and (Path(said) / nodes_file.FILE_NAME).exists():
        return list(nodes_file.read_nodes_file(Path(said)).nodes.values())
    return [address for part in said.split(",") if (address := part.strip())]


def orphans(processes: Path = Path("/proc")) -> CheckResult:
    """Linux only: elsewhere there is no such folder, and none are found."""
    first = processes / "1" / "cmdline"
    if first.exists() and b"paceline" in first.read_bytes():
        return checks.orphans([])  # a container whose command is ours: its children are nobody's orphans
    return checks.orphans([one for one in map(_process, processes.glob("[0-9]*")) if one is not None])


def run_folders(base: Path, now_s: float | None = None) -> CheckResult:
    now_s = clock.unix_now_s() if now_s is None else now_s
    found = []
    for plan in sorted(base.glob("runs/*/plan.json")):
        run = plan.parent
        times = [path.stat().st_mtime for path in (plan, run / "events.jsonl") if path.exists()]
        if not (run / "result.json").exists() and now_s - max(times) > STALE_S:
            found.append(str(run.relative_to(base)))
    return checks.run_folders(found)


def page(folder: Path) -> CheckResult:
    return checks.page((folder / "index.html").exists())


def engine() -> CheckResult:
    for name in ("podman", "docker", "buildah"):
        if shutil.which(name) is not None:
            words = [name, "--version"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
            if done.returncode == 0:
                return checks.engine(done.stdout.strip().splitlines()[0])
    return checks.engine("")


def kubernetes_server() -> str | None:
    """HOST:PORT of the current context; None where there is none, or no way to read it."""
    said = environ.kubeconfig()
    path = Path(said.split(os.pathsep)[0]) if said else Path.home() / ".kube" / "config"
    if not path.is_file():
        return None
    import yaml

    try:
        seen = yaml.safe_load(path.read_text(encoding="utf-8"))
        contexts = {one["name"]: one["context"]["cluster"] for one in seen["contexts"]}
        servers = {one["name"]: one["cluster"]["server"] for one in seen["clusters"]}
        found = re.match(
            r"(https?)://(\[[^\]]+\]|[^:/]+)(?::(\d+))?", servers[contexts[seen["current-context"]]]
        )
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return None
    if found is None:
        return None
    return f"{found[2]}:{found[3] or (443 if found[1] == 'https' else 80)}"


def clock_against(server: str) -> CheckResult:
    """By the Date that a cluster puts on every answer, also on a refusal; nothing is sent to it."""
    host, _, port = server.rpartition(":")
    anybody = ssl.create_default_context()
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    line = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=KNOCK_S, context=anybody)
    try:
        line.request("HEAD", "/version")
        said = line.getresponse().getheader("Date") or ""
        theirs_s = parsedate_to_datetime(said).timestamp()
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{server} does not say what time it has") from error
    finally:
        line.close()
    return checks.clock(clock.unix_now_s() - theirs_s, server)


def _process(folder: Path) -> Process | None:
    """None: not one of ours, or it has just ended."""
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        if not any(module in words.split() for module in _OURS):
            return None
        stat = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Process(pid=int(folder.name), parent=int(stat[1]), words=words)


def _needed() -> list[str]:
    return [_name(text) for text in _requirements() if "extra" not in text]


def _requirements() -> list[str]:
    try:
        return metadata.requires("paceline") or []
    except metadata.PackageNotFoundError:  # run from a folder that was never installed
        return []


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


LIMIT_S = 20.0
TORCH_LIMIT_S = 60.0  # importing it takes long on a machine that has just started
DEFAULT_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    look: Callable[[], CheckResult | list[CheckResult]]
    limit_s: float = LIMIT_S
    is_needed: bool = False  # nothing trains without it, so a machine of which it is not known is not ready

    def late(self) -> CheckResult:
        return checks.late(self.name, self.limit_s, is_needed=self.is_needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    folder: Path
    workers: int = DEFAULT_WORKERS
    port: int  # where the dashboard usually listens
    page: Path  # where its page is built to
    coordinator: str | None = None  # HOST:PORT,…
    ray: str | None = None


def check_machine(asked: DoctorOptions) -> list[CheckResult]:
    return run_probes(_probes(asked))


def run_probes(wanted: list[Probe]) -> list[CheckResult]:
    """Their lines, in their order. A probe that raises is a bug, and is raised here."""
    answers: queue.Queue[tuple[int, list[CheckResult] | BaseException]] = queue.Queue()
    for number, probe in enumerate(wanted):
        threading.Thread(target=_answer, args=(number, probe, answers), daemon=True).start()
    began_s = monotonic_s()
    found: dict[int, list[CheckResult]] = {}
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
    number: int, probe: Probe, answers: "queue.Queue[tuple[int, list[CheckResult] | BaseException]]"
) -> None:
    try:
        answer = probe.look()
        answers.put((number, answer if isinstance(answer, list) else [answer]))
    except subprocess.TimeoutExpired:
        answers.put((number, [probe.late()]))
    except OSError as error:
        answers.put((number, [checks.unknown(probe.name, str(error))]))
    except BaseException as error:
        answers.put((number, error))


def _probes(asked: DoctorOptions) -> list[Probe]:
    facts = probe_machine(TrainConfig())
    wanted = [
        Probe("python", python),
        Probe("torch", torch_and_gpu, TORCH_LIMIT_S, is_needed=True),
        Probe("packages", packages),
        Probe("extras", extras),
        Probe("cores", lambda: cores(facts, asked.workers)),
        Probe("shared memory", shared_memory),
        Probe("file limit", file_limit),
        Probe("disk", lambda: disk(asked.folder)),
        Probe("ports", loopback),
        Probe("dashboard port", lambda: dashboard_port(asked.port)),
        Probe("dashboard page", lambda: page(asked.page)),
        Probe("processes", orphans),
        Probe("runs", lambda: run_folders(asked.folder)),
        Probe("container engine", engine),
    ]
    return wanted + _configured(asked)


def _configured(asked: DoctorOptions) -> list[Probe]:
    """Whoever is not configured is not asked."""
    wanted = []
    for address in coordinator_nodes(asked.coordinator or ""):
        wanted.append(_reach("coordinator", address, "start it, or unset PACELINE_COORDINATOR"))
    if (ray := asked.ray or environ.ray_address()) and ":" in ray:
        address = ray.rpartition("://")[2].partition("/")[0]
        wanted.append(_reach("ray", address, "start it (paceline ray up), or unset RAY_ADDRESS"))
    if (server := kubernetes_server()) is not None:
        wanted.append(_reach("kubernetes", server, "is a VPN off? paceline cluster list shows the contexts"))
        wanted.append(Probe("clock", lambda: clock_against(server)))
    return wanted


def _reach(name: str, address: str, fix: str) -> Probe:
    return Probe(name, lambda: reached(name, address.strip(), fix))

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

CONNECT_TIMEOUT_S = 3.0
COMMAND_TIMEOUT_S = 10.0
TORCH_TIMEOUT_S = 60.0
STALE_S = 60.0  # a running run writes to its log far more often
NEEDED = ("click", "torch", "numpy", "grpcio", "protobuf", "pyyaml", "rich", "safetensors")
NOT_FOR_USERS = frozenset({"dev", "bench", "peers"})
_HELPER_MODULES = (
    "paceline.worker.entry.zygote",
    "paceline.worker.entry.torchrun_server_main",
    "paceline.launchers.isolated",
)
_TORCH_SCRIPT = """
import json, torch
has_gpu = torch.version.cuda and torch.cuda.is_available()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_gpu else ""
print(json.dumps([torch.__version__, torch.version.cuda or "", torch.cuda.device_count(), nccl]))
"""


def python() -> CheckResult:
    return checks.python(sys.version_info[:3], sys.executable)


def probe_torch() -> Torch:
    """In a subprocess: whether torch can be imported is what is probed."""
    argv = [sys.executable, "-c", _TORCH_SCRIPT]
    process = subprocess.run(argv, capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False)
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines()
        return Torch(error=lines[-1] if lines else f"exit code {process.returncode}")
    version, cuda, devices, nccl = json.loads(process.stdout.splitlines()[-1])
    return Torch(version=version, cuda=cuda, devices=devices, nccl=nccl)


def driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    argv = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    process = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    cards = process.stdout.strip().splitlines()
    return f"{len(cards)} x {cards[0]}" if process.returncode == 0 and cards else ""


def torch_and_gpu() -> list[CheckResult]:
    facts = probe_torch()
    return [checks.torch(facts), checks.gpu(driver(), facts)]


def packages() -> CheckResult:
    needed = _needed() or NEEDED
    return checks.packages({name: _version(name) for name in needed})


def extras() -> CheckResult:
    """An extra is installed if all its packages, listed in Paceline's metadata, are."""
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


def shared_memory(folder: Path = Path("/dev/shm")) -> CheckResult:  # read, not written
    return checks.shared_memory(shutil.disk_usage(folder).free if folder.is_dir() else None)


def disk(folder: Path) -> CheckResult:
    return checks.disk(str(folder.resolve()), shutil.disk_usage(folder).free, os.access(folder, os.W_OK))


def cores(facts: Facts, workers: int) -> CheckResult:
    return checks.cores(facts.cpu_count, workers)


def reached(name: str, address: str, fix: str) -> CheckResult:
    """Whether HOST:PORT accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return checks.reached(name, address, getattr(error, "strerror", None) or str(error), fix)
    return checks.reached(name, address, "", fix)


def coordinator_nodes(setting: str) -> list[str]:
    """Addresses, or those of the folder that `paceline coordinator up` wrote."""
    if setting and (Path(setting) / nodes_file.FILE_NAME).exists():
        return list(nodes_file.read_nodes_file(Path(setting)).nodes.values())
    return [address for part in setting.split(",") if (address := part.strip())]


def orphans(processes: Path = Path("/proc")) -> CheckResult:
    """Linux only: elsewhere there is no /proc, and none are found."""
    first = processes / "1" / "cmdline"
    if first.exists() and b"paceline" in first.read_bytes():
        return checks.orphans([])  # a container whose command is Paceline: its children are not orphans
    return checks.orphans(
        [process for process in map(_process, processes.glob("[0-9]*")) if process is not None]
    )


def run_folders(base: Path, now_s: float | None = None) -> CheckResult:
    now_s = clock.unix_now_s() if now_s is None else now_s
    unfinished = []
    for plan in sorted(base.glob("runs/*/plan.json")):
        run = plan.parent
        times = [path.stat().st_mtime for path in (plan, run / "events.jsonl") if path.exists()]
        if not (run / "result.json").exists() and now_s - max(times) > STALE_S:
            unfinished.append(str(run.relative_to(base)))
    return checks.run_folders(unfinished)


def page(folder: Path) -> CheckResult:
    return checks.page((folder / "index.html").exists())


def engine() -> CheckResult:
    for name in ("podman", "docker", "buildah"):
        if shutil.which(name) is not None:
            argv = [name, "--version"]
            process = subprocess.run(
                argv, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
            )
            if process.returncode == 0:
                return checks.engine(process.stdout.strip().splitlines()[0])
    return checks.engine("")


def kubernetes_server() -> str | None:
    """HOST:PORT of the current context; None: there is none, or it cannot be read."""
    setting = environ.kubeconfig()
    path = Path(setting.split(os.pathsep)[0]) if setting else Path.home() / ".kube" / "config"
    if not path.is_file():
        return None
    import yaml

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        contexts = {entry["name"]: entry["context"]["cluster"] for entry in config["contexts"]}
        servers = {entry["name"]: entry["cluster"]["server"] for entry in config["clusters"]}
        match = re.match(
            r"(https?)://(\[[^\]]+\]|[^:/]+)(?::(\d+))?", servers[contexts[config["current-context"]]]
        )
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return None
    if match is None:
        return None
    return f"{match[2]}:{match[3] or (443 if match[1] == 'https' else 80)}"


def clock_against(server: str) -> CheckResult:
    """By the Date header of a response, also of a refusal; no credentials are sent."""
    host, _, port = server.rpartition(":")
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        host.strip("[]"), int(port), timeout=CONNECT_TIMEOUT_S, context=unverified
    )
    try:
        connection.request("HEAD", "/version")
        date = connection.getresponse().getheader("Date") or ""
        server_s = parsedate_to_datetime(date).timestamp()
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{server} does not report its time") from error
    finally:
        connection.close()
    return checks.clock(clock.unix_now_s() - server_s, server)


def _process(folder: Path) -> Process | None:
    """None: not a process of Paceline, or it has just ended."""
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        if not any(module in command.split() for module in _HELPER_MODULES):
            return None
        stat = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Process(pid=int(folder.name), parent=int(stat[1]), command=command)


def _needed() -> list[str]:
    return [_name(text) for text in _requirements() if "extra" not in text]


def _requirements() -> list[str]:
    try:
        return metadata.requires("paceline") or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


LIMIT_S = 20.0
TORCH_LIMIT_S = 60.0  # the first import after a boot takes long
DEFAULT_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    run: Callable[[], CheckResult | list[CheckResult]]
    limit_s: float = LIMIT_S
    is_needed: bool = False  # training needs it: if it is late, the machine is not ready

    def late(self) -> CheckResult:
        return checks.late(self.name, self.limit_s, is_needed=self.is_needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    folder: Path
    workers: int = DEFAULT_WORKERS
    port: int  # the dashboard's default port
    page: Path  # folder of the dashboard's built page
    coordinator: str | None = None  # HOST:PORT,…
    ray: str | None = None


def check_machine(options: DoctorOptions) -> list[CheckResult]:
    return run_probes(_probes(options))


def run_probes(probes: list[Probe]) -> list[CheckResult]:
    """The results, in the order of the probes. An exception of a probe is a bug and is raised here."""
    results: queue.Queue[tuple[int, list[CheckResult] | BaseException]] = queue.Queue()
    for number, probe in enumerate(probes):
        threading.Thread(target=_run_probe, args=(number, probe, results), daemon=True).start()
    began_s = monotonic_s()
    by_number: dict[int, list[CheckResult]] = {}
    while pending := [n for n in range(len(probes)) if n not in by_number]:
        rest_s = {n: probes[n].limit_s - (monotonic_s() - began_s) for n in pending}
        try:
            number, result = results.get(timeout=max(0.0, min(rest_s.values())))
        except queue.Empty:
            for n in (n for n in pending if rest_s[n] - min(rest_s.values()) <= 0.0):
                by_number[n] = [probes[n].late()]
            continue
        if isinstance(result, BaseException):
            raise result
        by_number.setdefault(number, result)
    return [line for number in range(len(probes)) for line in by_number[number]]


def _run_probe(
    number: int, probe: Probe, results: "queue.Queue[tuple[int, list[CheckResult] | BaseException]]"
) -> None:
    try:
        result = probe.run()
        results.put((number, result if isinstance(result, list) else [result]))
    except subprocess.TimeoutExpired:
        results.put((number, [probe.late()]))
    except OSError as error:
        results.put((number, [checks.unknown(probe.name, str(error))]))
    except BaseException as error:
        results.put((number, error))


def _probes(options: DoctorOptions) -> list[Probe]:
    facts = probe_machine(TrainConfig())
    probes = [
        Probe("python", python),
        Probe("torch", torch_and_gpu, TORCH_LIMIT_S, is_needed=True),
        Probe("packages", packages),
        Probe("extras", extras),
        Probe("cores", lambda: cores(facts, options.workers)),
        Probe("shared memory", shared_memory),
        Probe("file limit", file_limit),
        Probe("disk", lambda: disk(options.folder)),
        Probe("ports", loopback),
        Probe("dashboard port", lambda: dashboard_port(options.port)),
        Probe("dashboard page", lambda: page(options.page)),
        Probe("processes", orphans),
        Probe("runs", lambda: run_folders(options.folder)),
        Probe("container engine", engine),
    ]
    return probes + _configured(options)


def _configured(options: DoctorOptions) -> list[Probe]:
    """Probes of services, only where they are configured."""
    probes = []
    for address in coordinator_nodes(options.coordinator or ""):
        probes.append(_reach("coordinator", address, "start it, or unset PACELINE_COORDINATOR"))
    if (ray := options.ray or environ.ray_address()) and ":" in ray:
        address = ray.rpartition("://")[2].partition("/")[0]
        probes.append(_reach("ray", address, "start it (paceline ray up), or unset RAY_ADDRESS"))
    if (server := kubernetes_server()) is not None:
        probes.append(_reach("kubernetes", server, "check the VPN and the context: paceline cluster list"))
        probes.append(Probe("clock", lambda: clock_against(server)))
    return probes


def _reach(name: str, address: str, fix: str) -> Probe:
    return Probe(name, lambda: reached(name, address.strip(), fix))

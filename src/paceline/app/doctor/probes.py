"""What is the case on this machine? Each probe looks at one thing and has it judged."""

import http.client
import json
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path

from paceline import clock, environ
from paceline.app.doctor import judge
from paceline.app.doctor.judge import Process, Torch
from paceline.app.doctor.line import Line
from paceline.config.facts import Facts
from paceline.coordinator import cluster_file

KNOCK_S = 3.0
COMMAND_S = 10.0
TORCH_S = 60.0
STALE_S = 60.0  # a run that lives writes to its log far more often
NEEDED = ("click", "torch", "numpy", "grpcio", "protobuf", "pyyaml", "rich", "safetensors")
NOT_FOR_USERS = frozenset({"dev", "bench", "peers"})
_OURS = ("paceline.worker.zygote", "paceline.worker.torchrun_server_main", "paceline.launchers.apart")
_ASK_TORCH = """
import json, torch
has_gpu = torch.version.cuda and torch.cuda.is_available()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_gpu else ""
print(json.dumps([torch.__version__, torch.version.cuda or "", torch.cuda.device_count(), nccl]))
"""


def python() -> Line:
    return judge.python(sys.version_info[:3], sys.executable)


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


def torch_and_gpu() -> list[Line]:
    found = ask_torch()
    return [judge.torch(found), judge.gpu(driver(), found)]


def packages() -> Line:
    needed = _needed() or NEEDED
    return judge.packages({name: _version(name) for name in needed})


def extras() -> Line:
    """Installed is an extra whose packages all are; what it needs is in our own metadata."""
    of_extra: dict[str, list[str]] = {}
    for text in _requirements():
        name, extra = _name(text), re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", text)
        if extra is not None and extra[1] not in NOT_FOR_USERS:
            of_extra.setdefault(extra[1], []).append(name)
    return judge.extras({extra: all(map(_version, names)) for extra, names in sorted(of_extra.items())})


def loopback() -> Line:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return judge.loopback("")
    except OSError as error:
        return judge.loopback(error.strerror or str(error))


def dashboard_port(port: int) -> Line:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return judge.dashboard_port(port, is_free=True)
    except OSError:
        return judge.dashboard_port(port, is_free=False)


def file_limit() -> Line:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge.file_limit(-1 if soft == resource.RLIM_INFINITY else soft)


def shared_memory(folder: Path = Path("/dev/shm")) -> Line:  # looked at, not written
    return judge.shared_memory(shutil.disk_usage(folder).free if folder.is_dir() else None)


def disk(folder: Path) -> Line:
    return judge.disk(str(folder.resolve()), shutil.disk_usage(folder).free, os.access(folder, os.W_OK))


def cores(facts: Facts, workers: int) -> Line:
    return judge.cores(facts.cpu_count, workers)


def reached(name: str, address: str, fix: str) -> Line:
    """Does somebody listen at HOST:PORT?"""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
    except (OSError, ValueError) as error:
        return judge.reached(name, address, getattr(error, "strerror", None) or str(error), fix)
    return judge.reached(name, address, "", fix)


def coordinator_nodes(said: str) -> list[str]:
    """Addresses, or those of the folder that `paceline coordinator up` wrote."""
    if said and (Path(said) / cluster_file.NAME).exists():
        return list(cluster_file.read(Path(said)).nodes.values())
    return [address for part in said.split(",") if (address := part.strip())]


def orphans(processes: Path = Path("/proc")) -> Line:
    """Linux only: elsewhere there is no such folder, and none are found."""
    first = processes / "1" / "cmdline"
    if first.exists() and b"paceline" in first.read_bytes():
        return judge.orphans([])  # a container whose command is ours: its children are nobody's orphans
    return judge.orphans([one for one in map(_process, processes.glob("[0-9]*")) if one is not None])


def run_folders(base: Path, now_s: float | None = None) -> Line:
    now_s = clock.unix_now_s() if now_s is None else now_s
    found = []
    for plan in sorted(base.glob("runs/*/plan.json")):
        run = plan.parent
        times = [path.stat().st_mtime for path in (plan, run / "events.jsonl") if path.exists()]
        if not (run / "result.json").exists() and now_s - max(times) > STALE_S:
            found.append(str(run.relative_to(base)))
    return judge.run_folders(found)


def page(folder: Path) -> Line:
    return judge.page((folder / "index.html").exists())


def engine() -> Line:
    for name in ("podman", "docker", "buildah"):
        if shutil.which(name) is not None:
            words = [name, "--version"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
            if done.returncode == 0:
                return judge.engine(done.stdout.strip().splitlines()[0])
    return judge.engine("")


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


def clock_against(server: str) -> Line:
    """By the Date that a cluster puts on every answer, also on a refusal; nothing is sent to it."""
    host, _, port = server.rpartition(":")
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    line = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=KNOCK_S, context=anybody)
    try:
        line.request("HEAD", "/version")
        said = line.getresponse().getheader("Date") or ""
        theirs_s = parsedate_to_datetime(said).timestamp()
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{server} does not say what time it has") from error
    finally:
        line.close()
    return judge.clock(clock.unix_now_s() - theirs_s, server)


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

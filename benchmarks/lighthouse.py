"""torchft workers during a failover of the coordinator's leader (`make bench-lighthouse`).

Three coordinator nodes and one `paceline coordinator lighthouse proxy`, each a separate
process, with default timeouts; workers are torchft as released on PyPI
(benchmarks/torchft_worker.py, run by --python). The leader is killed with -9,
training continues for a while, the node is started again and catches up, and the
next leader is killed. Exits with 1 if a step did not commit, a worker ended, or two
commits are more than a second apart.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import grpc.aio

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import tokens
from paceline.faults.scenarios.coordinator_nodes import CoordinatorNodes, nodes

RESULTS = Path(__file__).parent / "results" / "lighthouse.json"
WORKER = Path(__file__).parent / "torchft_worker.py"
GOAL_S = 1.0
START_S = 120.0  # for all workers to be in the first quorum
WATCH_S = 1.5  # after a kill
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Step:
    at_s: float
    step: int
    is_committed: bool
    members: int
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LighthouseResult:
    workers: int
    kills: int
    steps: int
    failed_steps: int
    ended_workers: int
    different_hashes: int
    longest_gap_s: float
    gaps_after_kill_s: tuple[float, ...]  # the longest of any worker, near each kill
    longest_gap_elsewhere_s: float
    median_step_s: float

    @property
    def is_met(self) -> bool:
        bad = self.failed_steps + self.ended_workers + self.different_hashes
        return bad == 0 and self.longest_gap_s <= GOAL_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--python", default=sys.executable, help="one that has torchft, for the workers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-lighthouse-") as folder:
        result = _run(Path(folder), options)
    _print_result(result)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"schema": "paceline.bench/1", **asdict(result)}, indent=2) + "\n")
    sys.exit(0 if result.is_met else 1)


def _run(folder: Path, options: argparse.Namespace) -> LighthouseResult:
    kills_s: list[float] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(nodes(folder / "nodes", 3))
        url = stack.enter_context(_proxy(cluster, options.workers))
        logs = [folder / f"worker-{number}.jsonl" for number in range(options.workers)]
        workers = [stack.enter_context(_worker(options, url, log)) for log in logs]
        _until(lambda: _are_together(logs, options.workers), "all workers are in one quorum", workers)
        began_s = time.monotonic()
        for number in range(options.kills):
            leader = cluster.leader()
            kills_s.append(time.monotonic())
            cluster.kill(leader)
            new = cluster.leader()
            time.sleep(WATCH_S)
            cluster.start(leader)
            _until(partial(_has_caught_up, cluster, leader), "the node is back", workers)
            print(f"kill {number + 1} of {options.kills}: node {leader}, then {new}", file=sys.stderr)
        ended_s = time.monotonic()
        ended = sum(worker.poll() is not None for worker in workers)
        return _judge([_read(log) for log in logs], kills_s, (began_s, ended_s), ended)


@contextmanager
def _proxy(cluster: CoordinatorNodes, workers: int) -> Iterator[str]:
    command = [sys.executable, "-m", "paceline", "lighthouse", "proxy", "--json", "--stop-with-stdin"]
    command += ["--listen", "127.0.0.1:0", "--min-replicas", str(workers)]
    command += ["--at", ",".join(cluster.addresses.values())]
    command += ["--token-file", str(cluster.folder / tokens.TOKENS_NAME)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None, "its output is piped to us"
        line = process.stdout.readline()
        try:
            yield str(json.loads(line)["data"]["url"])
        finally:
            process.terminate()


@contextmanager
def _worker(options: argparse.Namespace, url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    log.touch()
    command = [options.python, str(WORKER), log.stem, str(log), str(options.workers), str(options.step_s)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.with_suffix(".txt").open("wb") as text:
        process = subprocess.Popen(
            command, env={**environment, "TORCHFT_LIGHTHOUSE": url}, stdout=text, stderr=text, cwd=log.parent
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _until(is_true: Callable[[], bool], description: str, workers: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline_s = time.monotonic() + START_S
    while not is_true():
        if time.monotonic() > deadline_s or any(worker.poll() is not None for worker in workers):
            sys.exit(f"waited in vain until {description}; workers ended with {[w.poll() for w in workers]}")
        time.sleep(LOOK_S)


def _are_together(logs: Sequence[Path], workers: int) -> bool:
    """All workers have committed steps with the full quorum, for a while."""
    return all(sum(s.is_committed and s.members == workers for s in _read(log)) > 40 for log in logs)


def _has_caught_up(cluster: CoordinatorNodes, node: int) -> bool:
    try:
        status = cluster.client.of_node(cluster.addresses[node], "Status", pb.StatusRequest())
        if not status.leader_address:
            return False
        leader = cluster.client.of_node(status.leader_address, "Status", pb.StatusRequest())
    except grpc.aio.AioRpcError:
        return False  # it does not listen yet
    return leader.role == "leader" and leader.commit - status.applied < 50


def _read(log: Path) -> list[Step]:
    """All whole lines: a worker may be writing."""
    lines = log.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    return [Step(**json.loads(line)) for line in lines]


def _judge(
    logs: Sequence[Sequence[Step]], kills_s: Sequence[float], when_s: tuple[float, float], ended: int
) -> LighthouseResult:
    within = [[s for s in log if when_s[0] <= s.at_s <= when_s[1]] for log in logs]
    gaps = [gap for log in within for gap in _gaps(log)]
    near = [
        max((gap for at_s, gap in gaps if _is_near(at_s - gap, at_s, kill)), default=0.0) for kill in kills_s
    ]
    elsewhere = [gap for at_s, gap in gaps if not any(_is_near(at_s - gap, at_s, kill) for kill in kills_s)]
    hashes: dict[int, set[str]] = {}
    for log in logs:
        for step in log:
            if step.sha256 and step.is_committed:
                hashes.setdefault(step.step, set()).add(step.sha256)
    return LighthouseResult(
        workers=len(logs),
        kills=len(kills_s),
        steps=min(sum(s.is_committed for s in log) for log in within),
        failed_steps=sum(not s.is_committed for log in within for s in log),
        ended_workers=ended,
        different_hashes=sum(len(entry) > 1 for entry in hashes.values()),
        longest_gap_s=max(gap for _, gap in gaps),
        gaps_after_kill_s=tuple(near),
        longest_gap_elsewhere_s=max(elsewhere, default=0.0),
        median_step_s=statistics.median(gap for _, gap in gaps),
    )


def _gaps(log: Sequence[Step]) -> list[tuple[float, float]]:
    """(when it ended, how long it was) between two commits."""
    commits = [step.at_s for step in log if step.is_committed]
    return [(later, later - sooner) for sooner, later in pairwise(commits)]


def _is_near(began_s: float, ended_s: float, kill_s: float) -> bool:
    return ended_s >= kill_s and began_s <= kill_s + WATCH_S


def _print_result(result: LighthouseResult) -> None:
    after = sorted(result.gaps_after_kill_s)
    print(f"{result.workers} torchft workers, {result.kills} kills of our leader, {os.cpu_count()} cores")
    print(f"steps of each worker {result.steps}, median {result.median_step_s * 1000:.0f} ms")
    print(f"failed steps {result.failed_steps}, ended workers {result.ended_workers}")
    print(f"steps after which workers differ {result.different_hashes}")
    middle = statistics.median(after) if after else 0.0
    print(
        f"longest gap {result.longest_gap_s:.3f} s (goal {GOAL_S:g}, {'met' if result.is_met else 'MISSED'})"
    )
    print(f"longest gap after a kill: median {middle:.3f} s, all {[round(gap, 3) for gap in after]}")
    print(f"longest gap elsewhere {result.longest_gap_elsewhere_s:.3f} s")


if __name__ == "__main__":
    main()

"""Recovery time after `kill -9` of one of three workers, against other systems (`make bench-recovery`).

Every system trains with steps of about 50 ms; those that restart all workers save
a checkpoint every 10 steps. Recovery ends when every survivor has committed its
next step, or, where survivors are restarted, when a new process has committed
one. `lost` are steps that had been committed before the kill and had to be repeated.
Systems take turns; one that is not installed is skipped, and reported as skipped.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.recovery_peers import WORKERS, Peer, RayTrain, Torchft, Torchrun, TunedTorchft
from paceline.events.read import History
from paceline.faults.scenarios.training import default_plan, end_ns, training
from paceline.faults.scenarios.workers import gaps_s

RESULTS = Path(__file__).parent / "results" / "recovery.json"
START_S, RECOVER_S = 120.0, 120.0
LOOK_S = 0.005
OURS = "paceline --elastic"


@dataclass(frozen=True, slots=True)
class Kill:
    recovered_s: float
    lost: int
    survivors_restarted: bool


def kills_of_ours(times: int, rng: random.Random) -> Iterator[Kill]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    with tempfile.TemporaryDirectory() as folder, training(plan, Path(folder)) as run:
        generation, kills = run.until_in(WORKERS, 0), []
        for number in range(times):
            run.wait(rng.uniform(0.75, 1.25))
            before = run.pids()
            victim = number % WORKERS
            at_ns = run.signal(f"worker-{victim}", signal.SIGKILL)
            generation, after = run.until_in(WORKERS, generation), run.pids()
            survivors = [who for who in before if who != f"worker-{victim}"]
            kills.append((victim, at_ns, any(before[who] != after[who] for who in survivors)))
        history = run.finish(30, early=True)
    for victim, at_ns, restarted in kills:
        gaps = gaps_s(history, {victim}, at_ns, WORKERS)
        yield Kill(max(gaps), _lost(history, victim, at_ns), restarted)


def _lost(history: History, victim: int, at_ns: int) -> int:
    """Steps that a survivor had committed before the kill, and committed again after it."""
    most = 0
    for rank in set(history.steps) - {victim}:
        results = [(end_ns(row), row.position // WORKERS) for row in history.steps[rank] if row.synced]
        before = max(step for end, step in results if end <= at_ns)
        most = max(most, before - min(step for end, step in results if end > at_ns) + 1)
    return most


@dataclass(frozen=True, slots=True)
class Commit:
    pid: int
    step: int
    at_ns: int


def commits(folder: Path) -> list[Commit]:
    results = []
    for path in folder.glob("commits-*.txt"):
        pid = int(path.stem.partition("-")[2])
        for line in path.read_text().split("\n")[:-1]:
            step, at_ns = line.split()
            results.append(Commit(pid, int(step), int(at_ns)))
    return results


def kills_of_peer(peer: Peer, times: int, rng: random.Random) -> Iterator[Kill]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            peer.start(folder)
            for _ in range(times):
                yield _kill_one(peer, folder, rng.randrange(15, 25))
        finally:
            peer.stop()


def _kill_one(peer: Peer, folder: Path, steps: int) -> Kill:
    """Kill one worker after `steps` more steps of all workers."""
    began_ns = time.perf_counter_ns()

    def training_pids() -> set[int]:
        recent = [c for c in commits(folder) if c.at_ns > began_ns]
        counts = {c.pid: sum(other.pid == c.pid for other in recent) for c in recent}
        return {pid for pid, count in counts.items() if count >= steps}

    _until(lambda: len(training_pids()) >= WORKERS, START_S, f"{peer.name}: {WORKERS} workers train", folder)
    newest = sorted(commits(folder), key=lambda c: c.at_ns)[-1]
    pids = sorted({c.pid for c in commits(folder) if c.at_ns > newest.at_ns - int(1e9)})
    victim = pids[len(pids) // 2]
    at_ns = time.perf_counter_ns()
    os.kill(victim, signal.SIGKILL)
    survivors = set(pids) - {victim}

    def after() -> list[Commit]:
        return [c for c in commits(folder) if c.at_ns > at_ns and c.pid != victim]

    def is_over() -> bool:
        seen = {c.pid for c in after()}
        return survivors <= seen or bool(seen - set(pids))

    _until(is_over, RECOVER_S, f"{peer.name}: it goes on", folder)
    result = after()
    new = [c for c in result if c.pid not in pids]
    stayed = survivors <= {c.pid for c in result}
    first = {pid: min(c.at_ns for c in result if c.pid == pid) for pid in {c.pid for c in result}}
    over_ns = max(first[pid] for pid in survivors) if stayed else min(c.at_ns for c in new)
    before = [c for c in commits(folder) if c.at_ns <= at_ns]
    if stayed:
        lost = max(
            max(c.step for c in before if c.pid == pid) - min(c.step for c in result if c.pid == pid) + 1
            for pid in survivors
        )
    else:
        lost = max(c.step for c in before) - min(c.step for c in new) + 1
    peer.replace(folder)
    return Kill((over_ns - at_ns) / 1e9, max(0, lost), not stayed)


def _until(is_true: Callable[[], bool], within_s: float, description: str, folder: Path) -> None:
    until_s = time.monotonic() + within_s
    while not is_true():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {within_s:g} s, and still not: {description}\n{_output(folder)}")
        time.sleep(LOOK_S)


def _output(folder: Path) -> str:
    path = folder / "output.txt"
    return path.read_text(errors="replace")[-2000:] if path.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5, help="of ours and of torchft in each round; else 1")
    parser.add_argument("--peers-python", default=sys.executable, help="one that has torch and torchft")
    parser.add_argument("--ray-python", default=sys.executable, help="one that has ray[train]")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # orderly exit: peers end with this process
    peers = _there(
        [
            TunedTorchft(options.peers_python),
            Torchft(options.peers_python),
            Torchrun(options.peers_python),
            RayTrain(options.ray_python),
        ]
    )
    rng, result = random.Random(options.seed), dict[str, list[Kill]]()
    for number in range(options.rounds):
        _add(result, OURS, list(kills_of_ours(options.kills, rng)), number)
        for peer in peers:
            times = options.kills if isinstance(peer, TunedTorchft) else 1
            try:
                _add(result, peer.name, list(kills_of_peer(peer, times, rng)), number)
            except TimeoutError as error:
                print(f"{peer.name}: did NOT recover: {error}", flush=True)
                result.setdefault(peer.name, []).append(Kill(float("inf"), 0, True))
    write(result, options.output)


def _there(peers: list[Peer]) -> list[Peer]:
    there = []
    for peer in peers:
        why = peer.missing()
        if why is None:
            there.append(peer)
        else:
            print(f"SKIPPED {peer.name}: {why}", flush=True)
    return there


def _add(values: dict[str, list[Kill]], name: str, kills: list[Kill], number: int) -> None:
    values.setdefault(name, []).extend(kills)
    text = ", ".join(f"{kill.recovered_s:.2f} s" for kill in kills)
    print(f"round {number + 1}: {name}: {text}; lost {[kill.lost for kill in kills]}", flush=True)


def write(values: dict[str, list[Kill]], path: Path) -> None:
    print("\n| system | kills | median | worst | steps lost | survivors |\n|---|---|---|---|---|---|")
    for name, kills in values.items():
        times, lost = [kill.recovered_s for kill in kills], [kill.lost for kill in kills]
        stay = "restarted" if any(kill.survivors_restarted for kill in kills) else "stay"
        middle = f"{statistics.median(times):.2f} s | {max(times):.2f} s"
        print(f"| {name} | {len(kills)} | {middle} | {min(lost)} … {max(lost)} | {stay} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: [asdict(kill) for kill in kills] for name, kills in values.items()}
    path.write_text(json.dumps({"schema": "paceline.bench.recovery/1", "kills": rows}, indent=2) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()

"""Elastic runs on four hosts beside torchft, torchrun, Ray Train and plain DDP (`make bench-hosts`, as root).

Hosts are network namespaces that share nothing, with links of 1 Gbit/s and, where the kernel has netem, a
delay of 0.2 ms. Measured: samples/s of each system while nothing fails; the recovery from `kill -9` of a
worker, and from the loss of a host (its link, then its processes); and the longest time without a commit of
the others while it joins again. A step may be in flight when the worker is lost, so recovery ends with the
longest time without a commit of a survivor among its next commits. Last, the coordinator's leader, or
torchft's lighthouse, is cut off for 30 s: by how much is a step later than the others? Systems take turns.
"""

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.hosts_peers import WORKERS, System, paceline, peer
from benchmarks.hosts_worker import BATCH
from paceline.faults.hosts.network import Impairment
from paceline.faults.hosts.requirements import has_netem
from paceline.faults.scenarios.expectations import percentile
from paceline.faults.scenarios.host_nodes import host_nodes
from paceline.faults.scenarios.measurements import longest_delay_s
from paceline.faults.scenarios.training import default_plan, training

RESULTS = Path(__file__).parent / "results" / "hosts.json"
SIZES = {"0.3 M": 540, "5 M": 2240}  # parameters; width of the two hidden layers
PACE_S = 0.05  # of a step, where recovery is measured
START_S, RECOVER_S = 180.0, 120.0
WARM_UP, STEPS_BETWEEN = 20, 15
LOOK_S = 0.01
IN_FLIGHT = 3  # commits of a survivor among which its interruption is
CUT_S = 30.0  # how long the leader is cut off
NODES = 3
RATE_MBIT_S, DELAY_S = 1000.0, 0.0002
Opened = AbstractContextManager[System]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A worker or a host was lost and came back."""

    recovered_s: float | None  # None: not within RECOVER_S
    join_gap_s: float | None  # the longest time without a commit of a survivor while the replacement joins
    step_s: float  # a normal step


def samples_per_s(open_system: Callable[[Path], Opened], seconds: float) -> float:
    with tempfile.TemporaryDirectory() as folder, open_system(Path(folder)) as system:
        _until(lambda: _are_warm(system), START_S, "all workers train")
        began_ns = time.perf_counter_ns()
        time.sleep(seconds)
        ended_ns = time.perf_counter_ns()
        # The log of a run arrives a moment later.
        _until(
            lambda: all(c[-1] > ended_ns for c in system.commits().values()), START_S, "the commits arrive"
        )
        counts = [sum(began_ns < at <= ended_ns for at in at_ns) for at_ns in system.commits().values()]
        return BATCH * sum(counts) / seconds


def _are_warm(system: System) -> bool:
    commits = system.commits()
    return len(commits) == WORKERS and all(len(at_ns) > WARM_UP for at_ns in commits.values())


def losses(
    open_system: Callable[[Path], Opened], times: int, rng: random.Random, *, of_hosts: bool
) -> Iterator[Loss]:
    with tempfile.TemporaryDirectory() as folder, open_system(Path(folder)) as system:
        since_ns = 0
        for turn in range(times):
            steps = STEPS_BETWEEN + rng.randrange(10)
            _until(partial(_have_trained, system, since_ns, steps), START_S, f"{WORKERS} workers train")
            yield _lose(system, 2 + turn % (WORKERS - 1), of_hosts=of_hosts)
            since_ns = time.perf_counter_ns()


def _have_trained(system: System, since_ns: int, steps: int) -> bool:
    commits = system.commits()
    counts = [sum(at > since_ns for at in at_ns) for at_ns in commits.values()]
    return len(counts) == WORKERS and min(counts) >= steps


def _lose(system: System, victim: int, *, of_hosts: bool) -> Loss:
    """Lose the worker, or the host, and wait until all train again. Host 1 has what torchrun cannot lose."""
    survivors = [number for number in range(1, WORKERS + 1) if number != victim]
    lost_ns = time.perf_counter_ns()
    if of_hosts:
        system.network.lose(victim)
    else:
        system.kill_worker(victim)

    def later(number: int, after_ns: int) -> list[int]:
        return [at for at in system.commits().get(number, []) if at > after_ns]

    _until(
        lambda: all(len(later(number, lost_ns)) >= IN_FLIGHT for number in survivors),
        RECOVER_S,
        "the survivors continue",
    )
    recovered_ns = max(
        _end_of_longest_gap([lost_ns, *later(number, lost_ns)[:IN_FLIGHT]]) for number in survivors
    )
    recovered_s = (recovered_ns - lost_ns) / 1e9
    back_ns = time.perf_counter_ns()
    system.replace(victim, has_vanished=of_hosts)
    _until(lambda: len(later(victim, back_ns)) > 2, RECOVER_S, "the replacement trains")
    joined_ns = later(victim, back_ns)[2]
    before = [at for at in system.commits()[survivors[0]] if at < lost_ns][-STEPS_BETWEEN:]
    gaps = []
    for number in survivors:
        around = [at for at in later(number, recovered_ns) if at < joined_ns]
        gaps += [right - left for left, right in pairwise(around)]
    steps = [right - left for left, right in pairwise(before)]
    return Loss(
        recovered_s=recovered_s,
        join_gap_s=max(gaps, default=0) / 1e9,
        step_s=statistics.median(steps) / 1e9,
    )


def _end_of_longest_gap(commits_ns: list[int]) -> int:
    return max(pairwise(commits_ns), key=lambda pair: pair[1] - pair[0])[1]


def _until(is_true: Callable[[], bool], within_s: float, description: str) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_true():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {within_s:g} s, and still not: {description}")
        time.sleep(LOOK_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement of samples/s")
    parser.add_argument("--losses", type=int, default=3, help="of ours and torchft in each round; others: 1")
    parser.add_argument("--modes", default="ssgd,ddp", help="of ours, for samples/s, separated by commas")
    parser.add_argument("--only", default="", help="speed, kill, vanish or leader")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # orderly exit: hosts end with this process
    delay_s = DELAY_S if has_netem() else 0.0
    link = Impairment(rate_mbit_s=RATE_MBIT_S, delay_s=delay_s)
    note = "" if delay_s else " (this kernel has no netem)"
    print(f"links: {RATE_MBIT_S:g} Mbit/s, {delay_s * 1e3:g} ms{note}")
    results: dict[str, object] = {"delay_s": delay_s, "rate_mbit_s": RATE_MBIT_S}
    if options.only in ("", "speed"):
        results["samples_per_s"] = _speeds(options.rounds, options.seconds, options.modes.split(","), link)
    for of_hosts, name in ((False, "kill"), (True, "vanish")):
        if options.only in ("", name):
            rng = random.Random(options.seed)
            results[name] = _recoveries(options.rounds, options.losses, rng, link, of_hosts=of_hosts)
    if options.only in ("", "leader"):
        results["leader"] = _leader_cuts(options.rounds, link)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"schema": "paceline.bench.hosts/1", **results}, indent=2) + "\n")
    print(f"written to {options.output}")


def _speeds(rounds: int, seconds: float, modes: list[str], link: Impairment) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {}
    for turn in range(rounds):
        for size, hidden in SIZES.items():
            systems: dict[str, Callable[[Path], Opened]] = {
                "torch DDP": partial(peer, kind="ddp", hidden=hidden, pace_s=0.0, link=link)
            }
            for mode in modes:
                systems[f"paceline {mode}"] = partial(
                    paceline, mode=mode, hidden=hidden, pace_s=0.0, link=link
                )
            for name in sorted(systems, reverse=turn % 2 == 1):
                rate = samples_per_s(systems[name], seconds)
                rates.setdefault(f"{name}, {size}", []).append(rate)
                print(f"round {turn + 1}: {size}: {name}: {rate:,.0f} samples/s", flush=True)
    print("\n| parameters | system | samples/s | ÷ torch DDP, median | lowest … highest |")
    print("|---|---|---|---|---|")
    for name, values in rates.items():
        system, _, size = name.rpartition(", ")
        ratios = [ours / plain for ours, plain in zip(values, rates[f"torch DDP, {size}"], strict=True)]
        spread = f"{statistics.median(ratios):.2f} | {min(ratios):.2f} … {max(ratios):.2f}"
        print(f"| {size} | {system} | {statistics.median(values):,.0f} | {spread} |")
    return rates


def _recoveries(
    rounds: int, times: int, rng: random.Random, link: Impairment, *, of_hosts: bool
) -> dict[str, list[dict[str, float | None]]]:
    hidden = SIZES["0.3 M"]
    peer_of = partial(peer, hidden=hidden, pace_s=PACE_S, link=link)
    systems: dict[str, tuple[Callable[[Path], Opened], int]] = {
        "paceline ssgd": (partial(paceline, mode="ssgd", hidden=hidden, pace_s=PACE_S, link=link), times),
        "torchft 0.2.0, tuned": (partial(peer_of, kind="torchft"), times),
        "torchrun": (partial(peer_of, kind="torchrun"), 1),
        "Ray Train, elastic": (partial(peer_of, kind="ray"), 1),
    }
    found: dict[str, list[Loss]] = {name: [] for name in systems}
    for turn in range(rounds):
        for name, (open_system, count) in systems.items():
            try:
                for loss in losses(open_system, count, rng, of_hosts=of_hosts):
                    found[name].append(loss)
                    print(f"round {turn + 1}: {name}: {loss}", flush=True)
            except TimeoutError as error:
                print(f"round {turn + 1}: {name}: did NOT recover: {error}", flush=True)
                found[name].append(Loss(recovered_s=None, join_gap_s=None, step_s=PACE_S))
    lost = "a host vanished" if of_hosts else "a worker was killed"
    columns = (
        f"{lost} | times | recovery, median | p95 | worst | longest gap while it joined, median | a step"
    )
    print(f"\n| {columns} |")
    print("|---|---|---|---|---|---|---|")
    for name, values in found.items():
        recovered = [value.recovered_s for value in values if value.recovered_s is not None]
        gaps = [value.join_gap_s for value in values if value.join_gap_s is not None]
        step_s = statistics.median(value.step_s for value in values)
        if not recovered:
            print(f"| {name} | {len(values)} | not within {RECOVER_S:g} s | | | | {step_s:.3f} s |")
            continue
        missed = "" if len(recovered) == len(values) else f", {len(values) - len(recovered)} never"
        times_s = f"{statistics.median(recovered):.2f} s | {percentile(recovered, 0.95):.2f} s"
        times_s += f" | {max(recovered):.2f} s{missed}"
        print(f"| {name} | {len(values)} | {times_s} | {statistics.median(gaps):.2f} s | {step_s:.3f} s |")
    return {name: [asdict(value) for value in values] for name, values in found.items()}


def _leader_cuts(rounds: int, link: Impairment) -> dict[str, list[float]]:
    """By how much a step was later than the others while the leader was cut off, in seconds."""
    hidden = SIZES["0.3 M"]
    torchft = partial(peer, kind="torchft", hidden=hidden, pace_s=PACE_S, link=link)
    delays: dict[str, list[float]] = {"paceline ssgd": [], "torchft 0.2.0, its lighthouse": []}
    for turn in range(rounds):
        delays["paceline ssgd"].append(_delay_without_leader())
        delays["torchft 0.2.0, its lighthouse"].append(_delay_without_lighthouse(torchft))
        for name, values in delays.items():
            print(f"round {turn + 1}: {name}: {values[-1]:.3f} s", flush=True)
    print(f"\n| the leader is cut off for {CUT_S:g} s | times | latest step, median | worst |")
    print("|---|---|---|---|")
    for name, values in delays.items():
        print(f"| {name} | {len(values)} | {statistics.median(values):.2f} s | {max(values):.2f} s |")
    return delays


def _delay_without_leader() -> float:
    """The nodes are on hosts, the workers on this machine: a cut of the leader's host cuts no worker."""
    plan = default_plan(workers=WORKERS, steps=1_000_000, pace_s=PACE_S)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        with (
            host_nodes(Path(folder) / "hosts", NODES) as nodes,
            training(plan, run_dir, nodes.coordinators) as run,
        ):
            run.until_in(WORKERS, 0)
            run.wait(1.0)
            began_ns = run.now_ns()
            nodes.network.isolate(nodes.leader())
            run.wait(CUT_S)
            nodes.network.heal()
            _until(nodes.agree, START_S, "all nodes follow one leader")
            ended_ns = run.now_ns()
            return longest_delay_s(run.finish(START_S, early=True), began_ns, ended_ns)


def _delay_without_lighthouse(open_system: Callable[[Path], Opened]) -> float:
    with tempfile.TemporaryDirectory() as folder, open_system(Path(folder)) as system:
        _until(lambda: _are_warm(system), START_S, "all workers train")
        began_ns = time.perf_counter_ns()
        system.network.isolate(WORKERS + 1)
        time.sleep(CUT_S)
        ended_ns = time.perf_counter_ns()
        gaps_s = []
        for commits in system.commits().values():
            during = [at for at in commits if began_ns < at <= ended_ns]
            steps = [right - left for left, right in pairwise(commits)]
            gap = max(right - left for left, right in pairwise([began_ns, *during, ended_ns]))
            gaps_s.append((gap - statistics.median(steps)) / 1e9)
        return max(gaps_s)


if __name__ == "__main__":
    main()

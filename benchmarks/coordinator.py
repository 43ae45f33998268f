"""Commit throughput of three coordinator nodes, against etcd and PySyncObj (`make bench-coordinator`).

In each round every system starts afresh: three processes on loopback, data on
the same disk, the same number of clients in a closed loop, values of 64 bytes.
Ours and etcd have each write on the disks of a majority before they answer
(fdatasync). PySyncObj never flushes its journal; here it does, before it sends,
which is the same guarantee. It runs with its defaults, which batch messages
for a tenth of a second, then configured to send at once, then as it is shipped but for
that, without flushing. Also measured: the cost of a thousand heart-beating workers to the
leader, and whether memory stays flat. Nothing here passes or fails a test.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks import beats, memory, replicas
from benchmarks.load import Figures
from benchmarks.replicas import Called, Cluster
from benchmarks.report import Ratio, write
from paceline.coordinator.server.tokens import TOKENS_NAME

RESULTS = Path(__file__).parent / "results" / "coordinator.json"
CLIENTS = (1, 64)
WORKERS = 1_000
ATTEMPTS = 3
OURS, ETCD, USUAL = "ours", "etcd", "PySyncObj, its defaults"
AT_ONCE, UNFLUSHED = "PySyncObj, at once", "PySyncObj, unflushed"
GOALS = {ETCD: 0.25, USUAL: 2.0}  # Paceline's commits/s ÷ the peer's

Start = Callable[[Path], AbstractContextManager[Cluster]]
Found = TypeVar("Found")
Measured = dict[tuple[str, int], list[Figures]]  # by system and clients, one for each round


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    seconds: float
    beat_s: float
    commands: int


FULL = Size(rounds=3, seconds=4.0, beat_s=20.0, commands=60_000)
QUICK = Size(rounds=1, seconds=2.0, beat_s=5.0, commands=8_000)


def compare(size: Size, folder: Path) -> Measured:
    measured: Measured = {}
    for _ in range(size.rounds):
        for name, start in _systems():
            with tempfile.TemporaryDirectory(dir=folder) as place, start(Path(place)) as cluster:
                for clients in CLIENTS:
                    loaded = cluster.load(clients, size.seconds)
                    print(_line(name, clients, [loaded]), flush=True)
                    measured.setdefault((name, clients), []).append(loaded)
    return measured


def _systems() -> Iterator[tuple[str, Start]]:
    yield OURS, replicas.ours
    if replicas.has_etcd():
        yield ETCD, replicas.etcd
    else:
        print("etcd is not here, and is left out: apt-get install etcd-server")
    if not replicas.has_pysyncobj():
        print("PySyncObj is not here, and is left out: pip install 'paceline[bench]'")
        return
    yield USUAL, partial(replicas.pysyncobj, flush=True, batch=True)
    yield AT_ONCE, partial(replicas.pysyncobj, flush=True, batch=False)
    yield UNFLUSHED, partial(replicas.pysyncobj, flush=False, batch=False)


def ratios(measured: Measured) -> Iterator[Ratio]:
    for (name, clients), theirs in measured.items():
        ours = measured[OURS, clients]
        if name in GOALS:
            yield Ratio(
                name=f"commits/s ÷ {name}, {clients} client{'s'[: clients > 1]}",
                goal=GOALS[name],
                at_least=True,
                rounds=tuple(a.per_s / b.per_s for a, b in zip(ours, theirs, strict=True)),
                detail=f"{_median(ours, 'per_s'):,.0f} against {_median(theirs, 'per_s'):,.0f}",
            )


def living(size: Size, folder: Path) -> Ratio:
    def measure(cluster: Called, place: Path) -> beats.Cost:
        return beats.measure(cluster, place / TOKENS_NAME, WORKERS, size.beat_s)

    cost = _undisturbed(measure, folder)
    followers = ", ".join(f"{share:.3f}" for share in cost.followers)
    return Ratio(
        name=f"{WORKERS:,} workers at 1 Hz: the leader's cores",
        goal=0.3,
        at_least=False,
        rounds=(cost.leader,),
        detail=f"over {size.beat_s:.0f} s; idle {cost.idle_leader:.3f}; followers {followers}",
    )


def growth(commands: int, folder: Path) -> tuple[Ratio, memory.Growth]:
    def measure(cluster: Called, place: Path) -> memory.Growth:
        return memory.measure(cluster, place / TOKENS_NAME, place, commands, CLIENTS[-1])

    result = _undisturbed(measure, folder)
    tenth, half, end = (result.at(share) for share in (0.1, 0.5, 1.0))
    ratio = Ratio(
        name=f"leader's memory, {commands:,} commands ÷ half",
        goal=1.05,
        at_least=False,
        rounds=(result.factor,),
        detail=f"{tenth.leader_mb:.1f}, {half.leader_mb:.1f}, {end.leader_mb:.1f} MB at 10, 50, 100 %; "
        f"{result.snapshots} snapshots, log {max(each.log_mb for each in result.samples):.1f} MB at most",
    )
    return ratio, result


def _undisturbed(measure: Callable[[Called, Path], Found], folder: Path) -> Found:
    """Retry a limited number of times: on a busy machine another node may become leader."""
    for attempt in range(1, ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(dir=folder) as place, replicas.ours(Path(place)) as cluster:
            try:
                return measure(cluster, Path(place))
            except replicas.DisturbedError as error:
                if attempt == ATTEMPTS:
                    raise
                print(f"again: {error}", flush=True)
    raise AssertionError("the last attempt returns or raises")


def _median(figures: list[Figures], field: str) -> float:
    return statistics.median(float(getattr(each, field)) for each in figures)


def _line(name: str, clients: int, figures: list[Figures]) -> str:
    per_s, p50_ms, p99_ms = (_median(figures, field) for field in ("per_s", "p50_ms", "p99_ms"))
    speed = f"{per_s:9,.0f} commits/s   p50 {p50_ms:8.2f} ms   p99 {p99_ms:8.2f} ms"
    return f"{name:<24} {clients:>3} clients {speed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a first impression, within two minutes")
    parser.add_argument("--rounds", type=int, help=f"of all systems (default {FULL.rounds})")
    parser.add_argument("--commands", type=int, help=f"for the memory (default {FULL.commands:,})")
    parser.add_argument("--folder", type=Path, default=RESULTS.parent, help="whose disk holds the data")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    usual = QUICK if options.quick else FULL
    commands = options.commands or usual.commands
    size = Size(options.rounds or usual.rounds, usual.seconds, usual.beat_s, commands)
    options.folder.mkdir(parents=True, exist_ok=True)
    measured = compare(size, options.folder)
    print("\nmedians")
    for (name, clients), figures in measured.items():
        print(_line(name, clients, figures))
    result = list(ratios(measured))
    result.append(living(size, options.folder))
    memory_ratio, samples = growth(size.commands, options.folder)
    result.append(memory_ratio)
    for ratio in result:
        print(ratio.line())
    rows = [{"system": n, "clients": c, "rounds": [*map(asdict, f)]} for (n, c), f in measured.items()]
    write(result, options.output, figures=rows, memory=asdict(samples))
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()

"""Failover time: how long three real nodes are without a leader after `kill -9` (`make bench-failover`).

With default timeouts. Four clients that are already connected write and read
all the time, each with a pause of 10 ms between two requests. The leader is killed; the clock stops when
another node reports that it leads, and when a write that was sent after the kill
is acknowledged. Then the node is started again, and the next kill waits until
it has caught up. Every acknowledged write must be there in the end, and the history
of the clients must be linearizable: otherwise this exits with 1.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.coordinator.real.cluster import Cluster
from tests.coordinator.real.failover import Failovers, failovers

RESULTS = Path(__file__).parent / "results" / "coordinator_failover.json"
SHARES = (50, 90, 99, 100)
GOALS_S = {50: 0.4, 99: 1.0}  # until another node leads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    result = asyncio.run(_run(options.kills, options.nodes))
    leads, writes = [k.leader_s for k in result.kills], [k.write_s for k in result.kills]
    print(f"{len(result.kills)} kills of the leader of {options.nodes} nodes, {os.cpu_count()} cores")
    print(_line("until another node leads", leads, GOALS_S))
    print(_line("until a write is acknowledged", writes, {}))
    lost = f"{len(result.lost)} {result.lost[:5]}"
    print(f"{result.acknowledged} answers to clients; acknowledged and lost: {lost}")
    print(f"linearizable: {result.is_linearizable}")
    _write(result, options.nodes)
    sys.exit(1 if result.lost or not result.is_linearizable else 0)


async def _run(kills: int, nodes: int) -> Failovers:
    with tempfile.TemporaryDirectory(prefix="paceline-failover-") as folder:
        async with Cluster(Path(folder), nodes) as cluster:
            return await failovers(
                cluster, kills, lambda n, kill: _print_kill(n, kills, kill.leader_s, kill.write_s)
            )


def _print_kill(number: int, kills: int, leader_s: float, write_s: float) -> None:
    print(f"kill {number} of {kills}: leads {leader_s:.3f} s, write {write_s:.3f} s", file=sys.stderr)


def percentile(values: Sequence[float], share: int) -> float:
    """The smallest value that `share` percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def _line(description: str, values: Sequence[float], goals_s: dict[int, float]) -> str:
    parts = []
    for share in SHARES:
        value_s = percentile(values, share)
        name = "max" if share == 100 else f"p{share}"
        goal = ""
        if share in goals_s:
            goal = f" (goal {goals_s[share] * 1000:.0f}, {'met' if value_s < goals_s[share] else 'MISSED'})"
        parts.append(f"{name} {value_s * 1000:.0f} ms{goal}")
    return f"{description:<30} {', '.join(parts)}"


def _write(result: Failovers, nodes: int) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "schema": "paceline.bench/1",
        "nodes": nodes,
        "leader_s": {share: percentile([k.leader_s for k in result.kills], share) for share in SHARES},
        "write_s": {share: percentile([k.write_s for k in result.kills], share) for share in SHARES},
        "answers": result.acknowledged,
        "lost": result.lost,
        "is_linearizable": result.is_linearizable,
        "kills": [asdict(kill) for kill in result.kills],
    }
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

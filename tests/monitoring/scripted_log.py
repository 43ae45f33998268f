"""A run's log, written by a script: any number of workers, steps and samples, in made-up time."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from paceline.events.schema import COLUMN_KINDS, SAMPLE_KINDS, SCHEMA
from paceline.plan.codec import dumps, plan_hash
from paceline.plan.plan import Plan

T0_NS = 5_000_000_000_000
UNIX_S = 1_800_000_000.0
MS = 1_000_000


def a_plan(workers: int = 2, steps: int = 100_000, mode: str = "ssgd", **more: object) -> Plan:
    return Plan(
        run="scripted",
        task="digits",
        mode=mode,
        num_workers=workers,
        steps=steps,
        batch_sizes=(8,) * workers,
        **more,  # type: ignore[arg-type]  # fields of a plan, by name
    )


@dataclass
class ScriptedLog:
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        header = {"schema": SCHEMA, "run": "scripted", "plan": "p", "t0_ns": T0_NS, "started_unix_s": UNIX_S}
        self._add(header)
        self.tell(0.0, "launcher", "run_started", plan="p", launcher="local", unix_s=UNIX_S)

    def _add(self, event: dict[str, object]) -> None:
        self.lines.append(json.dumps(event, separators=(",", ":")))

    def tell(self, at_s: float, who: str, kind: str, **fields: object) -> None:
        self._add({"kind": kind, "who": who, "at_ns": T0_NS + round(at_s * 1e9), **fields})

    def rows(self, who: str, kind: str, count: int = 1, /, **columns: object) -> None:
        assert set(columns) <= set(COLUMN_KINDS[kind]), f"fields of {kind}"
        missing = {name: None for name in SAMPLE_KINDS.get(kind, ()) if name not in columns}
        self._add({"kind": kind, "who": who, "rows": count, "columns": {**missing, **columns}})

    def steps(
        self,
        who: str,
        first: int,
        starts_s: list[float],
        *,
        compute_ms: float = 10.0,
        loss: float = 1.0,
        norms: object = None,
    ) -> None:
        """Steps of this worker that begin then; half of what a step takes is backward, and 2 ms are comm."""
        half_ns = round(compute_ms / 2 * MS)
        rank = int(who.rpartition("-")[2])
        count = len(starts_s)
        self.rows(
            who,
            "steps",
            count,
            step=list(range(first, first + count)),
            position=[(first + i) * 2 + rank for i in range(count)],
            start_ns=[T0_NS + round(s * 1e9) for s in starts_s],
            data_ns=0,
            forward_ns=half_ns,
            backward_ns=half_ns,
            delay_ns=0,
            wait_ns=0,
            codec_ns=0,
            comm_ns=2 * MS,
            apply_ns=0,
            loss=loss,
            samples=8,
            bytes_out=4000,
            bytes_in=4000,
            version=0,
            synced=True,
            own_norm=norms,
        )

    def second(self, at_s: float, **host: object) -> None:
        """The collector's line, which says that this second is over."""
        self.rows("watch", "hosts", 1, at_ns=T0_NS + round(at_s * 1e9), node="here", **host)

    def write(self, run_dir: Path, plan: Plan) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "plan.json").write_text(dumps(plan))
        self.lines = [line.replace('"plan":"p"', f'"plan":"{plan_hash(plan)}"') for line in self.lines]
        (run_dir / "events.jsonl").write_text("".join(line + "\n" for line in self.lines))


def steady_log(seconds: int, workers: int = 2, *, slow: str = "", slow_ms: float = 40.0) -> ScriptedLog:
    """Every worker takes ten steps a second; `slow` takes longer for each from second 5 on."""
    log = ScriptedLog()
    names = [f"worker-{i}" for i in range(workers)]
    for name in names:
        log.tell(0.1, name, "worker_started", pid=100, clock=0)
    for second in range(1, seconds + 1):
        for name in names:
            starts = [second - 1 + i / 10 for i in range(10)]
            took_ms = slow_ms if name == slow and second > 5 else 10.0
            log.steps(name, (second - 1) * 10, starts, compute_ms=took_ms, loss=1 / second)
        log.second(second, memory_used_bytes=10, memory_size_bytes=100)
    return log


@contextmanager
def followed(log: ScriptedLog, run_dir: Path) -> Iterator[IO[str]]:
    """Output of `paceline --json events --follow` behind the run's first event; it ends with the run."""
    log.write(run_dir, a_plan())
    args = [sys.executable, "-m", "paceline", "--json", "events", "--follow", str(run_dir)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["kind"] == "run_started"
        yield follower.stdout
        assert follower.wait(60) == 0

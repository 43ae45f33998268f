"""A run's folder as a run would leave it, made in a moment: a plan, and a log of synthetic steps."""

from pathlib import Path

from paceline.core.clock import unix_now_s
from paceline.events.log import EventLog, write_header
from paceline.events.schema import StepRow
from paceline.plan.codec import dumps, plan_hash
from paceline.plan.plan import Plan

STEP_NS = 20_000_000


class ScriptedClock:
    """The run's time, as the test says."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, duration_s: float) -> None:
        self.ns += round(duration_s * 1e9)


def row(step: int, start_ns: int, *, loss: float = 1.0) -> StepRow:
    return StepRow(
        step=step,
        position=step,
        start_ns=start_ns,
        data_ns=1_000_000,
        forward_ns=5_000_000,
        backward_ns=9_000_000,
        delay_ns=0,
        wait_ns=2_000_000,
        codec_ns=0,
        comm_ns=2_000_000,
        apply_ns=1_000_000,
        loss=loss,
        samples=8,
        bytes_out=100,
        bytes_in=100,
        version=step,
        synced=True,
    )


class MadeRun:
    def __init__(self, folder: Path, workers: int = 2) -> None:
        folder.mkdir(parents=True)
        self.folder, self.clock = folder, ScriptedClock()
        plan = Plan(
            run=folder.name,
            task="digits",
            mode="ssgd",
            num_workers=workers,
            steps=1000,
            batch_sizes=(8,) * workers,
        )
        (folder / "plan.json").write_text(dumps(plan))
        path = folder / "events.jsonl"
        write_header(
            path, run=plan.run, plan=plan_hash(plan), t0_ns=self.clock.ns, started_unix_s=unix_now_s()
        )
        self.launcher = EventLog(path, who="launcher", clock=self.clock)
        self.workers = [EventLog(path, who=f"worker-{rank}", clock=self.clock) for rank in range(workers)]
        self.launcher.write("run_started", plan=plan_hash(plan), launcher="local", unix_s=unix_now_s(), pid=0)
        for log in self.workers:
            log.write("worker_started", pid=0, clock=0)
        self._step = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for log in self.workers:
                log.add_step(row(self._step, self.clock.ns, loss=2 / (self._step + 1)))
            self.clock.ns += STEP_NS
            self._step += 1
        for log in self.workers:
            log.flush()

    def happen(self, text: str) -> None:
        self.launcher.write("supervision", decision=text)

    def close(self, outcome: str | None = None) -> None:
        if outcome is not None:
            self.launcher.write("run_finished", outcome=outcome)
        for log in (self.launcher, *self.workers):
            log.close()

"""Llama training speed of `paceline train` as a user starts it, read from its own events.

The first steps compile; speed is that of steps 5 to the last (`last` leaves out those during which a
checkpoint is copied). The run folder is removed afterwards: its checkpoint has billions of numbers.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoints.catalog import folders
from paceline.events.performance import peak_flops
from paceline.events.read import read_history
from paceline.events.schema import StepRow
from paceline.events.summary import WARM_STEPS, end_ns
from paceline.tasks.llama.shapes import SHAPES

Row = dict[str, object]


class FailedError(Exception):
    """A command failed; carries the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaRun:
    """One run of `paceline train --task llama`."""

    name: str
    model: str
    mode: str
    length: int
    batch: int
    steps: int
    more: tuple[str, ...] = ()
    device: str = "cuda"

    def words(self, work: Path) -> list[str]:
        given = {
            "--task": "llama",
            "--model": self.model,
            "--data": str(work / "text.txt"),
            "--tokenizer": str(work / "tokenizer.json"),
            "--seq-len": str(self.length),
            "--batch-size": str(self.batch),
            "--mode": self.mode,
            "--num-workers": "1",
            "--max-steps": str(self.steps),
            "--device": self.device,
            "--timeout": "300s",
            "--run-dir": str(work / self.name),
        }
        return ["train", *(word for pair in given.items() for word in pair), *self.more]


def command(words: Sequence[str], limit_s: float, work: Path, module: str = "paceline") -> str:
    """Run it as its own process; its stdout. Raises FailedError."""
    environment = {**os.environ, "PACELINE_DATA_FOLDER": str(work / "data"), "PYTHONUNBUFFERED": "1"}
    full = [sys.executable, "-m", module, *words]
    try:
        # A separate process group, so that a time limit also ends its children.
        with subprocess.Popen(
            full, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        ) as process:
            out, err = _ended(process, limit_s)
    except OSError as error:
        raise FailedError(str(error)) from error
    if process.returncode != 0:
        raise FailedError(f"ended with {process.returncode}: {(err or out)[-1500:]}")
    return out


def _ended(process: "subprocess.Popen[str]", limit_s: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, 9)
        output = process.communicate()
        raise LimitError(output[0], f"no end after {limit_s:.0f} s: {output[1][-500:]}") from error


class LimitError(FailedError):
    """The time limit was exceeded; carries the output so far."""

    def __init__(self, out: str, what: str) -> None:
        super().__init__(what)
        self.out = out


def measured(
    requested: LlamaRun, work: Path, limit_s: float, *, last: int | None = None
) -> tuple[Row, list[float]]:
    """The run's row, and its losses step by step; its folder stays."""
    command(requested.words(work), limit_s, work)
    steps = steps_of(work / requested.name)
    result = json.loads((work / requested.name / "result.json").read_text())
    return {**_row(requested, steps[:last]), **_memory(result), **_learnt(result)}, [s.loss for s in steps]


def resumed(requested: LlamaRun, work: Path, limit_s: float) -> Row:
    """Resume from the last checkpoint but one, and compare the losses with those of the first run."""
    run = work / requested.name
    before = {step.step: step.loss for step in steps_of(run)}
    newest = folders(run / "checkpoints")[-1]
    shutil.rmtree(newest)
    command(["train", "--resume", str(run)], limit_s, work)
    kept = int(folders(run / "checkpoints")[-2].name.removeprefix("at-"))
    after = {step.step: step.loss for step in steps_of(run)}
    again = [(before[step], after[step]) for step in sorted(after) if step >= kept]
    return {
        "what": f"{requested.name}, resumed",
        "from_step": kept,
        "steps": len(again),
        "largest_difference": max(abs(a - b) for a, b in again),
        "losses_before": [a for a, _ in again],
        "losses_after": [b for _, b in again],
    }


def steps_of(run: Path) -> list[StepRow]:
    return read_history(run / "events.jsonl").steps[0]


def _row(requested: LlamaRun, steps: list[StepRow]) -> Row:
    counted = steps[WARM_STEPS:] or steps
    took_s = (end_ns(counted[-1]) - counted[0].start_ns) / 1e9
    tokens_per_s = len(counted) * requested.batch * requested.length / took_s
    flops = tokens_per_s * SHAPES[requested.model].flops_per_token(requested.length)
    return {
        "what": f"paceline, {requested.name}",
        "setting": f"{requested.length} x {requested.batch}",
        "tokens_per_s": tokens_per_s,
        "flops_per_s": flops,
        "first_loss": steps[0].loss,
        "last_loss": steps[-1].loss,
        "steps": len(steps),
    }


def _memory(result: Row) -> Row:
    peaks = result.get("peak_device_bytes")
    return {"peak_device_bytes": max(peaks.values()) if isinstance(peaks, dict) else None}


def _learnt(result: Row) -> Row:
    return {"metrics": result["metrics"], "wall_s": result["wall_s"], "speed": result.get("speed")}


def mfu(row: Row, device: str) -> float | None:
    peak, flops = peak_flops(device), row.get("flops_per_s")
    return None if peak is None or not isinstance(flops, float) else flops / peak

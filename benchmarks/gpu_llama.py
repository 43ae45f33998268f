"""Llama 3.2 1B on one GPU: speed of a full training step, against Hugging Face's in the same run.

`python -m benchmarks.gpu_llama --text FILE --out FOLDER`: one call does everything, each part as its own
process with a time limit, the most important first; parts for which no time is left are named. Afterwards
FOLDER has `llama.json` (every row, and every loss), `llama.md` (the table) and `loss-curves.csv`.

MFU is the work that the model needs (6 FLOP for each parameter and token, and causal attention) over the
GPU's peak (989 TFLOP/s in bf16 for an H200). Recomputation does not count.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_llama_runs import FailedError, LimitError, LlamaRun, Row, command, measured, mfu, resumed
from benchmarks.gpu_llama_table import curves, table
from paceline.core.clock import monotonic_s

MODEL = "llama_v3_1b"
BF16 = ("--task-option", "dtype=bfloat16")
ROOM = 40e9  # bytes that checkpoints of 1.2 billion numbers may take


@dataclass(slots=True)
class Bench:
    """Options, results and remaining time."""

    work: Path
    out: Path
    tiny: bool
    until_s: float
    text: Path | None
    device: str = "cpu"
    rows: list[Row] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)

    def part(self, name: str, do: Callable[[float], None], *, needs_s: float, limit_s: float) -> None:
        """Run one part; its failure is a row, and the others continue."""
        left_s = self.until_s - monotonic_s()
        if left_s < needs_s:
            self.add({"what": name, "failed": f"left out: {left_s:.0f} s were left, it needs {needs_s:.0f}"})
            return
        started_s = monotonic_s()
        try:
            do(min(limit_s, left_s))
        except LimitError as error:
            self.add({"what": name, "failed": str(error)})
        except (FailedError, OSError, ValueError, KeyError, IndexError) as error:
            self.add({"what": name, "failed": f"{type(error).__name__}: {error}"})
        self.took_s[name] = monotonic_s() - started_s
        print(f"  [{name}: {self.took_s[name]:.0f} s]", flush=True)

    def add(self, row: Row) -> None:
        share = mfu(row, self.device)
        self.rows.append(row if share is None else {**row, "mfu": share})
        print(json.dumps({k: v for k, v in self.rows[-1].items() if not isinstance(v, list)}), flush=True)
        self.save()

    def save(self) -> None:
        """Save after every row, so that a later failure loses nothing."""
        whole = {"device": self.device, "rows": self.rows, "losses": self.losses, "took_s": self.took_s}
        (self.out / "llama.json").write_text(json.dumps(whole, indent=1) + "\n")
        (self.out / "llama.md").write_text(table(self.rows, self.device))
        (self.out / "loss-curves.csv").write_text(curves(self.losses))


def in_own_process(bench: Bench, module: str, *words: str) -> Callable[[float], None]:
    """A part that prints one JSON row per line; what it printed before a time limit counts."""

    def do(limit_s: float) -> None:
        try:
            out = command(words, limit_s, bench.work, module)
        except LimitError as error:
            _add_lines(bench, error.out)
            raise
        _add_lines(bench, out)

    return do


def _add_lines(bench: Bench, out: str) -> None:
    for line in out.splitlines():
        if line.startswith("{"):
            bench.add(json.loads(line))


def torch_part(bench: Bench, name: str, *words: str) -> Callable[[float], None]:
    where = ("--work", str(bench.work))
    return in_own_process(bench, "benchmarks.gpu_llama_parts", name, *where, *words)


def training(
    bench: Bench, requested: LlamaRun, *, last: int | None = None, keep: bool = False
) -> Callable[[float], None]:
    def do(limit_s: float) -> None:
        try:
            row, losses = measured(requested, bench.work, limit_s, last=last)
            bench.losses[f"{requested.name} {requested.length} x {requested.batch}"] = losses
            bench.add(row)
            print("  losses of every 10th step:", *(f"{loss:.3f}" for loss in losses[::10]), flush=True)
        finally:
            if not keep:
                shutil.rmtree(bench.work / requested.name, ignore_errors=True)

    return do


def resuming(bench: Bench, requested: LlamaRun) -> Callable[[float], None]:
    def do(limit_s: float) -> None:
        try:
            bench.add(resumed(requested, bench.work, limit_s))
        finally:
            shutil.rmtree(bench.work / requested.name, ignore_errors=True)

    return do


def parts(bench: Bench) -> Iterator[tuple[str, Callable[[float], None], float, float]]:
    """Name, what to do, the least time that it needs, and its limit; the most important first."""
    tiny, model = bench.tiny, "llama_tiny" if bench.tiny else MODEL
    short, long = ((64, 4), (128, 2)) if tiny else ((2048, 8), (8192, 4))
    many, few = (12, 8) if tiny else (100, 25)
    device = "cpu" if bench.device == "cpu" else "cuda"

    def asked(name: str, mode: str, setting: tuple[int, int], steps: int, *more: str) -> LlamaRun:
        return LlamaRun(
            name=name,
            model=model,
            mode=mode,
            length=setting[0],
            batch=setting[1],
            steps=steps,
            more=more,
            device=device,
        )

    def hf(setting: tuple[int, int]) -> Callable[[float], None]:
        words = ("--model", model, "--length", str(setting[0]), "--batch", str(setting[1]))
        return torch_part(bench, "hf", *words, *(("--eager-only",) if tiny else ()))

    every = ("--checkpoint-every", str(many))
    split = asked("fsdp", "fsdp", short, many + (2 if tiny else 10), *BF16, *every)
    text = () if bench.text is None else ("--text", str(bench.text))
    yield "text", torch_part(bench, "text", *text, "--words", "256" if tiny else "16000"), 0, 60
    yield "ceiling", torch_part(bench, "ceiling", "--size", "256" if tiny else "8192"), 10, 60
    yield "kernels", torch_part(bench, "kernels"), 10, 60
    yield "single 2048", training(bench, asked("single", "single", short, few, *BF16)), 35, 110
    yield "hf 2048", hf(short), 25, 110
    yield "fsdp 8192", training(bench, asked("fsdp", "fsdp", long, many, *BF16)), 60, 190
    yield "hf 8192", hf(long), 30, 110
    yield "fsdp 2048", training(bench, split, last=many, keep=True), 40, 150
    yield "resume", resuming(bench, split), 25, 150
    yield "single 8192", training(bench, asked("single", "single", long, few, *BF16)), 45, 120
    masters = asked("fsdp, fp32 masters", "fsdp", short, few, "--fsdp-precision", "bf16")
    yield "fp32 masters", training(bench, masters), 40, 120
    words: tuple[str, ...] = ("--device", device)
    words += ("--steps", "4", "--short", "2", "--cpu-steps", "6", "--workers", "2") if tiny else ()
    yield "virtual", in_own_process(bench, "benchmarks.gpu_virtual", *words), 30, 120


def device_name() -> str:
    """Name by nvidia-smi; this process does not import torch, and uses no GPU memory."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return "cpu"
    return result[0].strip() if result else "cpu"


@contextmanager
def working_folder() -> Iterator[Path]:
    """Folder in memory if that is large enough: a checkpoint of this model is 7 GB."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > ROOM
    with tempfile.TemporaryDirectory(dir=memory if has_room else None) as folder:
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, help="a text file; without it a toy text is made")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, default=480.0)
    parser.add_argument(
        "--tiny", action="store_true", help="shapes for a test of this script, on any machine"
    )
    parser.add_argument("--parts", help="only these, with commas between (text always)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    started_s = monotonic_s()
    with working_folder() as work:
        until_s = started_s + options.budget_s
        bench = Bench(work, options.out, options.tiny, until_s, options.text, device=device_name())
        for name, do, needs_s, limit_s in parts(bench):
            if options.parts is None or name in ("text", *options.parts.split(",")):
                bench.part(name, do, needs_s=0 if options.tiny else needs_s, limit_s=limit_s)
    bench.save()
    print(f"\n{table(bench.rows, bench.device)}\n{monotonic_s() - started_s:.0f} s")


if __name__ == "__main__":
    main()

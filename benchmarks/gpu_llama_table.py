"""Output of `benchmarks.gpu_llama`: rows as Markdown, and losses as CSV."""

from collections.abc import Mapping, Sequence

Row = dict[str, object]


def table(rows: Sequence[Row], device: str) -> str:
    speeds = [row for row in rows if "tokens_per_s" in row]
    fastest = {str(r["setting"]): _number(r["tokens_per_s"]) for r in speeds if "compiled" in str(r["what"])}
    lines = [
        f"On {device}.",
        "",
        "| what | tokens x batch | tokens/s | MFU | ÷ HF compiled | peak memory | loss, first → last |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in speeds:
        setting, rate = str(row["setting"]), _number(row["tokens_per_s"])
        ratio = f"{rate / fastest[setting]:.2f}" if setting in fastest else "-"
        share = row.get("mfu")
        lines.append(
            f"| {row['what']} | {setting} | {rate:,.0f} | {_percent(share)} | {ratio} "
            f"| {_gigabytes(row.get('peak_device_bytes'))} "
            f"| {_number(row['first_loss']):.3f} → {_number(row['last_loss']):.3f} |"
        )
    lines += ["", "| what else | found |", "|---|---|"]
    lines += [f"| {row['what']} | {_row_text(row)} |" for row in rows if "tokens_per_s" not in row]
    return "\n".join(lines) + "\n"


def curves(losses: Mapping[str, Sequence[float]]) -> str:
    lines = ["run,step,loss"]
    lines += [f"{run},{step},{loss!r}" for run, mine in losses.items() for step, loss in enumerate(mine)]
    return "\n".join(lines) + "\n"


def _row_text(row: Row) -> str:
    if "failed" in row:
        return "failed: " + " ".join(str(row["failed"]).split()).replace("|", "/")[-300:]
    if "error" in row:
        return f"relative error {_number(row['error']):.2g} ({row['dtype']})"
    if "tflops" in row:
        return f"{_number(row['tflops']):.0f} TFLOP/s"
    if "samples_per_s" in row:
        return f"{_number(row['samples_per_s']):,.0f} samples/s"
    if "from_step" in row:
        return (
            f"{row['steps']} steps again from step {row['from_step']}; "
            f"losses differ by {_number(row['largest_difference']):.2g} at most"
        )
    return ", ".join(f"{name} {value}" for name, value in row.items() if name != "what")


def _percent(share: object) -> str:
    return f"{share:.1%}" if isinstance(share, float) else "-"


def _gigabytes(value: object) -> str:
    return f"{value / 1e9:.1f} GB" if isinstance(value, int) else "-"


def _number(value: object) -> float:
    return float(str(value))

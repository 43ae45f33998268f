"""Summary of a run: its result as a few lines, with the next command at the end."""

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.humanize import short_bytes, short_duration, short_number
from paceline.events.schema import EARLY_STOP
from paceline.plan.catalog import SCRIPT_TASK, SYNTHETIC, hides_waiting, is_split
from paceline.plan.plan import Device, EventDetail, Plan, Transport

if TYPE_CHECKING:
    from paceline.plan.codec import Json


def summary_lines(result: "dict[str, Json]", plan: Plan, run_dir: Path) -> list[str]:
    rows = [
        *_data(result),
        *_metric_lines(result),
        *_best(result),
        *_speed(result),
        *_memory(result),
        *_bytes(result),
        *_compression(result),
        *_staleness(result),
        *_abandoned(result),
        *_adapted(result, plan),
        *_checkpoints(result),
        ("run folder", str(run_dir)),
        ("next", next_command(result, plan, run_dir)),
    ]
    if result.get("stopped_early"):
        why = str(result["stopped_by"]) if is_early_stop(result) else "before the last step"
        rows.insert(0, ("stopped", why))
    return [f"{name:<14}{text}" for name, text in rows]


def is_early_stop(result: "dict[str, Json]") -> bool:
    """Did the run end by itself, because its validation got no better?"""
    return str(result.get("stopped_by", "")).startswith(EARLY_STOP)


def next_command(result: "dict[str, Json]", plan: Plan, run_dir: Path) -> str:
    if result.get("stopped_early") and not is_early_stop(result):
        return f"paceline train --resume {run_dir}"
    if plan.task == SCRIPT_TASK:  # its objects exist only while the script runs: it has no replay
        return f"paceline verify {run_dir}"
    if _can_replay(plan):
        return f"paceline replay {run_dir}"
    other = "ssgd" if plan.mode == "asgd" else "asgd"
    return (
        f"paceline train --mode {other} --task {plan.task} --steps {plan.steps}  # the same work under "
        "another strategy"
    )


def _can_replay(plan: Plan) -> bool:
    """What worker/replay/schedule.py refuses is not suggested."""
    is_recorded = plan.events is EventDetail.FULL and plan.device is Device.CPU and not plan.vmap
    has_known_order = plan.num_workers <= 2 or plan.transport not in (Transport.GLOO, Transport.NCCL)
    is_torchs = hides_waiting(plan.mode) and (plan.compress is not None or plan.elastic is not None)
    is_torchs = is_torchs or is_split(plan.mode)
    return is_recorded and has_known_order and not is_torchs


def _data(result: "dict[str, Json]") -> list[tuple[str, str]]:
    """Printed before the metrics, which mean nothing for synthetic data."""
    if result.get("data") != SYNTHETIC:
        return []
    return [("data", "synthetic; the metrics below do not apply to the real data set")]


def _metric_lines(result: "dict[str, Json]") -> list[tuple[str, str]]:
    rows = [("loss", f"{loss:.4g}")] if (loss := _number(result.get("loss"))) is not None else []
    if loss is not None and not isfinite(loss):
        rows.append(("diverged", "the loss is not finite: try a smaller --lr, or --clip-norm 1"))
    if (norm := _number(result.get("grad_norm"))) is not None:
        rows.append(("gradient norm", f"{norm:.4g}, before clipping"))
    for name, value in _object(result.get("metrics")).items():
        if (number := _number(value)) is not None:
            rows.append((name, f"{number:.4g}"))
    return rows


def _best(result: "dict[str, Json]") -> list[tuple[str, str]]:
    best = _object(result.get("best"))
    return [("best weights", f"step {best['step']}")] if best else []


def _speed(result: "dict[str, Json]") -> list[tuple[str, str]]:
    rows = []
    if (speed := _number(result.get("samples_per_s"))) is not None:
        rows.append(("throughput", f"{short_number(speed)} samples/s"))
    rows += _utilisation(_object(result.get("speed")))
    if (wall_s := _number(result.get("wall_s"))) is not None:
        rows.append(("time", short_duration(wall_s)))
    if result.get("launcher") == "virtual" and (steps_s := _number(result.get("steps_s"))) is not None:
        rows.append(("virtual time", short_duration(steps_s)))
    phases = {name: _number(v) or 0.0 for name, v in _object(result.get("phases_s")).items()}
    total = sum(phases.values())
    shares = [f"{name} {100 * s / total:.0f}%" for name, s in phases.items() if total and s / total >= 0.005]
    if shares:
        rows.append(("workers' time", ", ".join(shares)))
    return rows


def _utilisation(seen: "dict[str, Json]") -> list[tuple[str, str]]:
    """Once it ran: without the first steps, which compile and warm up."""
    tokens, work, share = (_number(seen.get(name)) for name in ("tokens_per_s", "flops_per_s", "mfu"))
    parts = [] if tokens is None else [f"{short_number(tokens)} tokens/s"]
    parts += [] if work is None else [f"{work / 1e12:.3g} TFLOP/s"]
    parts += [] if share is None else [f"{share:.1%} MFU"]
    return [("steady state", ", ".join(parts))] if parts else []


def _memory(result: "dict[str, Json]") -> list[tuple[str, str]]:
    peaks = [_number(value) or 0.0 for value in _object(result.get("peak_device_bytes")).values()]
    return [("GPU memory", f"peak {short_bytes(max(peaks))} per worker")] if peaks else []


def _bytes(result: "dict[str, Json]") -> list[tuple[str, str]]:
    moved = _object(result.get("bytes"))
    out = _number(moved.get("out"))
    back = _number(moved.get("in"))
    if out is None or back is None:
        return []
    rows = [("traffic", f"{short_bytes(out)} sent, {short_bytes(back)} received")]
    wire = _object(result.get("wire_bytes"))
    wire_out = _number(wire.get("out"))
    wire_in = _number(wire.get("in"))
    if wire_out is not None and wire_in is not None:
        measured = f"{short_bytes(wire_out)} sent, {short_bytes(wire_in)} received, measured by the kernel"
        rows.append(("on the wire", measured))
    return rows


def _compression(result: "dict[str, Json]") -> list[tuple[str, str]]:
    """What was saved beside what it cost."""
    seen = _object(result.get("compression"))
    plain = _number(seen.get("bytes_out_plain"))
    ratio = _number(seen.get("ratio"))
    codec_s = _number(seen.get("codec_s"))
    share = _number(seen.get("codec_share"))
    if plain is None or ratio is None:
        return []
    cost = "codec time not recorded"
    if codec_s is not None and share is not None:
        cost = f"codec time {short_duration(codec_s)} ({share:.0%} of the workers' time)"
    return [
        (
            "compressed",
            f"{seen.get('codec')}: {ratio:.3g}x smaller ({short_bytes(plain)} uncompressed); {cost}",
        )
    ]


def _staleness(result: "dict[str, Json]") -> list[tuple[str, str]]:
    seen = _object(result.get("staleness"))
    mean = _number(seen.get("mean"))
    most = _number(seen.get("max"))
    if mean is None or most is None:
        return []
    return [("staleness", f"mean {mean:.2f}, max {most:g} versions")]


def _abandoned(result: "dict[str, Json]") -> list[tuple[str, str]]:
    seen = _object(result.get("abandoned"))
    steps = _number(seen.get("steps"))
    lost_s = _number(seen.get("lost_s"))
    if steps is None or lost_s is None:
        return []
    return [("abandoned", f"{steps:g} late steps, {short_duration(lost_s)} of the workers' time")]


def _adapted(result: "dict[str, Json]", plan: Plan) -> list[tuple[str, str]]:
    if plan.mode != "adaptive" or plan.events is EventDetail.OFF:
        return []
    seen = _object(result.get("adapted"))
    if not seen:
        return [("adapted", "never: no change was predicted to pay off")]
    times = "once" if seen["count"] == 1 else f"{seen['count']} times"
    unit = "local steps per round" if seen["way"] == "local-steps" else "samples per step"
    unit = unit if plan.elastic is None else "shards"
    return [("adapted", f"{times}; final policy {seen['way']}, {unit} by worker: {seen['shares']}")]


def _checkpoints(result: "dict[str, Json]") -> list[tuple[str, str]]:
    """What they cost the training, and what they cost beside it."""
    seen = _object(result.get("checkpoints"))
    written = _number(seen.get("written"))
    nbytes = _number(seen.get("bytes"))
    pause_s = _number(seen.get("pause_s"))
    write_s = _number(seen.get("write_s"))
    if written is None or nbytes is None or pause_s is None or write_s is None:
        return []
    busy_s = sum(_number(v) or 0.0 for v in _object(result.get("phases_s")).values())
    share = f" ({_percent(pause_s / busy_s)} of the workers' time)" if busy_s else ""
    paused = f"{1000 * pause_s:.2g} ms" if pause_s < 1 else short_duration(pause_s)
    count = f"{written:g} snapshot{'' if written == 1 else 's'}"
    text = f"{count}, {short_bytes(nbytes)}; training paused {paused}{share}, "
    text += f"written asynchronously in {short_duration(write_s)}"
    problems = [f"{seen[name]} {name}" for name in ("failed", "skipped") if seen.get(name)]
    return [("checkpoints", "; ".join([text, *problems]))]


def _percent(share: float) -> str:
    """One digit that matters, and never a power of ten: 0.07%, 5%, 13%."""
    return f"{100 * share:.0f}%" if share >= 0.095 else f"{100 * share:.1g}%"


def _number(value: "Json") -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _object(value: "Json") -> "dict[str, Json]":
    return value if isinstance(value, dict) else {}

"""Contents of result.json: the final reports of the participants and the totals of their log."""

import json
from collections.abc import Mapping
from pathlib import Path

from paceline import __version__
from paceline.events.log_summary import LogSummary, summarise_log
from paceline.events.performance import compute_speed
from paceline.events.summary import Summary
from paceline.launchers.local import Message
from paceline.plan.catalog import data_of, hides_waiting
from paceline.plan.codec import Json, plan_hash, to_json
from paceline.plan.compression import describe_codec
from paceline.plan.plan import EventDetail, Launcher, Plan


def describe_evaluation(message: Message, plan: Plan) -> str:
    step = int(str(message["step"]))
    metrics = json.loads(str(message["metrics"]))
    when = f"after step {step:,}"
    if plan.num_samples is not None:
        when += f" (epoch {int(str(message['samples'])) / plan.num_samples:.2f})"
    shown = ", ".join(f"{name} {'nan' if v is None else format(v, '.4g')}" for name, v in metrics.items())
    return f"evaluated {when}: {shown}"


def evaluations_json(reports: Mapping[str, Message]) -> dict[str, Json]:
    """`evaluations` of all sessions, `best` of a run that may stop early, and `stopped_by` if it did.

    Participants that report them report the same.
    """
    fields: dict[str, Json] = {"evaluations": [], "best": None}
    for report in reports.values():
        if "evaluations" in report:
            fields["evaluations"] = json.loads(str(report["evaluations"]))
        if "best" in report:
            fields["best"] = json.loads(str(report["best"]))
        if "stopped_by" in report:
            fields["stopped_by"] = report["stopped_by"]
    return fields


Reports = Mapping[str, Mapping[str, Json]]


def memory_json(reports: Reports) -> dict[str, Json]:
    """Peak GPU memory of each worker; empty without GPUs."""
    peaks: dict[str, Json] = {
        participant: report["peak_device_bytes"]
        for participant, report in reports.items()
        if "peak_device_bytes" in report
    }
    return {"peak_device_bytes": peaks} if peaks else {}


def wire_json(reports: Reports) -> dict[str, Json]:
    """Bytes on the wire of all workers; empty if one of them could not count them."""
    workers = [report for report in reports.values() if "steps_s" in report]
    if not workers or not all("wire_out_bytes" in report for report in workers):
        return {}
    out = sum(int(str(report["wire_out_bytes"])) for report in workers)
    back = sum(int(str(report["wire_in_bytes"])) for report in workers)
    return {"wire_bytes": {"out": out, "in": back}}


def speed_json(plan: Plan, reports: Reports, steady_samples_per_s: float) -> dict[str, Json]:
    """Tokens and FLOPs per second; only if the task defines them and time is not virtual."""
    report = next((report for report in reports.values() if "tokens_per_sample" in report), None)
    report = report or next((report for report in reports.values() if "flops_per_sample" in report), None)
    if report is None or plan.launcher is Launcher.VIRTUAL:
        return {}
    devices = {str(report["device"]) for report in reports.values() if "device" in report}
    speed = to_json(
        compute_speed(
            steady_samples_per_s,
            tokens=_number(report.get("tokens_per_sample")),
            flops=_number(report.get("flops_per_sample")),
            device=devices.pop() if len(devices) == 1 else None,
            gpus=_count_gpus(reports),
        )
    )
    return {"speed": speed}


def _count_gpus(reports: Reports) -> int:
    """Distinct GPUs: workers may share one."""
    return max(1, len({str(report["device_id"]) for report in reports.values() if "device_id" in report}))


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) else None


RESULT_SCHEMA = "paceline.result/1"


def result_json(
    plan: Plan, run_dir: Path, reports: Mapping[str, Message], *, wall_s: float, stopped: bool
) -> dict[str, Json]:
    """Contents of result.json. `reports`: by participant; without events, the log's numbers are left out."""
    record = summarise_log(run_dir / "events.jsonl")
    summary = record.summary
    recorded = plan.events is EventDetail.FULL
    hashes: dict[str, Json] = {
        participant: report["state_sha256"]
        for participant, report in reports.items()
        if "state_sha256" in report
    }
    # The model of a script is evaluated by its main worker (run.log), also where a server holds it.
    metrics = next((r["metrics"] for r in reports.values() if r.get("metrics")), {})
    return {
        "schema": RESULT_SCHEMA,
        "paceline": __version__,
        "run": plan.run,
        "run_dir": str(run_dir),
        "mode": plan.mode,
        "task": plan.task,
        **({} if (data := data_of(plan)) is None else {"data": data}),
        "num_workers": plan.num_workers,
        "launcher": plan.launcher.value,
        "plan": plan_hash(plan),
        "wall_s": wall_s,
        # The slowest worker's loop alone, from first to last step; known also with events off.
        "steps_s": _steps_s(reports),
        "stopped_early": stopped,
        **({"diverged": True} if record.has_diverged else {}),
        **evaluations_json(reports),
        "metrics": metrics,
        "state_sha256": hashes,
        **(_summary_json(summary, reports) if recorded else {}),
        **(_compression_json(plan, summary) if recorded else {}),
        **_record_json(record),
        **wire_json(reports),
        **memory_json(reports),
        **(speed_json(plan, reports, record.steady_samples_per_s) if recorded else {}),
    }


def _steps_s(reports: Mapping[str, Message]) -> float:
    """Duration of the slowest worker's loop, without evaluations by a server, during which workers wait."""
    slowest_s = max(float(str(r["steps_s"])) for r in reports.values() if "steps_s" in r)
    evaluating_s = max((float(str(r.get("evaluating_s", 0.0))) for r in reports.values()), default=0.0)
    return max(0.0, slowest_s - evaluating_s)


def _summary_json(summary: Summary, reports: Mapping[str, Message]) -> dict[str, Json]:
    numbers = to_json(summary)
    assert isinstance(numbers, dict), "a dataclass becomes an object"
    # In an elastic run, the rows of one worker do not count the steps of the run.
    run_steps = [int(str(report["run_steps"])) for report in reports.values() if "run_steps" in report]
    if run_steps:
        numbers["steps"] = max(run_steps)
    numbers["bytes"] = {"out": numbers.pop("bytes_out"), "in": numbers.pop("bytes_in")}
    del numbers["bytes_saved"]
    return numbers


def _record_json(record: LogSummary) -> dict[str, Json]:
    """Damage of the event log; empty if it is complete."""
    interruptions = [event.fields for event in record.interruptions]
    if not interruptions and not record.torn.count:
        return {}
    return {
        "record": {
            "interruptions": len(interruptions),
            "reasons": [*sorted({str(fields["reason"]) for fields in interruptions})],
            "torn_lines": record.torn.count,
            "missing_lines": sum(int(str(fields["dropped"])) for fields in interruptions),
        }
    }


def _compression_json(plan: Plan, summary: Summary) -> dict[str, Json]:
    """Bytes saved by compression and its cost; empty without compression."""
    if plan.compress is None and summary.bytes_saved == 0:
        return {}
    name = plan.mode if plan.compress is None else describe_codec(plan.compress.codec, plan.compress.amount)
    plain = summary.bytes_out + summary.bytes_saved
    busy_s = sum(summary.phases_s.values())
    saving: dict[str, Json] = {
        "codec": name,
        "bytes_out_plain": plain,
        "ratio": plain / summary.bytes_out if summary.bytes_out else None,
    }
    # torch overlaps it with backward; virtual time has no codec cost.
    if not hides_waiting(plan.mode) and plan.launcher is not Launcher.VIRTUAL:
        saving["codec_s"] = summary.phases_s["codec"]
        saving["codec_share"] = summary.phases_s["codec"] / busy_s if busy_s else 0.0
    return {"compression": saving}

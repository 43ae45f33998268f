"""The contents of result.json: what the participants reported at their end, and what their log adds up to."""

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
    found: dict[str, Json] = {"evaluations": [], "best": None}
    for report in reports.values():
        if "evaluations" in report:
            found["evaluations"] = json.loads(str(report["evaluations"]))
        if "best" in report:
            found["best"] = json.loads(str(report["best"]))
        if "stopped_by" in report:
            found["stopped_by"] = report["stopped_by"]
    return found


Reports = Mapping[str, Mapping[str, Json]]


def memory_json(reports: Reports) -> dict[str, Json]:
    """The most that each worker ever had allocated on its GPU; nothing where there was none."""
    peaks: dict[str, Json] = {
        who: report["peak_device_bytes"] for who, report in reports.items() if "peak_device_bytes" in report
    }
    return {"peak_device_bytes": peaks} if peaks else {}


def speed_json(plan: Plan, reports: Reports, steady_samples_per_s: float) -> dict[str, Json]:
    """Only where the task says what a sample is, and where time is real."""
    said = next((report for report in reports.values() if "tokens_per_sample" in report), None)
    said = said or next((report for report in reports.values() if "flops_per_sample" in report), None)
    if said is None or plan.launcher is Launcher.VIRTUAL:
        return {}
    devices = {str(report["device"]) for report in reports.values() if "device" in report}
    found = to_json(
        compute_speed(
            steady_samples_per_s,
            tokens=_number(said.get("tokens_per_sample")),
            flops=_number(said.get("flops_per_sample")),
            device=devices.pop() if len(devices) == 1 else None,
            gpus=_count_gpus(reports),
        )
    )
    return {"speed": found}


def _count_gpus(reports: Reports) -> int:
    """Workers may share one."""
    return max(1, len({str(report["device_id"]) for report in reports.values() if "device_id" in report}))


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) else None


RESULT_SCHEMA = "paceline.result/1"


def result_json(
    plan: Plan, run_dir: Path, reports: Mapping[str, Message], *, wall_s: float, stopped: bool
) -> dict[str, Json]:
    """`reports`: what each participant said at its end. What the log knows is left out with events off."""
    record = summarise_log(run_dir / "events.jsonl")
    summary = record.summary
    recorded = plan.events is EventDetail.FULL
    hashes: dict[str, Json] = {
        who: report["state_sha256"] for who, report in reports.items() if "state_sha256" in report
    }
    metrics = next((r["metrics"] for r in reports.values() if "metrics" in r), {})
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
        **memory_json(reports),
        **(speed_json(plan, reports, record.steady_samples_per_s) if recorded else {}),
    }


def _steps_s(reports: Mapping[str, Message]) -> float:
    """Without the time in which a server evaluated, and its workers waited."""
    slowest_s = max(float(str(r["steps_s"])) for r in reports.values() if "steps_s" in r)
    evaluating_s = max((float(str(r.get("evaluating_s", 0.0))) for r in reports.values()), default=0.0)
    return max(0.0, slowest_s - evaluating_s)


def _summary_json(summary: Summary, reports: Mapping[str, Message]) -> dict[str, Json]:
    numbers = to_json(summary)
    assert isinstance(numbers, dict), "a dataclass becomes an object"
    # Where workers come and go, the rows of a worker say nothing about the steps of the run.
    run_steps = [int(str(report["run_steps"])) for report in reports.values() if "run_steps" in report]
    if run_steps:
        numbers["steps"] = max(run_steps)
    numbers["bytes"] = {"out": numbers.pop("bytes_out"), "in": numbers.pop("bytes_in")}
    del numbers["bytes_saved"]
    return numbers


def _record_json(record: LogSummary) -> dict[str, Json]:
    """What is wrong with the event log; nothing where it is whole."""
    told = [event.fields for event in record.interruptions]
    if not told and not record.torn.count:
        return {}
    return {
        "record": {
            "interruptions": len(told),
            "reasons": [*sorted({str(fields["reason"]) for fields in told})],
            "torn_lines": record.torn.count,
            "missing_lines": sum(int(str(fields["dropped"])) for fields in told),
        }
    }


def _compression_json(plan: Plan, summary: Summary) -> dict[str, Json]:
    """What was saved, beside what it cost; nothing when nothing was compressed."""
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
    # torch hides it in backward; virtual time is only that of the plan.
    if not hides_waiting(plan.mode) and plan.launcher is not Launcher.VIRTUAL:
        saving["codec_s"] = summary.phases_s["codec"]
        saving["codec_share"] = summary.phases_s["codec"] / busy_s if busy_s else 0.0
    return {"compression": saving}

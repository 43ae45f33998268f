"""Speed and memory of a run, for result.json, from what the workers reported."""

from collections.abc import Mapping

from paceline.events.speed import speed
from paceline.plan.codec import Json, to_json
from paceline.plan.plan import Launcher, Plan

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
        speed(
            steady_samples_per_s,
            tokens=_number(said.get("tokens_per_sample")),
            flops=_number(said.get("flops_per_sample")),
            device=devices.pop() if len(devices) == 1 else None,
            gpus=_gpus(reports),
        )
    )
    return {"speed": found}


def _gpus(reports: Reports) -> int:
    """Workers may share one."""
    return max(1, len({str(report["device_id"]) for report in reports.values() if "device_id" in report}))


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) else None

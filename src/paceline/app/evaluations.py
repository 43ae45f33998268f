"""What became of a run's evaluations? One line for whoever watches, and the fields of result.json."""

import json
from collections.abc import Mapping

from paceline.launchers.local import Message
from paceline.plan.codec import Json
from paceline.plan.plan import Plan


def evaluation_in_words(message: Message, plan: Plan) -> str:
    step, metrics = int(str(message["step"])), json.loads(str(message["metrics"]))
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

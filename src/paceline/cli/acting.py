"""How does a command ask something of a run? Each phase is said as it comes; the last one is the answer."""

import getpass
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ExitCode

if TYPE_CHECKING:
    from paceline.app.actions.wanted import Step
    from paceline.plan.codec import Json


def carry_out(
    session: Session,
    run: Path,
    action: str,
    worker: str = "",
    *,
    factor: float = 4.0,
    for_s: float = 30.0,
    force: bool = False,
) -> ExitCode:
    from paceline.app.actions.act import Act
    from paceline.app.actions.wanted import Deed, Phase, Wanted

    steps: list[Step] = []

    def tell(step: "Step") -> None:
        steps.append(step)
        say(session, f"{step.phase.value.replace('_', ' ')}: {step.note}")

    wanted = Wanted(
        id=uuid.uuid4().hex,
        deed=Deed(action),
        worker=worker,
        factor=factor,
        for_s=for_s,
        is_forced=force,
        by=getpass.getuser(),
        source="cli",
    )
    act = Act(session.folder / run, wanted, tell)
    last = act.run()
    data: Json = {
        "run": str(run),
        "action": action,
        "target": worker,
        "phase": last.phase.value,
        "steps": [step.json() for step in steps],
    }
    emit(session, "action", data, [last.note])
    if (then := _next_command(action, run, worker)) and last.phase is Phase.EFFECT_SEEN:
        say(session, f"next: {then}")
    try:
        for holder in act.holders:  # as long as this command lives
            holder.wait()
    finally:
        for holder in act.holders:
            if holder.stdin is not None:
                holder.stdin.close()
            holder.wait()
    return ExitCode.OK if last.phase is Phase.EFFECT_SEEN else ExitCode.DEGRADED


def _next_command(action: str, run: Path, worker: str) -> str:
    match action:
        case "stop":
            return f"paceline train --resume {run} goes on with it"
        case "pause" | "slow":
            return f"paceline workers resume {run} {worker} lets it go on at once"
        case "partition":
            return f"paceline workers heal {run} lets all back in"
        case "kill" | "resume" | "heal":
            return f"paceline events {run} tells how it goes on"
        case _:
            return ""

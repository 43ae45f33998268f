"""Is this the run that the page asked for? Its plan says so, not its name."""

from collections.abc import Mapping

from paceline.learn.facts import RunFacts
from paceline.learn.lesson import Finding


def is_as_asked(
    name: str,
    run: RunFacts,
    *,
    mode: str,
    workers: int,
    slow: Mapping[int, float] | None = None,
    like: RunFacts | None = None,
    is_elastic: bool = False,
) -> Finding:
    """`like`: with the same pace, and the same samples in all, as another run."""
    wrong = []
    if run.mode != mode:
        wrong.append(f"its mode is {run.mode}, not {mode}")
    if run.workers != workers:
        wrong.append(f"it has {run.workers} workers, not {workers}")
    if dict(run.slow) != dict(slow or {}):
        wrong.append(f"its slow workers are {_slow(run.slow)}, not {_slow(slow or {})}")
    if run.is_elastic != is_elastic:
        wrong.append("it is elastic" if run.is_elastic else "it is not elastic")
    if like is not None and run.pace_s != like.pace_s:
        wrong.append(f"its pace is {run.pace_s:g} s, and that of {like.folder} is {like.pace_s:g} s")
    if like is not None and run.samples != like.samples:
        wrong.append(f"it saw {run.samples} samples, and {like.folder} saw {like.samples}")
    if wrong:
        hint = f"type the command with --name {name} as it stands on the page"
        return Finding(False, f"{run.folder} is another run: {'; '.join(wrong)}", hint)
    return Finding(True, f"{run.folder}: {mode}, {run.workers} worker{'s' if run.workers > 1 else ''}")


def is_finished(run: RunFacts) -> Finding:
    if run.outcome == "finished":
        return Finding(True, f"{run.folder} finished its {run.steps} steps")
    return Finding(False, f"{run.folder} was {run.outcome}", "type its command again, and let it end")


def _slow(slow: Mapping[int, float]) -> str:
    return ", ".join(f"worker {worker} by {factor:g}" for worker, factor in slow.items()) or "none"

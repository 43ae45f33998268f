"""Why did Ray Train fail, in one sentence? Its errors hold whole tracebacks of other processes. Pure."""

import re

from paceline.errors import TrainingError

_DEATH = re.compile(r"Worker exit type: (\w+) Worker exit detail: ([^.\n]*)")


def failure_of(error: BaseException, log: str) -> TrainingError:
    """The first worker that is to blame, else the trainer itself; the log has everything."""
    hint = f"see what the workers said in {log}"
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, cause = min(failures.items(), key=lambda item: (_is_consequence(item[1]), item[0]))
        return TrainingError(f"worker {rank} of Ray Train failed: {sentence(cause)}", hint)
    cause = getattr(error, "controller_failure", error)
    return TrainingError(f"Ray Train failed: {sentence(cause)}", hint)


def sentence(error: BaseException) -> str:
    """What an error says, without the traceback that came with it as text."""
    text = str(error).strip()
    if (death := _DEATH.search(text)) is not None:
        return f"its process died ({death[2].strip()})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    has_traceback = any(line.startswith("Traceback") for line in lines)
    return lines[-1] if has_traceback else lines[0]


def _is_consequence(error: BaseException) -> bool:
    """When one is gone, the collective operations of the others fail too."""
    text = str(error)
    return "UnavailableError" in text or "AbortedError" in text or "CancelledError" in text

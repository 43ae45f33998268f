"""From which step can a run go on? The newest checkpoint that the job or its logs tell of."""

import re

from paceline.kube.diagnosis.snapshot import Snapshot
from paceline.kube.reading import mapping

ANNOTATION = "paceline.dev/checkpoint-step"
_SAVED = re.compile(r"(?:saved|wrote|written)[^\n]*checkpoint[^\n]*\bstep[ =:#/_-]*(\d+)", re.IGNORECASE)
_SAVED_AT = re.compile(
    r"checkpoint[^\n]*\bstep[ =:#/_-]*(\d+)[^\n]*\b(?:saved|written|complete)", re.IGNORECASE
)
# A line that speaks of a checkpoint that did not come to be.
_NOT = re.compile(
    r"\b(?:not|no|never|nothing|cannot|unable|fail\w*|error|damaged|corrupt\w*|partial\w*|incomplete|aborted"
    r"|skipp\w+)\b|n't\b",
    re.IGNORECASE,
)


def newest_checkpoint(snapshot: Snapshot) -> int | None:
    """None when none is known of: then another attempt begins at step 0."""
    said = [str(mapping(job, "metadata", "annotations").get(ANNOTATION, "")) for job in snapshot.jobs]
    steps = [int(text) for text in said if text.isdigit()]
    for line in (line for log in snapshot.logs for line in log.text.split("\n")):
        found = _SAVED.search(line) or _SAVED_AT.search(line)
        if found is not None and not _NOT.search(line):
            steps.append(int(found[1]))
    return max(steps, default=None)

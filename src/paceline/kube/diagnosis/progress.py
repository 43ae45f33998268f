"""From which step can a run go on? The newest checkpoint that the job or its logs tell of."""

import re

from paceline.kube.diagnosis.snapshot import Snapshot
from paceline.kube.reading import mapping

ANNOTATION = "paceline.dev/checkpoint-step"
_SAVED = re.compile(r"(?:saved|wrote|written)[^\n]*checkpoint[^\n]*\bstep[ =:#/_-]*(\d+)", re.IGNORECASE)
_SAVED_AT = re.compile(
    r"checkpoint[^\n]*\bstep[ =:#/_-]*(\d+)[^\n]*\b(?:saved|written|complete)", re.IGNORECASE
)


def newest_checkpoint(snapshot: Snapshot) -> int | None:
    """None when none is known of: then another attempt begins at step 0."""
    said = [str(mapping(job, "metadata", "annotations").get(ANNOTATION, "")) for job in snapshot.jobs]
    steps = [int(text) for text in said if text.isdigit()]
    for log in snapshot.logs:
        steps += [int(number) for words in (_SAVED, _SAVED_AT) for number in words.findall(log.text)]
    return max(steps, default=None)

"""Who says this line? A short word before it: the rank, and the pod without the job's name."""

from paceline.kube.diagnosis.pods import rank_of
from paceline.kube.diagnosis.snapshot import Object, name_of


def prefix_of(pod: Object, job: str) -> str:
    rank = rank_of(pod)
    short = name_of(pod).removeprefix(f"{job}-") or name_of(pod)
    return f"[{short}]" if rank is None else f"[r{rank} {short}]"

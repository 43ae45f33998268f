"""What does each experiment promise before it begins? The words that it will judge itself by afterwards."""

ALWAYS = (
    "nothing is lost or done twice",
    "the parameters are those of an undisturbed run",
    "processes left behind",
)

PROMISES: dict[str, tuple[str, ...]] = {
    "kill-worker": (
        "survivors commit their next step after a kill, p95",
        "survivors that were restarted",
        "steps that a survivor computed again after a kill",
        "generations that were entered with different bits",
    ),
    "kill-two": ("survivors commit their next step after two kills at once, at the latest",),
    "freeze-worker": (
        "a frozen worker is left out, at the latest",
        "it is back after it wakes, at the latest",
        "steps that it committed while left out",
    ),
    "kill-leader": ("a training step is delayed by the loss of the leader by, at the latest", "generations"),
    "kill-server": ("the next update after a kill of the primary, p95", "promotions"),
    "quorum-lost": (
        "the longest time without a committed step meanwhile",
        "times that it was said",
        "generations",
    ),
    "resize": (
        "a change of size (2 → 4 → 3), at the latest",
        "workers that were restarted without being lost",
    ),
    "slow-worker": (
        "the slow worker is found after it begins to be slow",
        "throughput afterwards, of what it was in good health",
        "workers that were found slow and are not",
    ),
    "partition-workers": (
        "a worker that is cut off is left out, at the latest",
        "it is back after its line is mended, at the latest",
        "steps that it committed while left out",
    ),
    "partition-coordinators": (
        "requests that the minority answered",
        "entries that the minority committed",
        "the minority's worker is left out, at the latest",
        "leaders that the nodes follow in the end",
    ),
    "drop-packets": ("a training step is delayed in bad weather by, at the latest",),
    "delay-packets": ("a training step is delayed in bad weather by, at the latest",),
    "full-disk": ("times it said why", "a training step is delayed by a full disk by, at the latest"),
    "nan-gradient": (
        "with --on-nan stop the error names step and shard",
        "steps that were left out, and whose shard it was",
    ),
    "corrupt-checkpoint": (
        "resumes that warned of the damaged checkpoint",
        "the one before it was used",
        "the run's outcome",
    ),
    "lose-node-and-rejoin": (
        "survivors commit their next step after the loss, at the latest",
        "all workers train together again, at the latest",
        "times the node came back by a snapshot",
    ),
}

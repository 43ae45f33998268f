"""New lines of a log that was cut and requested again: none is lost, and none is repeated.

A server serves lines from a second on, not from a line on. So a stream that is opened again begins a little
earlier, and repeated lines are recognized by their time and a hash of their text. Equal lines of one time
are counted: the third of them is new when two were received.
"""

from collections import Counter
from hashlib import blake2b

from paceline.k8s.diagnose.pods import rank_of
from paceline.k8s.diagnose.snapshot import Object, name_of
from paceline.k8s.objects import read_time, write_time

_OVERLAP_S = 2.0  # servers cut times down to seconds, and lines of one moment may arrive in any order
_KEPT_S = 30.0


class LogCursor:
    """Position in one container's log."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, bytes]] = Counter()
        self._again: Counter[tuple[str, bytes]] = Counter()  # lines of the open stream
        self._newest_s: float | None = None
        self._pruned_s = 0.0
        self._stamp = ""
        self.news = 0  # lines that were new so far

    @property
    def since(self) -> str:
        """Start time of a stream that is opened now; empty: from the start."""
        return "" if self._newest_s is None else write_time(self._newest_s - _OVERLAP_S)

    def opened(self) -> None:
        """A stream begins: at `since`, which repeats what is known."""
        self._again = Counter()

    def take(self, line: str) -> str | None:
        """The text of a line `TIME TEXT`; None for one that was there before."""
        stamp, _, text = line.partition(" ")
        at_s = read_time(stamp)
        if at_s is None:  # no line of a container: a word of the kubelet's
            stamp = self._stamp
            text = line
        else:
            self._stamp = stamp
            self._newest_s = at_s if self._newest_s is None else max(at_s, self._newest_s)
        key = (stamp, blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())
        self._again[key] += 1
        if self._again[key] <= self._seen[key]:
            return None
        self._seen[key] += 1
        self.news += 1
        self._prune()
        return text

    def _prune(self) -> None:
        """Drop lines that no stream can repeat, so that memory does not grow with the log."""
        if self._newest_s is None or self._newest_s - self._pruned_s < 2 * _KEPT_S:
            return
        self._pruned_s = self._newest_s
        for counted in (self._seen, self._again):
            for key in [key for key in counted if (read_time(key[0]) or 0.0) < self._newest_s - _KEPT_S]:
                del counted[key]


def prefix_of(pod: Object, job: str) -> str:
    rank = rank_of(pod)
    short = name_of(pod).removeprefix(f"{job}-") or name_of(pod)
    return f"[{short}]" if rank is None else f"[r{rank} {short}]"

"""Is anybody of a run still there? Said only of this machine, where a process that ended can be seen.

A command that was killed at once (`kill -9`) writes no last word. Whoever follows the log
must find out by the processes that it names; those of other machines nobody here can see.
"""

import socket

from paceline.watch.process_door import lives
from paceline.watch.run_track import RunTrack


def is_deserted(track: RunTrack) -> bool:
    """The launcher and all workers that began are gone, and none of them said that it ended."""
    here = socket.gethostname()
    if track.is_over or track.launcher_pid is None or track.launcher_node != here:
        return False
    workers = [w for w in track.workers.values() if w.has_started and not w.is_finished]
    if any(worker.node not in (None, here) for worker in workers):
        return False
    pids = [track.launcher_pid, *(worker.pid for worker in workers if worker.pid is not None)]
    return not any(map(lives, pids))

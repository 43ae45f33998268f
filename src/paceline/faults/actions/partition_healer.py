"""Heals an injected coordinator partition when its time is over or its owner has ended.

`python -m paceline.faults.actions.partition_healer RUN SECONDS ACTION TARGET` asks the nodes of the run's
coordinator to accept all peers again: when the run has ended, on SIGTERM, and when its parent exits, which
closes stdin. It writes that to the run's log. After SECONDS it only writes: the nodes end the partition
themselves, and another one may have begun by then.
"""

import subprocess
import sys
from pathlib import Path

from paceline.coordinator import run_endpoint
from paceline.core.clock import monotonic_s
from paceline.faults.actions import sigstop
from paceline.faults.actions.partition import NetworkPartition

MODULE = "paceline.faults.actions.partition_healer"
WHO = "partition"  # name of the holder file: one per run
POLL_S = 0.5


def begin(run_dir: Path, for_s: float, action_id: str, target: str) -> subprocess.Popen[bytes]:
    return sigstop.start(run_dir, WHO, MODULE, [str(run_dir), f"{for_s:g}", action_id, target])


def end(run_dir: Path) -> bool:
    """Heal now; False: no healer is running."""
    return sigstop.end(run_dir, WHO, MODULE)


def main(run_dir: Path, for_s: float, action_id: str, target: str) -> None:
    until_s = monotonic_s() + for_s
    with NetworkPartition.of(run_dir) as partition:  # connect now: later the run's folder may be gone
        with sigstop.registered_holder(run_dir, WHO) as why:
            while (left_s := until_s - monotonic_s()) > 0:
                if not (run_dir / run_endpoint.FILE_NAME).exists():
                    why.text = "the run has ended"
                    break
                if sigstop.is_parent_gone(min(left_s, POLL_S)):
                    why.text = "the requesting command has exited"
                    break
            else:
                why.is_in_time = True
        missed = [] if why.is_in_time else partition.heal()
    silent = f"; {', '.join(f'node-{node}' for node in missed)} did not respond" if missed else ""
    sigstop.log_release(
        run_dir, target, action_id, action="heal", note=f"{target} was reconnected: {why.text}{silent}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4])

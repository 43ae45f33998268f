"""Who mends a cut when its time is over, or whoever wanted it is gone? A small process that waits for that.

`python -m paceline.app.actions.mender RUN SECONDS WISH TARGET` asks the nodes of the run's coordinator to
hear everybody again: when the run is over, when it is told to end, and when whoever started it
is gone, which closes its stdin. It says so in the run's log. When the time is over it only says so: the
nodes mend it themselves, and by then somebody may have made another cut.
"""

import subprocess
import sys
from pathlib import Path

from paceline.app import run_seat
from paceline.app.actions import hold
from paceline.app.actions.apart import Apart
from paceline.clock import monotonic_s

MODULE = "paceline.app.actions.mender"
WHO = "partition"  # of a run there is one at a time
LOOK_S = 0.5


def begin(run_dir: Path, for_s: float, wish: str, target: str) -> subprocess.Popen[bytes]:
    return hold.start(run_dir, WHO, MODULE, [str(run_dir), f"{for_s:g}", wish, target])


def end(run_dir: Path) -> bool:
    """Mend it now; False: nobody waits for that."""
    return hold.end(run_dir, WHO, MODULE)


def main(run_dir: Path, for_s: float, wish: str, target: str) -> None:
    until_s = monotonic_s() + for_s
    with Apart.of(run_dir) as apart:  # now: later the run's folder may be gone
        with hold.found_by_others(run_dir, WHO) as why:
            while (left_s := until_s - monotonic_s()) > 0:
                if not (run_dir / run_seat.NAME).exists():
                    why.words = "the run is over"
                    break
                if hold.is_alone(min(left_s, LOOK_S)):
                    why.words = "whoever wanted it is gone"
                    break
            else:
                why.is_in_time = True
        missed = [] if why.is_in_time else apart.mend()
    silent = f"; {', '.join(f'node-{node}' for node in missed)} did not answer" if missed else ""
    hold.tell(run_dir, target, wish, action="heal", note=f"{target} was let back in: {why.words}{silent}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4])

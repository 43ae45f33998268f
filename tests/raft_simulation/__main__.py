"""`python -m tests.raft_simulation`: see run.py."""

import sys

from tests.raft_simulation.run import main

if __name__ == "__main__":
    sys.exit(main())

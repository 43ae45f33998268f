"""`python -m paceline.laws [--mode M] [--subject module:Class] [--peer P]`: one JSON line per law.

The command `paceline laws` runs this in a process of its own, because torch is
imported here and never in the command.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from paceline.core.errors import PacelineError
from paceline.core.processes import die_with_parent
from paceline.launchers.local import LocalLauncher

if TYPE_CHECKING:
    from paceline.laws.peers.runner import PeerResult
    from paceline.laws.runner import LawResult


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode")
    parser.add_argument("--subject")
    parser.add_argument("--peer")
    options = parser.parse_args()
    with LocalLauncher() as launcher:  # begins to import torch in its helper while we do it here
        from paceline.worker.wiring import channel_of

        try:
            if options.subject is not None:
                channel_of(options.subject)
        except PacelineError as error:
            print(json.dumps({"error": error.to_dicts()}), flush=True)
            return
        for result in _results(options, launcher):
            print(json.dumps(asdict(result)), flush=True)


def _results(
    options: argparse.Namespace, launcher: LocalLauncher
) -> "Iterator[LawResult] | Iterator[PeerResult]":
    from paceline.laws.peers.runner import PEERS, check_peer
    from paceline.laws.runner import check_laws

    if options.peer is not None:
        return check_peer(PEERS[options.peer], launcher)
    return check_laws(options.mode, subject=options.subject, launcher=launcher)


if __name__ == "__main__":
    main()

"""`python -m paceline.laws [--mode M] [--subject module:Class]`: one JSON line per law.

The command `paceline laws` runs this in a process of its own, because torch is
imported here and never in the command.
"""

import argparse
import json
from dataclasses import asdict

from paceline.errors import PacelineError
from paceline.launchers.local import LocalLauncher
from paceline.worker.kernel import die_with_parent


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode")
    parser.add_argument("--subject")
    options = parser.parse_args()
    with LocalLauncher() as launcher:  # begins to import torch in its helper while we do it here
        from paceline.laws.run import check_laws
        from paceline.worker.wiring import channel_of

        try:
            if options.subject is not None:
                channel_of(options.subject)
        except PacelineError as error:
            print(json.dumps({"error": error.told()}), flush=True)
            return
        for result in check_laws(options.mode, subject=options.subject, launcher=launcher):
            print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()

"""The file elastic.json: how commands reach the coordinator of a run that is training.

It names the coordinator, the run's name there, and the file that holds the token, but not the
token itself. Only its owner can read it, and it is deleted when the run ends.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.core.disk import read_private, write_private
from paceline.core.errors import ExitCode, PacelineError
from paceline.plan.codec import Json, read
from paceline.plan.plan import Elastic

FILE_NAME = "elastic.json"


class NotResizableError(PacelineError):
    """The run is not of the kind whose workers come and go."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E322"


class NotRunningError(PacelineError):
    """Nobody trains there."""

    exit_code = ExitCode.UNREACHABLE
    code = "E323"


@dataclass(frozen=True, slots=True)
class RunEndpoint:
    run: str  # its name at the coordinator
    addresses: tuple[str, ...]
    token_file: Path
    elastic: Elastic
    shards: int


@contextmanager
def published(run_dir: Path, seat: Mapping[str, Json]) -> Iterator[None]:
    """While the run is at work."""
    path = run_dir / FILE_NAME
    path.unlink(missing_ok=True)  # of a command that was killed
    write_private(path, (json.dumps(dict(seat), indent=2) + "\n").encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def find_endpoint(run_dir: Path) -> RunEndpoint:
    plan = read(run_dir / "plan.json")
    if plan.elastic is None:
        raise NotResizableError(
            f"the run in {run_dir} is not elastic: its workers are those it began with",
            "begin it with --elastic, or with --shards 12 to let it grow to 12 workers",
        )
    path = run_dir / FILE_NAME
    if not path.exists():
        raise NotRunningError(
            f"the run in {run_dir} is not at work",
            f"it has ended, or goes on with:  paceline train --resume {run_dir}",
        )
    said = json.loads(read_private(path))
    return RunEndpoint(
        run=str(said["run"]),
        addresses=tuple(str(said["addresses"]).split(",")),
        token_file=Path(said["token_file"]),
        elastic=plan.elastic,
        shards=plan.num_workers,
    )

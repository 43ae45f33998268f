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
    """The run is not elastic: its number of workers is fixed."""

    exit_code = ExitCode.BAD_CONFIG
    code = "E322"


class NotRunningError(PacelineError):
    """The run is not training."""

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
def published(run_dir: Path, endpoint: Mapping[str, Json]) -> Iterator[None]:
    """Publish the endpoint while the block runs."""
    path = run_dir / FILE_NAME
    path.unlink(missing_ok=True)  # left by a killed command
    write_private(path, (json.dumps(dict(endpoint), indent=2) + "\n").encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def find_endpoint(run_dir: Path) -> RunEndpoint:
    plan = read(run_dir / "plan.json")
    if plan.elastic is None:
        raise NotResizableError(
            f"the run in {run_dir} is not elastic: its workers are fixed",
            "start it with --elastic, or with --shards 12 for up to 12 workers",
        )
    path = run_dir / FILE_NAME
    if not path.exists():
        raise NotRunningError(
            f"the run in {run_dir} is not running",
            f"if it did not finish, resume it:  paceline train --resume {run_dir}",
        )
    content = json.loads(read_private(path))
    return RunEndpoint(
        run=str(content["run"]),
        addresses=tuple(str(content["addresses"]).split(",")),
        token_file=Path(content["token_file"]),
        elastic=plan.elastic,
        shards=plan.num_workers,
    )

"""Run endpoint: how the launcher, the workers and all commands reach the coordinator of a run.

A `CoordinatorEndpoint` has the addresses of the coordinator, the run's name there, and the path
of the credentials, never the credentials themselves: `client.endpoints.open_coordinators` reads
them. A training run publishes its endpoint in the file elastic.json, which only its owner can
read, and which is deleted when the run ends.

This module does not import grpc: the process from which workers are forked reads endpoints.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

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
class TokenFile:
    """A file with a token, or with tokens by role. Only for addresses on loopback."""

    path: Path


@dataclass(frozen=True, slots=True)
class TlsFolder:
    """A folder with certificates of `paceline coordinator init-pki`."""

    folder: Path
    name: str | None = None  # whose certificate; None: that of the caller's role


Credentials = TokenFile | TlsFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinators:
    """Coordinator nodes that run already, and where the credentials to call them are stored."""

    addresses: tuple[str, ...]
    credentials: Credentials

    def to_dict(self) -> dict[str, Json]:
        """As JSON, with absolute paths: the reader may have another working directory.

        Symbolic links stay, because a mounted secret is replaced by changing one.
        """
        fields: dict[str, Json] = {"addresses": ",".join(self.addresses)}
        match self.credentials:
            case TokenFile(path):
                fields["token_file"] = str(path.absolute())
            case TlsFolder(folder, name):
                fields["tls_dir"] = str(folder.absolute())
                fields["tls_name"] = name
            case _:
                assert_never(self.credentials)
        return fields

    @classmethod
    def read(cls, fields: Mapping[str, Json]) -> "Coordinators":
        addresses = tuple(str(fields["addresses"]).split(","))
        if "tls_dir" not in fields:
            return cls(addresses=addresses, credentials=TokenFile(Path(str(fields["token_file"]))))
        name = fields["tls_name"]
        folder = TlsFolder(Path(str(fields["tls_dir"])), None if name is None else str(name))
        return cls(addresses=addresses, credentials=folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorEndpoint:
    """A run at its coordinator."""

    coordinators: Coordinators
    run: str  # its name at the coordinator

    def to_dict(self) -> dict[str, Json]:
        return {**self.coordinators.to_dict(), "run": self.run}

    @classmethod
    def read(cls, fields: Mapping[str, Json]) -> "CoordinatorEndpoint":
        return cls(coordinators=Coordinators.read(fields), run=str(fields["run"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEndpoint(CoordinatorEndpoint):
    """The endpoint of a run that is training, and the limits of its plan."""

    elastic: Elastic
    shards: int


@contextmanager
def published(run_dir: Path, endpoint: CoordinatorEndpoint) -> Iterator[None]:
    """Publish the endpoint while the block runs."""
    path = run_dir / FILE_NAME
    path.unlink(missing_ok=True)  # left by a killed command
    write_private(path, (json.dumps(endpoint.to_dict(), indent=2) + "\n").encode())
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
    endpoint = CoordinatorEndpoint.read(json.loads(read_private(path)))
    return RunEndpoint(
        coordinators=endpoint.coordinators, run=endpoint.run, elastic=plan.elastic, shards=plan.num_workers
    )

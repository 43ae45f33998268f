"""`paceline job results`: what a job wrote to its volume, brought here."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.cluster_options import file_options
from paceline.cli.job_place import place_options
from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.app.cluster_reach import Place
    from paceline.plan.codec import Json


@click.command("results")
@click.argument("name", metavar="NAME")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where files go here."
)
@click.option("--pvc", "claim", metavar="CLAIM", help="The claim. [default: the one that the job writes to]")
@click.option(
    "--path", metavar="PATH", help="The folder on the volume; . is all of it. [default: called like the job]"
)
@file_options
@common_options
@place_options
def results(
    session: Session,
    place: "Place",
    *,
    name: str,
    out: Path,
    claim: str | None,
    path: str | None,
    image: str | None,
    force: bool,
) -> None:
    """Fetch what a job wrote to its volume, while it runs or after it has ended.

    A pod that lives only for this gives it out in chunks, each with its checksum. Given again, it fetches
    only what is not here yet. A file here that differs from the one there is replaced.
    """
    from paceline.app.results import Asked, fetch_results
    from paceline.cli.units import short_bytes
    from paceline.cli.watch_bytes import open_byte_watcher
    from paceline.kube.checks.finding import counted
    from paceline.kube.transfer.helper import IMAGE

    asked = Asked(
        name=name, out=session.folder / out, claim=claim, path=path, image=image or IMAGE, force=force
    )
    with open_byte_watcher(session, "results") as on_bytes:
        done = fetch_results(asked, place, lambda text: say(session, text), on_bytes)
    got = done.fetched
    lines = [
        f"here       {counted(got.files, 'file')}, {short_bytes(got.bytes)}, checksums equal, in {out}",
        f"fetched    {counted(got.got_files, 'file')}, {short_bytes(got.got_bytes)}; the rest was here",
    ]
    answer: dict[str, Json] = {
        "claim": done.claim,
        "path": done.path,
        "out": str(out),
        "files": got.files,
        "bytes": got.bytes,
        "fetched_files": got.got_files,
        "fetched_bytes": got.got_bytes,
    }
    emit(session, "job.results", answer, lines)

"""`paceline data upload`: files onto a volume of a cluster."""

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


@click.command("upload")
@click.argument("source", metavar="FILE|FOLDER", type=click.Path(path_type=Path))
@click.option("--pvc", "claim", required=True, metavar="CLAIM", help="The claim whose volume it goes to.")
@click.option("--to", default="", metavar="PATH", help="A folder on the volume. [default: its top]")
@file_options
@common_options
@place_options
def upload(
    session: Session,
    place: "Place",
    *,
    source: Path,
    claim: str,
    to: str,
    image: str | None,
    force: bool,
) -> None:
    """Bring a file, or a folder with all that is in it, onto a volume of a cluster.

    A pod that lives only for this carries it in chunks, each with its checksum. A job sees every file whole
    or not at all. Given again after a cut or Ctrl-C, it sends only what is missing. A file of the same name
    is replaced. What was sent is listed in `.paceline/upload-….sha256` beside it.
    """
    from paceline.app.upload import plan_upload
    from paceline.app.upload import upload as send
    from paceline.cli.units import short_bytes
    from paceline.cli.watch_bytes import open_byte_watcher
    from paceline.kube.checks.finding import counted
    from paceline.kube.transfer.helper import IMAGE

    with open_byte_watcher(session, "reading") as on_bytes:
        planned = plan_upload(session.folder / source, claim, to, force=force, on_bytes=on_bytes)
    where = f"claim {claim}, {planned.folder or 'its top'}"
    amount = f"{counted(len(planned.files), 'file')}, {short_bytes(planned.bytes)}"
    say(session, f"plan: {amount}, {counted(planned.chunks, 'chunk')}, to {where}")
    with open_byte_watcher(session, "upload") as on_bytes:
        done = send(planned, place, image or IMAGE, lambda text: say(session, text), on_bytes)
    manifest = f"{planned.folder}/{done.manifest}".lstrip("/")
    sent = f"{counted(done.sent_files, 'file')}, {short_bytes(done.sent_bytes)}"
    lines = [
        f"there      {counted(done.files, 'file')}, {short_bytes(done.bytes)}, checksums equal ({where})",
        f"sent       {sent}, in {counted(done.chunks, 'chunk')}; the rest was there",
        f"manifest   {manifest} (check with sha256sum -c)",
    ]
    answer: dict[str, Json] = {
        "claim": claim,
        "to": planned.folder,
        "files": done.files,
        "bytes": done.bytes,
        "sent_files": done.sent_files,
        "sent_bytes": done.sent_bytes,
        "chunks": done.chunks,
        "manifest": manifest,
    }
    emit(session, "data.upload", answer, lines)

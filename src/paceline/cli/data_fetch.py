"""`paceline data fetch`: a data set that a built-in task trains on, from the network to its folder."""

import dataclasses
from pathlib import Path

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session


@click.command("fetch")
@click.argument("data_set", metavar="DATA_SET", type=click.Choice(["cifar10"]))
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where it goes. [default: $PACELINE_DATA_FOLDER, else ~/.cache/paceline, where tasks look]",
)
@click.option("--url", help="Another source of the same archive. [default: its authors' own]")
@click.option(
    "--sha256", metavar="HEX", help="Of another archive than the official one, if that is what you want."
)
@common_options
def fetch(session: Session, data_set: str, to: Path | None, url: str | None, sha256: str | None) -> None:
    """Download DATA_SET (cifar10, 170 MB), prove it by its checksum, and unpack it.

    What was interrupted goes on where it was. An archive that is there already, however it came, is
    proved and unpacked without a network.
    """
    from paceline import environ
    from paceline.app.fetch import SHA256, URL, fetch_cifar10
    from paceline.cli.watch_bytes import open_byte_watcher

    folder = environ.data_folder() if to is None else session.folder / to
    with open_byte_watcher(session, data_set) as on_bytes:
        done = fetch_cifar10(
            folder, url=url or URL, sha256=(sha256 or SHA256).strip().lower(), on_bytes=on_bytes
        )
    facts = {**dataclasses.asdict(done), "folder": str(done.folder), "data_set": data_set}
    count = f"{done.training_images:,} training and {done.test_images:,} test images"
    named = "" if to is None else f" --data {done.folder}"
    lines = [
        f"{count} {'were already' if done.was_there else 'are'} in {done.folder}",
        f"next: paceline train --task {data_set}{named}",
    ]
    emit(session, "data.fetch", facts, lines)

"""`paceline data shard` and `verify`: a data set in shards, to a folder or an object store, and its proof."""

from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session
from paceline.errors import ExitCode

if TYPE_CHECKING:
    from paceline.plan.codec import Json


@click.command("shard")
@click.argument("what", metavar="DATA_SET_OR_FILE…", nargs=-1, required=True)
@click.option("--out", required=True, metavar="URL", help="Where it goes: s3://BUCKET/PREFIX, or a folder.")
@click.option(
    "--samples-per-shard",
    type=click.IntRange(1),
    metavar="N",
    help="Samples (of charlm: characters) in one file. [default: as many as make 16 MB]",
)
@common_options
def shard(session: Session, what: tuple[str, ...], out: str, samples_per_shard: int | None) -> None:
    """Write a data set in shards that workers can read from anywhere, with an index and checksums.

    \b
    paceline data shard charlm a.txt b.txt --out s3://bucket/text
    paceline data shard cifar10 --out s3://bucket/images
    paceline data shard sp500 sp500_classification.npz --out shards
    paceline data shard rows-1.npz rows-2.npz --out s3://bucket/rows

    Run again, it writes only what is not there yet, or is not as it should be. Credentials and
    endpoint come from the usual AWS variables and files.
    """
    from paceline.app.shard import shard as write
    from paceline.cli.units import short_bytes
    from paceline.cli.watch_bytes import open_byte_watcher

    with open_byte_watcher(session, "shards") as on_bytes:
        done = write(what, out=_placed(session, out), shard_records=samples_per_shard, on_bytes=on_bytes)
    task = done.index.task
    records = {name: part.records for name, part in done.index.parts.items()}
    counted = ", ".join(f"{name} {count:,}" for name, count in records.items())
    named = task if task != "arrays" else "module:Class"
    lines = [
        f"samples   {counted}; {short_bytes(done.bytes)}",
        f"shards    {done.shards}, of which {done.shards - done.written} were already there",
        f"next: paceline train --task {named} --data {out}",
    ]
    answer: dict[str, Json] = {
        "task": task,
        "out": out,
        "samples": dict(records),
        "shards": done.shards,
        "written": done.written,
        "bytes": done.bytes,
    }
    emit(session, "data.shard", answer, lines)


@click.command("verify")
@click.argument("url", metavar="URL")
@common_options
def verify(session: Session, url: str) -> int:
    """Read all of a data set in shards, and prove it by its checksums."""
    from paceline.app.shard import verify as prove
    from paceline.cli.units import short_bytes
    from paceline.cli.watch_bytes import open_byte_watcher

    with open_byte_watcher(session, "verify") as on_bytes:
        found = prove(_placed(session, url), on_bytes)
    counted = ", ".join(f"{name} {count:,}" for name, count in found.records.items())
    verdict = f"{len(found.wrong)} of {found.shards} shards are WRONG" if found.wrong else "all are right"
    lines = [
        f"{found.task}: {counted}; {short_bytes(found.bytes)} in {found.shards} shards",
        *found.wrong,
        verdict if not found.wrong else f"{verdict}; write them again: paceline data shard … --out {url}",
    ]
    answer: dict[str, Json] = {
        "task": found.task,
        "samples": dict(found.records),
        "shards": found.shards,
        "bytes": found.bytes,
        "wrong": list(found.wrong),
    }
    emit(session, "data.verify", answer, lines)
    return ExitCode.GATE_FAILED if found.wrong else ExitCode.OK


def _placed(session: Session, said: str) -> str:
    """A folder is relative to where the command was given."""
    from paceline.plan.data_url import is_url

    return said if is_url(said) else str(session.folder / said)

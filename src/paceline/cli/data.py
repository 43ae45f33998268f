"""`paceline data`: download, prepare, shard and verify data sets, and upload them to a cluster."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.k8s_options import k8s_target_options, transfer_options
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode
from paceline.core.humanize import pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.datasets.sp500 import Part, Prepared
    from paceline.k8s.client.connection import ClusterTarget
    from paceline.plan.codec import Json


@click.command("fetch")
@click.argument("data_set", metavar="DATA_SET", type=click.Choice(["cifar10"]))
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Target folder. [default: $PACELINE_DATA_FOLDER, else ~/.cache/paceline, the default of tasks]",
)
@click.option("--url", help="URL of a mirror of the archive. [default: the authors' server]")
@click.option("--sha256", metavar="HEX", help="Expected SHA-256 of an archive other than the official one.")
@common_options
def fetch(session: Session, data_set: str, to: Path | None, url: str | None, sha256: str | None) -> None:
    """Download DATA_SET (cifar10, 170 MB), verify its checksum and unpack it.

    An interrupted download is resumed. An archive that is already in the folder is verified and
    unpacked without network access.
    """
    from paceline.core import environ
    from paceline.tasks.cifar10.download import SHA256, URL, fetch_cifar10
    from paceline.training.progress_display import open_byte_watcher

    folder = environ.data_folder() if to is None else session.folder / to
    with open_byte_watcher(session, data_set) as on_bytes:
        fetched = fetch_cifar10(
            folder, url=url or URL, sha256=(sha256 or SHA256).strip().lower(), on_bytes=on_bytes
        )
    facts = {**dataclasses.asdict(fetched), "folder": str(fetched.folder), "data_set": data_set}
    count = f"{fetched.training_images:,} training and {fetched.test_images:,} test images"
    named = "" if to is None else f" --data {fetched.folder}"
    lines = [
        f"{count} {'were already' if fetched.was_there else 'are'} in {fetched.folder}",
        f"next: paceline train --task {data_set}{named}",
    ]
    emit(session, "data.fetch", facts, lines)


@click.group("prepare")
@common_options
def prepare(session: Session) -> None:
    """Convert your own files to the format of a built-in task."""


@prepare.command("sp500")
@click.option(
    "--csv", type=click.Path(path_type=Path), required=True, help="Input file with daily closes: date, close."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("sp500_classification.npz"),
    show_default=True,
    help="Output file.",
)
@click.option(
    "--window",
    type=click.IntRange(1, 10_000),
    default=30,
    show_default=True,
    help="Number of days per sample.",
)
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="Fraction of the samples, the latest ones, for the test set.",
)
@click.option(
    "--max-gap-days",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Maximum gap between two closes, in calendar days.",
)
@click.option("--date-column", metavar="NAME", help="Date column. [default: detected by name]")
@click.option("--close-column", metavar="NAME", help="Close column. [default: detected by name]")
@common_options
def sp500(
    session: Session,
    csv: Path,
    out: Path,
    window: int,
    test_fraction: float,
    max_gap_days: int,
    date_column: str | None,
    close_column: str | None,
) -> None:
    """Convert daily closes to samples of the task sp500, which predicts whether the index rises tomorrow.

    Training samples precede test samples in time, with a gap of dropped days between them,
    so that no sample contains information from a later day.
    """
    from paceline.datasets.sp500 import Columns, read_closes
    from paceline.datasets.sp500 import prepare as prepare_sp500

    columns = Columns(date=date_column, close=close_column)
    closes = read_closes(session.folder / csv, columns, max_gap_days=max_gap_days)
    done = prepare_sp500(closes, session.folder / out, window=window, test_fraction=test_fraction)
    _show_prepared(session, done)


def _show_prepared(session: Session, done: "Prepared") -> None:
    from paceline.datasets.sp500 import FEATURES

    lines = [
        f"closes        {done.closes} days; {done.rows_without_close} rows without a close were skipped",
        f"windows       {done.window} days of {', '.join(FEATURES)}",
        f"training      {_describe(done.train)}",
        f"dropped       {done.embargo} samples between training and test, so that they share no day",
        f"test          {_describe(done.test)}",
        f"written       {done.out}",
    ]
    answer: dict[str, Json] = {
        "out": str(done.out),
        "sha256": done.sha256,
        "closes": done.closes,
        "rows_without_close": done.rows_without_close,
        "window": done.window,
        "features": list(FEATURES),
        "embargo": done.embargo,
        "train": _as_json(done.train),
        "test": _as_json(done.test),
    }
    emit(session, "data.prepare", answer, lines)
    print_message(session, f"next: paceline train --task sp500 --task-option npz_path={done.out} --epochs 25")


def _describe(part: "Part") -> str:
    return f"{part.samples} samples, {part.first} to {part.last}; up in {part.up_rate:.1%}"


def _as_json(part: "Part") -> "Json":
    return {
        "samples": part.samples,
        "first": part.first.isoformat(),
        "last": part.last.isoformat(),
        "up_rate": part.up_rate,
    }


@click.command("shard")
@click.argument("what", metavar="DATA_SET_OR_FILE…", nargs=-1, required=True)
@click.option("--out", required=True, metavar="URL", help="Output location: s3://BUCKET/PREFIX or a folder.")
@click.option(
    "--samples-per-shard",
    type=click.IntRange(1),
    metavar="N",
    help="Samples (charlm: characters) per shard. [default: as many as make 16 MB]",
)
@common_options
def shard(session: Session, what: tuple[str, ...], out: str, samples_per_shard: int | None) -> None:
    """Write a data set in shards that workers can read from anywhere, with an index and checksums.

    \b
    paceline data shard charlm a.txt b.txt --out s3://bucket/text
    paceline data shard cifar10 --out s3://bucket/images
    paceline data shard sp500 sp500_classification.npz --out shards
    paceline data shard rows-1.npz rows-2.npz --out s3://bucket/rows

    Run the command again to write only missing or invalid shards. Credentials and
    endpoint come from the usual AWS variables and files.
    """
    from paceline.core.humanize import short_bytes
    from paceline.tasks.sharding import shard as write
    from paceline.training.progress_display import open_byte_watcher

    with open_byte_watcher(session, "shards") as on_bytes:
        done = write(what, out=_resolve_url(session, out), shard_records=samples_per_shard, on_bytes=on_bytes)
    task = done.index.task
    records = {name: part.records for name, part in done.index.parts.items()}
    counted = ", ".join(f"{name} {count:,}" for name, count in records.items())
    named = task if task != "arrays" else "module:Class"
    lines = [
        f"samples   {counted}; {short_bytes(done.bytes)}",
        f"shards    {done.shards}, {done.shards - done.written} of them already present",
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
    """Read a sharded data set and verify its checksums."""
    from paceline.core.humanize import short_bytes
    from paceline.tasks.sharding import verify as prove
    from paceline.training.progress_display import open_byte_watcher

    with open_byte_watcher(session, "verify") as on_bytes:
        found = prove(_resolve_url(session, url), on_bytes)
    counted = ", ".join(f"{name} {count:,}" for name, count in found.records.items())
    verdict = (
        f"{len(found.wrong)} of {found.shards} shards are INVALID" if found.wrong else "all shards are valid"
    )
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


def _resolve_url(session: Session, given: str) -> str:
    """A URL as it is; a folder resolved against the working directory."""
    from paceline.plan.urls import is_url

    return given if is_url(given) else str(session.folder / given)


@click.command("tokens")
@click.argument("source", metavar="SOURCE")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="Output folder."
)
@click.option(
    "--tokenizer",
    default="bytes",
    metavar="NAME",
    help="Path of a tokenizer.json or its folder, or a name on the Hugging Face hub. [default: bytes]",
)
@click.option("--split", default="train", metavar="NAME", help="Split of the data set. [default: train]")
@click.option("--column", default="text", metavar="NAME", help="Text column. [default: text]")
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help="Maximum number of tokens. [default: all]"
)
@common_options
def tokens(
    session: Session,
    source: str,
    out: Path,
    tokenizer: str,
    split: str,
    column: str,
    max_tokens: int | None,
) -> None:
    """Stream SOURCE and pack its tokens into FOLDER, for `paceline train --task llama --data FOLDER`.

    \b
    paceline data tokens hf://allenai/c4:en --tokenizer hf-internal-testing/llama-tokenizer \\
        --max-tokens 1000000000 --out c4
    paceline data tokens documents.jsonl --column body --out mine

    SOURCE is a data set of Hugging Face's hub, or a file that ends in .txt, .json, .jsonl, .csv or
    .parquet. Stopped and run again, it resumes after the last written document.
    """
    from paceline.datasets.tokens import pack_tokens
    from paceline.plan.codec import to_json

    resolved = source if source.startswith("hf://") else str(session.folder / source)
    about, was_there = pack_tokens(
        resolved, session.folder / out, tokenizer=tokenizer, split=split, column=column, most=max_tokens
    )
    count = f"{about.tokens:,} tokens of {about.documents:,} documents"
    lines = [
        f"{count} {'were already' if was_there else 'are'} in {out}; sha256 {about.sha256}",
        f"next: paceline train --task llama --data {out} --model llama_v3_1b --mode fsdp",
    ]
    facts = to_json(about)
    assert isinstance(facts, dict), "a dataclass becomes an object"
    emit(session, "data.tokens", {**facts, "out": str(out), "was_there": was_there}, lines)


@click.command("upload")
@click.argument("source", metavar="FILE|FOLDER", type=click.Path(path_type=Path))
@click.option("--pvc", "claim", required=True, metavar="CLAIM", help="PersistentVolumeClaim to upload to.")
@click.option("--to", default="", metavar="PATH", help="Folder on the volume. [default: its root]")
@transfer_options
@common_options
@k8s_target_options
def upload(
    session: Session,
    place: "ClusterTarget",
    *,
    source: Path,
    claim: str,
    to: str,
    image: str | None,
    force: bool,
) -> None:
    """Upload a file or a folder to a volume of a cluster.

    A temporary pod receives the files in chunks with checksums. A job sees each file complete or not at
    all. Run the command again to resume after an interruption: only missing chunks are sent. A file of
    the same name is replaced. The uploaded files are listed in `.paceline/upload-….sha256` next to them.
    """
    from paceline.core.humanize import short_bytes
    from paceline.k8s.transfer.pod_manifest import IMAGE
    from paceline.k8s.transfer.upload import plan_upload
    from paceline.k8s.transfer.upload import upload as send
    from paceline.training.progress_display import open_byte_watcher

    with open_byte_watcher(session, "reading") as on_bytes:
        planned = plan_upload(session.folder / source, claim, to, force=force, on_bytes=on_bytes)
    where = f"claim {claim}, {planned.folder or 'its root'}"
    amount = f"{pluralize(len(planned.files), 'file')}, {short_bytes(planned.bytes)}"
    print_message(session, f"plan: {amount}, {pluralize(planned.chunks, 'chunk')}, to {where}")
    with open_byte_watcher(session, "upload") as on_bytes:
        done = send(planned, place, image or IMAGE, lambda text: print_message(session, text), on_bytes)
    manifest = f"{planned.folder}/{done.manifest}".lstrip("/")
    sent = f"{pluralize(done.sent_files, 'file')}, {short_bytes(done.sent_bytes)}"
    lines = [
        f"present    {pluralize(done.files, 'file')}, {short_bytes(done.bytes)}, checksums equal ({where})",
        f"sent       {sent}, in {pluralize(done.chunks, 'chunk')}; the rest was already present",
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


@click.group("data")
@common_options
def data(session: Session) -> None:
    """Download, prepare, shard and upload datasets."""


data.add_command(fetch)
data.add_command(prepare)
data.add_command(shard)
data.add_command(verify)
data.add_command(tokens)
data.add_command(upload)

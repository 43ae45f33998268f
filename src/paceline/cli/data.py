"""`paceline data`: download, prepare, shard and verify data sets, and upload them to a cluster."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.k8s_options import k8s_target_options, transfer_options
from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ExitCode
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
    """Make a file that a built-in task reads out of files of your own."""


@prepare.command("sp500")
@click.option("--csv", type=click.Path(path_type=Path), required=True, help="Daily closes: date, close.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("sp500_classification.npz"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--window", type=click.IntRange(1, 10_000), default=30, show_default=True, help="Days in one sample."
)
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="The part of the samples, the latest ones, that is kept for the test.",
)
@click.option(
    "--max-gap-days",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="More calendar days than this between two closes are refused.",
)
@click.option("--date-column", metavar="NAME", help="The column of dates. [default: by its usual names]")
@click.option("--close-column", metavar="NAME", help="The column of closes. [default: by its usual names]")
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
    """Turn daily closes into samples of the task sp500: does the index rise tomorrow?

    Training samples come before test samples in time, with days dropped between them,
    and no sample knows anything of a later day.
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
        f"closes        {done.closes} days; {done.rows_without_close} rows without a close were left out",
        f"windows       {done.window} days of {', '.join(FEATURES)}",
        f"training      {_describe(done.train)}",
        f"dropped       {done.embargo} samples between them, so that the test shares no day with training",
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
    return f"{part.samples} samples, {part.first} to {part.last}; the next day is up in {part.up_rate:.1%}"


def _as_json(part: "Part") -> "Json":
    return {
        "samples": part.samples,
        "first": part.first.isoformat(),
        "last": part.last.isoformat(),
        "up_rate": part.up_rate,
    }


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
    from paceline.core.humanize import short_bytes
    from paceline.tasks.sharding import verify as prove
    from paceline.training.progress_display import open_byte_watcher

    with open_byte_watcher(session, "verify") as on_bytes:
        found = prove(_resolve_url(session, url), on_bytes)
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


def _resolve_url(session: Session, given: str) -> str:
    """A URL as it is; a folder resolved against the working directory."""
    from paceline.plan.urls import is_url

    return given if is_url(given) else str(session.folder / given)


@click.command("tokens")
@click.argument("source", metavar="SOURCE")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="Where they go."
)
@click.option(
    "--tokenizer",
    default="bytes",
    metavar="NAME",
    help="A tokenizer.json, its folder, or a name on Hugging Face's hub. [default: bytes]",
)
@click.option("--split", default="train", metavar="NAME", help="Which part of the data set. [default: train]")
@click.option("--column", default="text", metavar="NAME", help="Which column is the text. [default: text]")
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help="Stop there. [default: all there are]"
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
    .parquet. Stopped and run again, it goes on after the last document that was written.
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
@click.option("--pvc", "claim", required=True, metavar="CLAIM", help="The claim whose volume it goes to.")
@click.option("--to", default="", metavar="PATH", help="A folder on the volume. [default: its top]")
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
    """Bring a file, or a folder with all that is in it, onto a volume of a cluster.

    A pod that lives only for this carries it in chunks, each with its checksum. A job sees every file whole
    or not at all. Given again after a cut or Ctrl-C, it sends only what is missing. A file of the same name
    is replaced. What was sent is listed in `.paceline/upload-….sha256` beside it.
    """
    from paceline.core.humanize import short_bytes
    from paceline.k8s.check.findings import pluralize
    from paceline.k8s.transfer.pod_manifest import IMAGE
    from paceline.k8s.transfer.upload import plan_upload
    from paceline.k8s.transfer.upload import upload as send
    from paceline.training.progress_display import open_byte_watcher

    with open_byte_watcher(session, "reading") as on_bytes:
        planned = plan_upload(session.folder / source, claim, to, force=force, on_bytes=on_bytes)
    where = f"claim {claim}, {planned.folder or 'its top'}"
    amount = f"{pluralize(len(planned.files), 'file')}, {short_bytes(planned.bytes)}"
    print_message(session, f"plan: {amount}, {pluralize(planned.chunks, 'chunk')}, to {where}")
    with open_byte_watcher(session, "upload") as on_bytes:
        done = send(planned, place, image or IMAGE, lambda text: print_message(session, text), on_bytes)
    manifest = f"{planned.folder}/{done.manifest}".lstrip("/")
    sent = f"{pluralize(done.sent_files, 'file')}, {short_bytes(done.sent_bytes)}"
    lines = [
        f"there      {pluralize(done.files, 'file')}, {short_bytes(done.bytes)}, checksums equal ({where})",
        f"sent       {sent}, in {pluralize(done.chunks, 'chunk')}; the rest was there",
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
    """Get the data of built-in tasks, make it ready, and bring it to a cluster."""


data.add_command(fetch)
data.add_command(prepare)
data.add_command(shard)
data.add_command(verify)
data.add_command(tokens)
data.add_command(upload)

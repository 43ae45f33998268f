"""`paceline data tokens`: a stream of documents becomes a folder of packed tokens."""

from pathlib import Path

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit
from paceline.cli.session import Session


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
    from paceline.app.tokens import pack
    from paceline.plan.codec import to_json

    here = source if source.startswith("hf://") else str(session.folder / source)
    about, was_there = pack(
        here, session.folder / out, tokenizer=tokenizer, split=split, column=column, most=max_tokens
    )
    count = f"{about.tokens:,} tokens of {about.documents:,} documents"
    lines = [
        f"{count} {'were already' if was_there else 'are'} in {out}; sha256 {about.sha256}",
        f"next: paceline train --task llama --data {out} --model llama_v3_1b --mode fsdp",
    ]
    facts = to_json(about)
    assert isinstance(facts, dict), "a dataclass becomes an object"
    emit(session, "data.tokens", {**facts, "out": str(out), "was_there": was_there}, lines)

"""How does a stream of documents become a folder of packed tokens? Once, before anybody trains on them."""

from dataclasses import replace
from pathlib import Path

from paceline.datasets.hf_door import documents
from paceline.datasets.token_folder import About, read_about, write_tokens
from paceline.datasets.tokenizing import Words
from paceline.errors import Problem, TaskDataError


def pack(
    source: str, out: Path, *, tokenizer: str, split: str, column: str, most: int | None
) -> tuple[About, bool]:
    """What is there now, and whether it was already. A folder that was begun is gone on with."""
    words = Words(tokenizer)
    about = About(
        source=f"{source} split={split} column={column} most={most}",
        tokenizer=words.digest,
        vocabulary=words.count,
    )
    begun = read_about(out)
    if begun is not None and not begun.documents:
        begun = None  # it came to nothing, perhaps as the source was not reached: no reason to hold on to it
    if begun is not None:
        same = replace(begun, documents=0, tokens=0, sha256="")
        if same != about:
            what = f"{out} was begun with other words: {begun.source}, {begun.tokenizer[:12]}"
            raise TaskDataError([Problem(what, "name another folder, or say the same as then", "--out")])
        if begun.is_complete:
            return begun, True
    about = begun or about
    return write_tokens(
        out,
        documents(source, split=split, column=column, skip=about.documents),
        words,
        about,
        most=most,
    ), False

"""How does text come from Hugging Face's `datasets`? As a stream, document by document, in its own order.

`hf://allenai/c4:en` is a data set of the hub and its configuration; anything else is a
file here, by its ending (.txt, .json, .jsonl, .csv, .parquet), read by the same library in the
same way. The only file that knows the library.
"""

from collections.abc import Iterator
from pathlib import Path

from paceline.errors import ConfigError, NotReadyError, PacelineError, Problem

HUB = "hf://"
_KINDS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def documents(source: str, *, split: str, column: str, skip: int = 0) -> Iterator[str]:
    """The texts of this column, without the first `skip` of them."""
    try:
        import datasets
    except ImportError as error:
        raise NotReadyError(
            "streams of text need the package datasets, which is not installed",
            "pip install 'paceline[llama]'",
        ) from error
    path, more = _place(source)
    try:
        stream = datasets.load_dataset(path, **more, split=split, streaming=True)
        for number, row in enumerate(stream.skip(skip) if skip else stream):
            if column not in row:
                known = ", ".join(sorted(row))
                raise ConfigError(
                    [Problem(f"{source} has no column {column!r}", f"it has: {known}", "--column")]
                )
            text = row[column]
            if not isinstance(text, str):
                what = f"document {skip + number} of {source} is no text but a {type(text).__name__}"
                raise ConfigError([Problem(what, "name another column", "--column")])
            yield text
    except (ConfigError, GeneratorExit):
        raise
    except Exception as error:  # theirs: whatever the hub, its client, the network or a reader raises
        raise PacelineError(
            f"{source} could not be read: {error}", "what was written so far is kept: run it again"
        ) from error


def _place(source: str) -> tuple[str, dict[str, object]]:
    if source.startswith(HUB):
        name, _, configuration = source.removeprefix(HUB).partition(":")
        return name, {"name": configuration} if configuration else {}
    path = Path(source)
    kind = _KINDS.get(path.suffix.lower())
    if not path.is_file() or kind is None:
        what = f"there is no file {source!r}" if not path.is_file() else f"nobody knows what {source!r} is"
        hint = f"name a file that ends in {', '.join(_KINDS)}, or a data set: hf://allenai/c4:en"
        raise ConfigError([Problem(what, hint)])
    return kind, {"data_files": str(path)}

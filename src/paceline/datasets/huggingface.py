"""Text from Hugging Face's `datasets`: a stream of documents in the data set's own order.

`hf://allenai/c4:en` is a data set of the hub and its configuration (or a folder laid out as one,
`hf:///data/c4:en`); anything else is a file here, by its ending (.txt, .json, .jsonl, .csv,
.parquet), read by the same library in the same way. In a .txt, empty lines stand between documents.
The only file that knows the library.
"""

from collections.abc import Iterator
from pathlib import Path

from paceline.core.errors import ConfigError, MissingPackageError, PacelineError, Problem, TaskDataError
from paceline.storage.store import UnreachableStoreError

HUB = "hf://"
_KINDS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def stream_documents(source: str, *, split: str, column: str, skip: int = 0) -> Iterator[str]:
    """The texts of this column, without the first `skip` of them."""
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError(
            "streams of text need the package datasets, which is not installed",
            "pip install 'paceline[llama]'",
        ) from error
    path, more = _place(source)
    try:
        stream = datasets.load_dataset(path, **more, split=split, streaming=True)
        for number, row in enumerate(stream.skip(skip) if skip else stream):
            if column not in row:
                known = ", ".join(sorted(row))
                raise TaskDataError(
                    [Problem(f"{source} has no column {column!r}", f"it has: {known}", "--column")]
                )
            text = row[column]
            if not isinstance(text, str):
                message = f"document {skip + number} of {source} is of type {type(text).__name__}, not text"
                raise TaskDataError([Problem(message, "name another column", "--column")])
            yield text
    except (ConfigError, GeneratorExit):
        raise
    except ConnectionError as error:  # also where the machine was configured to stay offline
        raise UnreachableStoreError(f"{source} could not be reached: {error}", _hint(source)) from error
    except Exception as error:  # theirs: whatever the hub, its client, the network or a reader raises
        raise PacelineError(f"{source} could not be read: {error}", _hint(source)) from error


def _place(source: str) -> tuple[str, dict[str, object]]:
    if source.startswith(HUB):
        name, _, configuration = source.removeprefix(HUB).partition(":")
        return name, {"name": configuration} if configuration else {}
    path = Path(source)
    kind = _KINDS.get(path.suffix.lower())
    if not path.is_file() or kind is None:
        message = (
            f"there is no file {source!r}" if not path.is_file() else f"{source!r} has an unknown file type"
        )
        hint = f"name a file that ends in {', '.join(_KINDS)}, or a data set: hf://allenai/c4:en"
        raise TaskDataError([Problem(message, hint)])
    # By lines, as is its habit, every line would end a document.
    paragraphs = {"sample_by": "paragraph"} if kind == "text" else {}
    return kind, {"data_files": str(path), **paragraphs}


def _hint(source: str) -> str:
    again = "written data is kept, and the same command resumes"
    if not source.startswith(HUB):
        return again
    advice = "check the name, its configuration (hf://NAME:CONFIGURATION), --split and the network."
    return f"{advice} A local file needs no network: paceline data tokens FILE.jsonl; {again}"

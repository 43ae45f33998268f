"""How does a task open the data set it was told of? By its address; the cache is the machine's."""

from pathlib import Path

from paceline import environ
from paceline.datasets.cache import DEFAULT_MB, BlockCache
from paceline.datasets.errors import MissingDataError
from paceline.datasets.fetching import Fetcher
from paceline.datasets.index import Index
from paceline.datasets.reader import PartReader
from paceline.datasets.reading import read_index
from paceline.datasets.store import FolderStore, open_store

FOLDER = "shards"  # below the folder of fetched data


class DataSet:
    def __init__(self, url: str, index: Index, source: FolderStore | Fetcher) -> None:
        self.url, self.index, self._source = url, index, source

    def reader(self, part: str) -> PartReader:
        if part not in self.index.parts:
            has = ", ".join(self.index.parts) or "none"
            what = f"{self.url} has no part {part}; its parts are: {has}"
            raise MissingDataError(what, f"look at it: paceline data verify {self.url}")
        return PartReader(self.index.parts[part], self._source)


def open_data_set(url: str, *, cache: str | None = None, cache_mb: int | None = None) -> DataSet:
    """`cache`: the folder for what was read, and how large it may get; None: the user's own, and 10 GB."""
    store = open_store(url)
    index = read_index(store)
    if isinstance(store, FolderStore):
        return DataSet(store.url, index, store)
    folder = environ.data_folder() / FOLDER if cache is None else Path(cache)
    limit = DEFAULT_MB if cache_mb is None else cache_mb
    cached = Fetcher(store, BlockCache(folder, limit_bytes=limit * 1_000_000))
    return DataSet(store.url, index, cached)


def check_task(found: DataSet, task: str) -> DataSet:
    """Is it what this task makes of its files?"""
    if found.index.task == task:
        return found
    what = f"{found.url} holds samples of {found.index.task}, and not of {task}"
    raise MissingDataError(what, f"make them: paceline data shard {task} --out {found.url}-{task}")

"""How are the samples of sp500 read from a data set in shards? All at once: their means need them all."""

from paceline.datasets.opening import check_task, open_data_set
from paceline.datasets.reader import PartReader
from paceline.tasks.sp500_file import Labelled, Sp500File

TRAINING, TEST = "train", "test"
WINDOW, UP = "window", "up"


def read_stored_sp500(url: str, cache: str | None, cache_mb: int | None) -> Sp500File:
    found = check_task(open_data_set(url, cache=cache, cache_mb=cache_mb), "sp500")
    return Sp500File(_labelled(found.reader(TRAINING)), _labelled(found.reader(TEST)))


def _labelled(reader: PartReader) -> Labelled:
    records = reader.rows(range(len(reader)))
    return Labelled(records[WINDOW].copy(), records[UP].copy())

"""Time that training waits for remote data: a reader, a slow store, steps of 50 ms.

`python -m benchmarks.stored_data`: 154 MB in 50,000 records of a picture's size.
The store is a folder behind 30 ms and 100 MB/s for each read, as object stores
often are. Each row reads batches of 64 for some steps and counts what the step
had to wait; the room of the cache and the order of samples differ.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from paceline.core.clock import SystemClock
from paceline.datasets.fetching import BlockCache, Fetcher, read_index
from paceline.datasets.opening import DataSet, PartReader
from paceline.storage.store import FolderStore
from paceline.sync.samples import SampleStream
from paceline.tasks.sharding import shard
from paceline.worker.gradient import AHEAD

RESULT = Path(__file__).parent / "results" / "stored_data.json"
RECORDS, RECORD_BYTES, SHARD_RECORDS = 50_000, 3072, 2000
AWAY_S, BYTES_PER_S = 0.03, 100e6
BATCH, STEP_S = 64, 0.05


class FarFolder:
    """A folder, as slow as an object store."""

    def __init__(self, folder: Path) -> None:
        self.url, self._inner = f"far://{folder.name}", FolderStore(folder)
        self.reads, self.bytes = 0, 0

    def read(self, name: str, start: int, size: int | None) -> bytes:
        data = self._inner.read(name, start, size)
        SystemClock().sleep(AWAY_S + len(data) / BYTES_PER_S)
        self.reads, self.bytes = self.reads + 1, self.bytes + len(data)
        return data

    def sha256(self, name: str) -> str | None:
        return self._inner.sha256(name)

    def write(self, name: str, data: bytes, *, sha256: str) -> None:
        raise AssertionError("it is only read")


@dataclass(frozen=True, slots=True)
class Way:
    label: str
    steps: int
    cache_mb: int | None  # None: the folder itself
    block: int | None = None
    is_warm: bool = False  # the cache of the previous row is kept


@dataclass(frozen=True, slots=True)
class Row:
    way: Way
    waited_ms: float  # for each step
    first_ms: float
    reads: int
    megabytes: float


WAYS = (
    Way("a folder", 200, None),
    Way("cache holds all, empty", 200, 10_000),
    Way("cache holds all, warm", 200, 10_000, is_warm=True),
    Way("cache of a third, all mixed", 40, 50),
    Way("cache of a third, shuffle-block 1000", 200, 50, block=1000),
)


def measured(way: Way, folder: Path, cache: Path) -> Row:
    store, clock = FarFolder(folder), SystemClock()
    place = cache if way.is_warm else Path(tempfile.mkdtemp(dir=cache.parent))
    source = (
        FolderStore(folder)
        if way.cache_mb is None
        else Fetcher(store, BlockCache(place, limit_bytes=way.cache_mb * 1_000_000))
    )
    reader = DataSet(store.url, read_index(store), source).reader("train")
    stream = SampleStream(num_samples=len(reader), seed=0, block=way.block)
    waits_ms = []
    for step in range(way.steps):
        started = clock.now_ns()
        reader.take(stream.take(step * BATCH, BATCH))
        waits_ms.append((clock.now_ns() - started) / 1e6)
        _announce(reader, stream, step)
        clock.sleep(STEP_S)
    if way.cache_mb is not None and not way.is_warm and not cache.exists():
        place.rename(cache)
    return Row(way, sum(waits_ms) / way.steps, waits_ms[0], store.reads, store.bytes / 1e6)


def _announce(reader: PartReader, stream: SampleStream, step: int) -> None:
    for ahead in (AHEAD,) if step else range(1, AHEAD + 1):
        reader.expect(stream.take((step + ahead) * BATCH, BATCH))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as root:
        rng = np.random.default_rng(0)
        np.save(Path(root) / "records.npy", rng.integers(256, size=(RECORDS, RECORD_BYTES), dtype=np.uint8))
        folder = Path(root) / "set"
        records = [str(Path(root) / "records.npy")]
        shard(records, out=str(folder), shard_records=SHARD_RECORDS, on_bytes=lambda *_: None)
        print(f"{'':38} {'waited/step':>12} {'first step':>12} {'reads':>7} {'MB':>7}")
        for way in WAYS:
            row = measured(way, folder, Path(root) / "cache")
            rows.append(row)
            times = f"{row.waited_ms:9.2f} ms {row.first_ms:9.0f} ms"
            print(f"{way.label:38} {times} {row.reads:7} {row.megabytes:7.0f}", flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()

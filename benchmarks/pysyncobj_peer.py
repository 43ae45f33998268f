"""The peer: a PySyncObj node with its journal on. `python -m benchmarks.pysyncobj_peer FLUSH MINE OTHERS JOURNAL`.

It has no protocol for clients, so the clients live in the leader's own process,
as callbacks that ask again: no client costs anything but its command, which is
in its favour. Its journal is a mapped file that it never flushes; with FLUSH
each record is on disk before the next step, which makes it as durable as the
others. A line `CLIENTS SECONDS` on stdin begins a load, and is answered with
one line of JSON: figures by the leader, `null` by the others.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.journal import FileJournal

from benchmarks.load import VALUE_BYTES, WARM_UP_S, Figures, figures


class Store(SyncObj):  # type: ignore[misc]  # it has no types
    def __init__(self, mine: str, others: list[str], journal: str) -> None:
        # Without batches it answers at once instead of at its next tick, 50 ms later.
        conf = SyncObjConf(
            journalFile=journal, fullDumpFile=journal + ".dump", appendEntriesUseBatch=False
        )
        super().__init__(mine, others, conf)
        self._values: dict[str, str] = {}

    @replicated  # type: ignore[untyped-decorator]  # it has no types
    def put(self, key: str, value: str) -> None:
        self._values[key] = value


class FlushedJournal(FileJournal):  # type: ignore[misc]  # it has no types
    def add(self, command: bytes, idx: int, term: int) -> None:
        super().add(command, idx, term)
        self.flush()


def load(store: Store, clients: int, seconds: float) -> Figures:
    begin_s = time.monotonic() + WARM_UP_S
    end_s = begin_s + seconds
    took_s: list[float] = []
    ended = threading.Semaphore(0)

    def ask(number: int) -> None:
        asked_s = time.monotonic()
        if asked_s >= end_s:
            ended.release()
            return
        store.put(f"key-{number}", "v" * VALUE_BYTES, callback=answered(number, asked_s))

    def answered(number: int, asked_s: float) -> Callable[[object, int], None]:
        def note(_: object, error: int) -> None:
            done_s = time.monotonic()
            if begin_s <= asked_s and done_s <= end_s and error == 0:
                took_s.append(done_s - asked_s)
            ask(number)

        return note

    for number in range(clients):
        ask(number)
    for _ in range(clients):
        ended.acquire()
    return figures(took_s, seconds)


def main() -> None:
    flush, mine, others, journal = sys.argv[1:]
    if flush == "flush":
        pysyncobj.syncobj.createJournal = FlushedJournal
    store = Store(mine, others.split(","), journal)
    while not store.isReady():
        time.sleep(0.02)
    print("ready", flush=True)
    for line in sys.stdin:
        clients, seconds = line.split()
        leads = store._isLeader()
        print(json.dumps(asdict(load(store, int(clients), float(seconds))) if leads else None), flush=True)
    store.destroy()


if __name__ == "__main__":
    main()

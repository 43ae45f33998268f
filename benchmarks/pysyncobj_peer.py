"""The peer: one PySyncObj node with its journal on. `… FLUSH BATCH MINE OTHERS JOURNAL`, two of them 0 or 1.

It has no protocol for clients, so the clients live in the leader's own process,
as callbacks that ask again: no client costs anything but its command, which is
in its favour. Its journal is a mapped file that it never flushes; with FLUSH
what was added is on disk before anything more is sent to another node, which
makes it as durable as the others. BATCH is its own choice between answering at
once and sending many commands together, every tenth of a second. A line
`CLIENTS SECONDS` on stdin begins a load, and is answered with one line of JSON:
figures by the leader, `null` by the others.
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
from pysyncobj.transport import TCPTransport

from benchmarks.load import VALUE_BYTES, WARM_UP_S, Figures, figures


class Store(SyncObj):  # type: ignore[misc]  # it has no types
    def __init__(self, mine: str, others: list[str], conf: SyncObjConf, *, flush: bool) -> None:
        super().__init__(mine, others, conf, transportClass=FlushingTransport if flush else TCPTransport)
        self._values: dict[str, str] = {}

    @replicated  # type: ignore[untyped-decorator]  # it has no types
    def put(self, key: str, value: str) -> None:
        self._values[key] = value


class NotedJournal(FileJournal):  # type: ignore[misc]  # it has no types
    """Records that an entry was added; one instance per process."""

    added_to: "NotedJournal | None" = None

    def add(self, command: bytes, idx: int, term: int) -> None:
        super().add(command, idx, term)
        NotedJournal.added_to = self


class FlushingTransport(TCPTransport):  # type: ignore[misc]  # it has no types
    def send(self, node: object, message: object) -> bool:
        if NotedJournal.added_to is not None:
            NotedJournal.added_to.flush()
            NotedJournal.added_to = None
        return bool(super().send(node, message))


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
    flush, batch, mine, others, journal = sys.argv[1:]
    pysyncobj.syncobj.createJournal = NotedJournal
    conf = SyncObjConf(
        journalFile=journal, fullDumpFile=f"{journal}.dump", appendEntriesUseBatch=bool(int(batch))
    )
    store = Store(mine, others.split(","), conf, flush=bool(int(flush)))
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

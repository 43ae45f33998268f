"""The summary of a log that is streamed is that of the log in memory, and holds no more for a longer run."""

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.events.log import write_header
from paceline.events.log_summary import summarise_log
from paceline.events.read import History, read_history
from paceline.events.schema import COLUMN_KINDS, PHASES, AbandonedRow, ServerRow, StepRow
from paceline.events.segments import READ_BYTES
from paceline.events.summary import StepSet, Totals, end_ns, summarise, totals_of

Row = StepRow | ServerRow | AbandonedRow
KINDS = {StepRow: "steps", ServerRow: "server", AbandonedRow: "abandoned"}


class Log:
    """A log whose participants write their rows late, and in pieces of their own."""

    def __init__(self, path: Path, rng: Random) -> None:
        self._path, self._rng = path, rng
        self._waiting: dict[tuple[str, str], list[Row]] = {}
        self.now_ns = 1000
        write_header(path, run="r", plan="p", t0_ns=500, started_unix_s=0.0)

    def add(self, who: str, row: Row) -> None:
        waiting = self._waiting.setdefault((who, KINDS[type(row)]), [])
        waiting.append(row)
        self.now_ns += self._rng.randrange(1, 50)
        if self._rng.random() < 0.3:
            self.flush(who)

    def event(self, kind: str, who: str, **fields: object) -> None:
        self.flush(who)
        self.now_ns += 1
        self._append({"kind": kind, "who": who, "at_ns": self.now_ns, **fields})

    def flush(self, only: str | None = None) -> None:
        for who, kind in list(self._waiting):
            if only in (None, who):
                rows = self._waiting.pop((who, kind))
                columns = dict(zip(COLUMN_KINDS[kind], map(list, zip(*rows, strict=True)), strict=True))
                self._append({"kind": kind, "who": who, "rows": len(rows), "columns": columns})

    def forget(self, who: str) -> list[Row]:
        """A process was killed: what it had not written is lost, and returned."""
        return [row for key in list(self._waiting) if key[0] == who for row in self._waiting.pop(key)]

    def _append(self, line: dict[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def step(rng: Random, now_ns: int, number: int, position: int, version: int) -> StepRow:
    spans = [rng.randrange(0, 30) for _ in PHASES]
    data, forward, backward, delay, wait, codec, comm, apply = spans
    return StepRow(
        step=number,
        position=position,
        start_ns=now_ns,
        data_ns=data,
        forward_ns=forward,
        backward_ns=backward,
        delay_ns=delay,
        wait_ns=wait,
        codec_ns=codec,
        comm_ns=comm,
        apply_ns=apply,
        loss=rng.choice([0.5, 1.25, 3.0]),
        samples=rng.randrange(1, 9),
        bytes_out=rng.randrange(100),
        bytes_in=rng.randrange(100),
        version=version,
        synced=False,
        bytes_saved=rng.randrange(10),
        grad_norm=rng.choice([None, 0.25, 4.0]),
    )


def plain_events(log: Log, rng: Random, result: int) -> None:
    if rng.random() < 0.1:
        log.event("evaluated", "worker-0", step=result, took_s=rng.randrange(40) / 1e9)
    if rng.random() < 0.1:
        log.event("adapted", "worker-0", step=result, to="batch", shares=f"{result}", reason="")
    if rng.random() < 0.1:
        log.event("checkpoint", "worker-0", step=result, snapshot_ns=rng.randrange(90), bytes=7, write_s=0.5)


def static_run(log: Log, rng: Random, *, by_position: bool) -> None:
    """Workers with or without a server; resumes to any checkpoint, with fewer or more workers."""
    workers, version, clocks = rng.randrange(1, 4), 0, [0] * 4
    has_server = not by_position and rng.random() < 0.7
    for session in range(rng.randrange(1, 5)):
        if session:
            log.flush()
            workers = workers if has_server else rng.randrange(1, 4)
            clocks = [rng.randrange(clock + 1) for clock in clocks]
            version = rng.randrange(version + 1)
            kept = ",".join(map(str, clocks[:workers]))
            log.event("run_resumed", "launcher", version=version, clocks=kept)
        for rank in range(workers if by_position else 0):
            log.event("generation_entered", f"worker-{rank}", number=1, rank=rank, workers="", committed=0)
        for _ in range(rng.randrange(40)):
            rank = rng.randrange(workers)
            position = clocks[rank] * workers + rank
            number = position if by_position else clocks[rank]
            if has_server:
                op = rng.choice(["apply", "apply", "apply", "discard", "abandon"])
                version += op == "apply"
                place = (rank, number, position, version, max(0, version - 2))
                numbers = (rng.randrange(5), rng.randrange(4), rng.randrange(60), 1.0)
                log.add("server-0", ServerRow(op, log.now_ns, *place, *numbers))
                if op == "abandon":
                    log.add(
                        f"worker-{rank}",
                        AbandonedRow(number, position, log.now_ns, 5, 1, 9, max(0, version - 1)),
                    )
                    continue
            log.add(f"worker-{rank}", step(rng, log.now_ns, number, position, max(0, version - 2)))
            clocks[rank] += 1
            plain_events(log, rng, min(clocks[:workers]))
    log.flush()


def served_run(log: Log, rng: Random) -> None:
    """Servers that take over from each other, or begin again with an older version; lost gradients."""
    server, version, position = "server-0-a", 0, 0
    acts: list[ServerRow] = []
    log.event("server_started", server, pid=1, part=0, epoch=1, version=0, role="primary")
    for number in range(rng.randrange(80)):
        rank, read, position = rng.randrange(3), version, position + 1
        log.add(f"worker-{rank}", step(rng, log.now_ns, number, position, read))
        op = rng.choice(["apply", "apply", "apply", "lost", "discard"])
        version += op == "apply"
        numbers = (version - read, rng.randrange(4), rng.randrange(60), 1.0)
        acts.append(ServerRow(op, log.now_ns, rank, number, position, version, read, *numbers))
        log.add(server, acts[-1])
        if rng.random() < 0.08:
            unwritten = log.forget(server)
            former, server = server, f"server-0-{number}"
            behind = acts[-max(len(unwritten), rng.randrange(6)) :] if acts else []
            log.event("server_promoted", server, pid=1, part=0, epoch=1, version=version, instead_of=former)
            for again in behind:
                log.add(server, again)
            log.flush(server)
            if rng.random() < 0.5:  # it was frozen, and writes late
                for row in unwritten:
                    log.add(former, row)
        if rng.random() < 0.04:
            log.flush()
            back = rng.randrange(version + 1)
            log.event("server_restored", server, part=0, version=back, pid=2)
            version = back
            acts.clear()
            log.now_ns += 1
        plain_events(log, rng, version)
    log.flush()


def defined(history: History) -> dict[str, object]:
    """The numbers as they are defined, from whole lists of rows."""
    made = [row for rows in history.steps.values() for row in rows]
    thrown_away = {(row.rank, row.step) for row in history.server if row.op == "discard"}
    work = [
        row for rank, rows in history.steps.items() for row in rows if (rank, row.step) not in thrown_away
    ]
    applied = [row for row in history.server if row.op == "apply"]
    if history.has_elastic_servers:
        counted = {(row.rank, row.position, row.read_version) for row in applied}
        work = [r for k, rows in history.steps.items() for r in rows if (k, r.position, r.version) in counted]
    given_up = [row for rows in history.abandoned.values() for row in rows]
    spent = {phase: sum(getattr(row, f"{phase}_ns") for row in made) / 1e9 for phase in PHASES}
    return {
        "steps": len(work) // max(1, len(history.steps.keys() | history.abandoned.keys())),
        "gradients": len(work),
        "samples": sum(row.samples for row in work),
        "bytes_saved": sum(row.bytes_saved for row in work),
        "bytes_out": sum(row.bytes_out for row in made),
        "bytes_in": sum(row.bytes_in for row in made) + sum(row.bytes_in for row in given_up),
        "phases_s": spent,
        "first_step_s": min(map(end_ns, work)) / 1e9 - history.t0_ns / 1e9 if work else None,
        "discarded": len(thrown_away),
        "staleness": dict(Counter(str(row.staleness) for row in applied)),
        "abandoned": sum(row.op == "abandon" for row in history.server),
    }


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_streamed_summary_is_that_of_the_whole_history(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = Random(seed)
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    log = Log(path, rng)
    match seed % 3:
        case 0:
            static_run(log, rng, by_position=False)
        case 1:
            static_run(log, rng, by_position=True)
        case _:
            served_run(log, rng)
    history = read_history(path)
    log_summary = summarise_log(path)
    totals = totals_of(history)
    assert log_summary.summary == totals.summary() == summarise(history)
    assert log_summary.steady_samples_per_s == totals.steady_samples_per_s()
    assert log_summary.has_diverged == totals.has_diverged()
    assert (log_summary.torn.count, history.torn.count) == (0, 0)
    for name, value in defined(history).items():
        seen: object = getattr(log_summary.summary, name)
        if name == "staleness":
            seen = {} if log_summary.summary.staleness is None else log_summary.summary.staleness.histogram
        if name == "abandoned":
            seen = 0 if log_summary.summary.abandoned is None else log_summary.summary.abandoned.steps
        assert seen == (pytest.approx(value) if isinstance(value, float) else value), name


def test_a_session_of_which_a_later_resume_keeps_less_is_counted_once(tmp_path: Path) -> None:
    rng = Random(1)
    log = Log(tmp_path / "events.jsonl", rng)
    seconds = iter(range(10**6))

    def steps(numbers: range) -> None:
        for number in numbers:
            log.add("worker-0", step(rng, next(seconds) * 10**9, number, number, 0))
        log.flush()

    steps(range(10))
    log.event("run_resumed", "launcher", version=10, clocks="10")
    steps(range(10, 20))
    log.event("run_resumed", "launcher", version=5, clocks="5")
    steps(range(5, 9))
    summary = summarise_log(tmp_path / "events.jsonl").summary
    assert summary.training_s == pytest.approx(4 + 3, abs=1e-6)
    assert summarise(read_history(tmp_path / "events.jsonl")) == summary


def test_a_damaged_line_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = Log(path, Random(1))
    log.add("worker-0", step(Random(1), 5, 0, 0, 0))
    log.flush()
    whole = summarise_log(path)
    with path.open("ab") as file:
        file.write(b'{"kind":"steps","who":"worker-0","rows":2,"columns":{"step":[1,2]}}\n')
        file.write(b'{"kind":"steps","who":"worker-0","rows":1,"colu\n\xff\n')
        file.write(b'{"kind":"run_resumed","who":"launcher","at_ns":7,"version":0,"clocks":"x"}\n')
    log_summary = summarise_log(path)
    assert log_summary.summary == whole.summary
    assert log_summary.torn == read_history(path).torn
    assert log_summary.torn.count == 4


def pieces(rows: int, *, late: int) -> Iterator[tuple[str, Sequence[Row]]]:
    """Of two workers and their server, which writes `late` pieces later; one step in eight is discarded."""
    waiting: list[list[ServerRow]] = []
    for first in range(0, rows, 64):
        for rank in (0, 1):
            numbers = range(first, first + 64)
            yield f"worker-{rank}", [step(Random(n), 1000 * n, n, 2 * n + rank, n) for n in numbers]
            acts = [
                ServerRow(
                    "discard" if n % 8 == 3 else "apply", n, rank, n, 2 * n + rank, n + 1, n, 1, 0, 5, 1.0
                )
                for n in numbers
            ]
            waiting.append(acts)
        while len(waiting) > late:
            yield "server-0", waiting.pop(0)


def held(value: object) -> int:
    """The lengths of all containers of an object, and of the objects that it holds."""
    if isinstance(value, dict | list | set):
        return len(value)
    names = [*getattr(value, "__dict__", ()), *getattr(value, "__slots__", ())]
    return sum(held(getattr(value, name)) for name in names)


@pytest.mark.parametrize("has_elastic_servers", [False, True])
def test_what_totals_hold_does_not_grow_with_the_steps(has_elastic_servers: bool) -> None:
    def most(rows: int) -> int:
        totals = Totals(t0_ns=0, workers=2, has_elastic_servers=has_elastic_servers, discarded=StepSet())
        result = 0
        for who, piece in pieces(rows, late=6):
            names = ServerRow._fields if who == "server-0" else StepRow._fields
            columns = dict(zip(names, zip(*piece, strict=True), strict=True))
            if who == "server-0":
                totals.take_server(columns)
            else:
                totals.take_steps(int(who[-1]), columns)
            result = max(result, held(totals))
        return result

    assert most(4096) == most(2048)


def test_a_set_of_steps_is_a_bit_for_each() -> None:
    rng = Random(3)
    pairs = {(rng.randrange(4), rng.randrange(100_000)) for _ in range(2000)}
    step_set = StepSet(pairs)
    assert len(step_set) == len(pairs)
    assert all(step_set.has(*pair) for pair in pairs)
    others = {(rng.randrange(4), rng.randrange(100_000)) for _ in range(2000)} - pairs
    assert not any(step_set.has(*pair) for pair in others)


def test_a_log_is_summarised_in_less_memory_than_it_has_bytes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = Log(path, Random(1))
    for who, piece in pieces(1024, late=6):
        for row in piece:
            log.add(who, row)
    log.flush()
    header, lines = path.read_bytes().split(b"\n", 1)
    path.write_bytes(header + b"\n" + lines * (1 + 5 * READ_BYTES // len(lines)))
    size = path.stat().st_size
    assert size > 4 * READ_BYTES
    tracemalloc.start()
    try:
        summary = summarise_log(path).summary
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert summary.gradients > 4000
    assert peak < size

"""The numbers of a result, from the rows of its log."""

import pytest

from paceline.events.log import MemoryLog
from paceline.events.read import History
from paceline.events.schema import PHASES, AbandonedRow, ServerRow, StepRow
from paceline.events.summary import LAST_LOSSES, Adaptations, end_ns, staleness, summarise

S = 1_000_000_000


def row(number: int, start_s: float = 0.0, loss: float = 1.0, **changes: object) -> StepRow:
    """A step of one second: a tenth each of data and delay, two of forward, three of backward, wait, …"""
    tenth = S // 10
    made = StepRow(
        step=number,
        position=number,
        start_ns=int(start_s * S),
        data_ns=tenth,
        forward_ns=2 * tenth,
        backward_ns=3 * tenth,
        delay_ns=tenth,
        wait_ns=tenth,
        codec_ns=0,
        comm_ns=tenth,
        apply_ns=tenth,
        loss=loss,
        samples=4,
        bytes_out=100,
        bytes_in=50,
        version=0,
        synced=True,
    )
    return made._replace(**changes)  # type: ignore[arg-type]  # the names are StepRow's own


def act(op: str, value: int, gap: int = 0, age_s: float = 0.0) -> ServerRow:
    return ServerRow(op, 0, 0, 0, 0, 1, 0, value, gap, int(age_s * S), 1.0)


def test_adaptations_are_counted_and_the_last_one_is_reported() -> None:
    log = MemoryLog().of(0)
    assert summarise(History(plain=log.plain)).adapted is None
    log.write("adapted", step=8, to="batch", shares="40,24", reason="one is slow")
    log.write("checkpoint", path="at-00000009", step=9)
    log.write("adapted", step=32, to="ssgd", shares="32,32", reason="no longer")
    assert summarise(History(plain=log.plain)).adapted == Adaptations(count=2, way="ssgd", shares="32,32")
    assert [event.who for event in log.plain] == ["worker-0"] * 3


def test_counts_sums_and_rates() -> None:
    history = History(t0_ns=-2 * S)
    history.steps = {
        0: [row(0, 0.0, 4.0), row(1, 1.0, 2.0)],
        1: [row(0, 0.0, 3.0), row(1, 2.0, 1.0), row(2, 3.0, 5.0)],
    }
    summary = summarise(history)
    assert (summary.steps, summary.gradients, summary.samples) == (2, 5, 20)
    assert summary.loss == pytest.approx(3.0)
    assert summary.training_s == pytest.approx(4.0)
    assert summary.samples_per_s == pytest.approx(5.0)
    assert (summary.bytes_out, summary.bytes_in) == (500, 250)
    assert summary.first_step_s == pytest.approx(3.0)  # the helper began two seconds before
    assert summary.phases_s["backward"] == pytest.approx(1.5)
    assert sum(summary.phases_s.values()) == pytest.approx(5.0)
    assert summary.staleness is None


def test_the_end_of_a_step_is_its_start_and_all_of_its_phases() -> None:
    assert end_ns(row(0, 7.0)) == 8 * S
    assert set(PHASES) == {name.removesuffix("_ns") for name in StepRow._fields[3:11]}


def test_the_loss_is_that_of_the_last_steps_of_every_worker() -> None:
    history = History()
    for rank in (0, 1):
        losses = [1000.0] * 5 + [2.0 + rank] * LAST_LOSSES
        history.steps[rank] = [row(n, loss=loss, position=2 * n + rank) for n, loss in enumerate(losses)]
    assert summarise(history).loss == pytest.approx(2.5)


def test_the_loss_leaves_out_workers_that_left_long_before_the_end() -> None:
    history = History()
    history.steps[0] = [row(n, loss=1.0, position=n) for n in range(300, 400)]
    history.steps[1] = [row(n, loss=1.0, position=n) for n in range(400, 500)]
    history.steps[2] = [row(n, loss=900.0, position=n) for n in range(50)]
    assert summarise(history).loss == pytest.approx(1.0)


def test_the_loss_of_a_run_resumed_on_fewer_workers_is_theirs() -> None:
    history = History()
    for rank in range(4):
        history.steps[rank] = [row(n, loss=50.0, position=4 * n + rank) for n in range(30)]
    history.sessions.append(dict.fromkeys(range(4), 30))
    for rank in range(2):  # positions count by the new number of workers
        history.steps[rank] += [row(n, loss=2.0, position=2 * n + rank) for n in range(30, 33)]
    assert summarise(history).loss == pytest.approx(2.0)


def test_staleness_counts_only_what_was_applied() -> None:
    rows = [act("read", 9), act("push", 9), *(act("apply", n, gap=n, age_s=1.0) for n in (0, 2, 2, 4))]
    result = staleness(rows)
    assert result is not None
    assert (result.mean, result.max, result.max_gap, result.mean_age_s) == (2.0, 4, 4, 1.0)
    assert result.histogram == {"0": 1, "2": 2, "4": 1}
    assert staleness([act("read", 1)]) is None


def test_a_pause_before_a_resume_is_no_training_time_and_what_was_undone_does_not_count() -> None:
    history = History()
    history.steps = {0: [row(n, float(n)) for n in range(5)]}
    history.server = [act("apply", 0)._replace(step=n, version=n + 1) for n in range(5)]
    history.resume(version=3, clocks=[3])
    assert [r.step for r in history.steps[0]] == [0, 1, 2]
    assert [r.version for r in history.server] == [1, 2, 3]
    history.steps[0] += [row(n, 1000.0 + n) for n in range(3, 6)]
    summary = summarise(history)
    assert summary.gradients == 6
    assert summary.training_s == pytest.approx(3.0 + 3.0)


def test_a_run_without_rows_adds_up_to_nothing() -> None:
    summary = summarise(History())
    assert (summary.gradients, summary.loss, summary.training_s, summary.samples_per_s) == (0, None, 0.0, 0.0)
    assert summary.first_step_s is None


def test_a_rate_over_no_time_is_none_and_no_huge_number() -> None:
    instant = {f"{phase}_ns": 0 for phase in PHASES}
    summary = summarise(History(steps={0: [row(0, 1.0, **instant)]}))
    assert (summary.samples, summary.training_s, summary.samples_per_s) == (4, 0.0, 0.0)


def test_what_was_thrown_away_is_no_work_but_took_time_and_travelled() -> None:
    history = History()
    history.steps = {0: [row(0), row(1, 1.0)]}
    history.abandoned = {1: [AbandonedRow(0, 3, 0, 2 * S, S, 50, 0)] * 2}
    thrown = act("discard", 1)._replace(rank=0, step=1)
    history.server = [act("apply", 0), thrown, act("abandon", 1, age_s=2.0), act("abandon", 1, age_s=0.5)]
    summary = summarise(history)
    assert (summary.gradients, summary.samples, summary.discarded) == (1, 4, 1)
    assert (summary.bytes_out, summary.bytes_in) == (200, 200)
    assert summary.abandoned is not None
    assert (summary.abandoned.steps, summary.abandoned.lost_s) == (2, 2.5)
    assert summary.phases_s["backward"] == pytest.approx(0.6)
    assert summarise(History()).abandoned is None

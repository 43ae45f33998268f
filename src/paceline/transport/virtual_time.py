"""Virtual time: a deterministic scheduler for threads that run one at a time.

Exactly one worker runs at a time; it keeps the turn until it sleeps or waits.
The turn then goes to the worker that wakes first (ties: in the order of their
calls). Time jumps to that moment, so an hour of sleeping costs nothing, and one
seed gives one order of events. Each worker blocks on its own semaphore; `run`
releases one worker and waits until it yields, so shared state needs no lock.
"""

import heapq
import threading
from collections.abc import Callable, Sequence


class _Worker:
    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.is_true: Callable[[], bool] | None = None
        self.deadline_ns = 0
        self.wait_succeeded = True


class Turns:
    """Runs functions as workers in virtual time. It is also their Clock."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._sequence = 0
        self._sleeping: list[tuple[int, int, _Worker]] = []
        self._waiting: list[_Worker] = []
        self._current: _Worker | None = None
        self._back = threading.Semaphore(0)

    def now_ns(self) -> int:
        return self._now_ns

    def sleep(self, duration_s: float) -> None:
        worker = self._running()
        self._sleep_until(worker, self._now_ns + round(max(0.0, duration_s) * 1e9))
        self._yield_turn(worker)

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float) -> bool:
        if is_true():
            return True
        worker = self._running()
        worker.is_true = is_true
        worker.deadline_ns = self._now_ns + round(timeout_s * 1e9)
        self._waiting.append(worker)
        self._yield_turn(worker)
        return worker.wait_succeeded

    def run(self, bodies: Sequence[Callable[[], None]]) -> list[BaseException | None]:
        """Run all bodies to their end; the exception of each one, or None."""
        errors: list[BaseException | None] = [None] * len(bodies)
        threads = []
        for number, body in enumerate(bodies):
            worker = _Worker()
            threads.append(threading.Thread(target=self._run_body, args=(worker, body, errors, number)))
            self._sleep_until(worker, self._now_ns)
        for thread in threads:
            thread.start()
        while (chosen := self._choose()) is not None:
            self._current = chosen
            chosen.turn.release()
            self._back.acquire()
        for thread in threads:
            thread.join()
        return errors

    def _run_body(
        self, worker: _Worker, body: Callable[[], None], errors: list[BaseException | None], number: int
    ) -> None:
        worker.turn.acquire()
        try:
            body()
        except BaseException as error:
            errors[number] = error  # not swallowed: run() returns it to the caller
        finally:
            self._back.release()

    def _running(self) -> _Worker:
        assert self._current is not None, "only a running worker can sleep or wait"
        return self._current

    def _yield_turn(self, worker: _Worker) -> None:
        self._back.release()
        worker.turn.acquire()

    def _sleep_until(self, worker: _Worker, wake_ns: int) -> None:
        self._sequence += 1
        heapq.heappush(self._sleeping, (wake_ns, self._sequence, worker))

    def _choose(self) -> _Worker | None:
        for worker in self._waiting:
            assert worker.is_true is not None, "a waiting worker waits for something"
            if worker.is_true():
                return self._end_wait(worker, succeeded=True)
        first_late = min(self._waiting, key=lambda w: w.deadline_ns, default=None)
        if first_late and (not self._sleeping or first_late.deadline_ns < self._sleeping[0][0]):
            self._now_ns = max(self._now_ns, first_late.deadline_ns)
            return self._end_wait(first_late, succeeded=False)
        if not self._sleeping:
            return None
        wake_ns, _, worker = heapq.heappop(self._sleeping)
        self._now_ns = max(self._now_ns, wake_ns)
        return worker

    def _end_wait(self, worker: _Worker, *, succeeded: bool) -> _Worker:
        self._waiting.remove(worker)
        worker.is_true = None
        worker.wait_succeeded = succeeded
        return worker

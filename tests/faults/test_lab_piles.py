"""Growth of memory, open files and threads is noticed."""

import os

from paceline.faults.scenarios.soak import MAX_GROWTH_MB, LeakCheck, memory_mb


def holds(leaks: LeakCheck, description: str) -> bool:
    expectations = [expectation for expectation in leaks.expectations() if description in expectation.what]
    assert len(expectations) == 1
    return expectations[0].ok


def test_what_stays_the_same_after_a_warm_up_is_flat() -> None:
    leaks = LeakCheck()
    for _ in range(12):
        leaks.sample(os.getpid(), {"worker-0": os.getpid()})
    assert all(expectation.ok for expectation in leaks.expectations()), leaks.expectations()


def test_memory_that_grows_after_the_warm_up_is_noticed() -> None:
    leaks = LeakCheck()
    for number in range(40):
        leaks.sample(os.getpid(), {})
        leaks.command[-1] = 100.0 + number * MAX_GROWTH_MB / 10
    assert not holds(leaks, "memory of the command")


def test_memory_that_grows_only_at_first_is_not() -> None:
    leaks = LeakCheck()
    for number in range(40):
        leaks.sample(os.getpid(), {})
        leaks.command[-1] = 100.0 + min(number, 8) * MAX_GROWTH_MB
    assert holds(leaks, "memory of the command")


def test_a_file_that_is_left_open_at_every_fault_is_noticed() -> None:
    leaks = LeakCheck()
    opened = []
    for _ in range(20):
        opened.append(os.open("/dev/null", os.O_RDONLY))
        leaks.sample(os.getpid(), {})
    for fd in opened:
        os.close(fd)
    assert not holds(leaks, "open files of the command")


def test_a_process_that_has_ended_uses_nothing() -> None:
    assert memory_mb(2**22 + 1) == 0.0
    assert memory_mb("self") > 1.0

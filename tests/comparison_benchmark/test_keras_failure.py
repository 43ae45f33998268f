"""A failure of child processes becomes one sentence about the process that caused it."""

from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.keras_process import failure_of, sentence

RAISED = """Traceback (most recent call last):
  File "loop.py", line 3, in train_loop
    train()
ValueError: there is no such thing
"""
DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: RayTrainWorker
Its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits \
with a connection error code 2. End of file. There are some potential root causes."""
CUT = "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error"


class WorkerGroupError(Exception):
    """As Ray Train raises it."""

    def __init__(self, worker_failures: dict[int, Exception]) -> None:
        super().__init__("Training failed due to worker errors:\n" + "many lines\n" * 5)
        self.worker_failures = worker_failures


class ControllerError(Exception):
    def __init__(self, controller_failure: Exception) -> None:
        super().__init__("Training failed due to controller error:\n")
        self.controller_failure = controller_failure


def test_a_worker_that_raised_is_named_with_the_last_line_of_its_traceback(wording: Wording) -> None:
    training_error = failure_of(WorkerGroupError({1: RuntimeError(RAISED)}), "runs/ray-1/log.txt")
    assert training_error.hint.endswith("runs/ray-1/log.txt")
    wording(training_error.what)


def test_the_process_that_died_is_blamed_and_not_the_survivor(wording: Wording) -> None:
    training_error = failure_of(WorkerGroupError({0: RuntimeError(CUT), 1: RuntimeError(DIED)}), "log.txt")
    assert training_error.what.startswith("worker 1 ")
    wording(training_error.what)


def test_the_message_of_ray_train_itself_is_reported() -> None:
    training_error = failure_of(ControllerError(TimeoutError("no room within 300 s\nand more")), "log.txt")
    assert training_error.what.endswith(" 300 s")
    assert failure_of(OSError("disk full"), "log.txt").what.endswith(": disk full")
    assert sentence(KeyError()) == "KeyError"

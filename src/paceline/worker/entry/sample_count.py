"""Questions about a run that a child process answers before workers are forked: a task's sample count.

It is a child because a task may read much data, which must not stay in the memory of the process that forks
the workers. The child ends when the command does. A script's facts are measured the same way (script.py).
"""

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

import torch

from paceline.core.errors import OwnClassError, PacelineError, Problem
from paceline.core.processes import die_with_parent
from paceline.core.user_code import in_one_line, raised_at
from paceline.plan.codec import Json
from paceline.plan.plan import Dtype, Plan
from paceline.tasks.load import load_task, task_class
from paceline.tasks.torch_adapters import samples_of
from paceline.worker.reporting import TERMINATING_ERRORS

Answer = dict[str, Json]
POLL_S = 0.1  # between two checks whether the command still waits


def count_samples(order: Answer, orders: socket.socket) -> Answer:
    """{"ev": "counted", num_samples} or {"ev": "refused", problems, exit_code}, for the launcher.

    BrokenPipeError when the command goes meanwhile.
    """
    try:
        task_class(str(order["task"]))  # imported here, once, as workers will need it too
    except PacelineError as error:
        return _refused(error)
    subject = f"task {order['task']} could not be built"
    return answer_in_child(order, orders, count_in_process, subject)


def answer_in_child(
    order: Answer, orders: socket.socket, answer_in_process: Callable[[Answer], Answer], subject: str
) -> Answer:
    """The answer of a child process; `subject` says what failed if it ends without one."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer_and_exit(order, orders, write_fd, answer_in_process)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as answers:
        while not select.select([answers.fileno()], [], [], POLL_S)[0]:
            if _is_unwanted(orders):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise BrokenPipeError
        text = answers.read()
    _, status = os.waitpid(pid, 0)
    if text:
        answer: Answer = json.loads(text)
        return answer
    code = os.waitstatus_to_exitcode(status)
    message = f"{subject}: its process ended with exit code {code}"
    return _refused(_own_task(message, "run it in an interactive Python to see the error"))


def _is_unwanted(orders: socket.socket) -> bool:
    """Whether the command has ended, or has sent a kill order, which is peeked and stays for the zygote."""
    poll = select.poll()
    poll.register(orders, select.POLLIN | select.POLLRDHUP)
    events = dict(poll.poll(0)).get(orders.fileno(), 0)
    if events & (select.POLLRDHUP | select.POLLHUP):
        return True
    return bool(events) and b'"op": "kill"' in orders.recv(1 << 16, socket.MSG_PEEK)


def build_count_order(plan: Plan) -> Answer:
    """Order to count the samples of a plan; counting also checks that its data can be read."""
    options: dict[str, Json] = dict(plan.task_options)
    return {"task": plan.task, "seed": plan.seed, "options": options, "dtype": plan.dtype.value}


def _answer_and_exit(
    order: Answer, orders: socket.socket, write_fd: int, answer_in_process: Callable[[Answer], Answer]
) -> NoReturn:
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    orders.close()
    os.dup2(2, 1)  # stdout is the command's, and a task may print
    os.write(write_fd, json.dumps(answer_in_process(order)).encode())
    os.close(write_fd)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def count_in_process(order: Answer) -> Answer:
    """Build the task in this process."""
    name = str(order["task"])
    options = order["options"]
    assert isinstance(options, dict), "options come by name"
    torch.set_default_dtype(torch.float64 if order["dtype"] == Dtype.FLOAT64 else torch.float32)
    try:
        # As in a plan: options are numbers, strings or booleans.
        task = load_task(name, seed=int(str(order["seed"])), options=options)  # type: ignore[arg-type]
        return {"ev": "counted", "num_samples": len(samples_of(task))}
    except PacelineError as error:
        return _refused(error)
    except TERMINATING_ERRORS as error:
        # Any failure of a user's task ends here: what it was, and where, in one line.
        message = f"task {name} cannot be built: {in_one_line(error)}"
        return _refused(_own_task(message, f"it was raised in {raised_at(error)}"))


def _own_task(message: str, hint: str) -> PacelineError:
    return OwnClassError([Problem(message, hint)])


def _refused(error: PacelineError) -> Answer:
    problems: list[Json] = [dict(problem) for problem in error.to_dicts()]
    return {"ev": "refused", "problems": problems, "exit_code": int(error.exit_code)}

"""How many training samples does a task have? A child of the warm process builds it, and says so.

A child, because a task may read much, and whatever it holds must be gone
before workers are forked. It ends when the command does.
"""

import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

import torch

from paceline.core.errors import OwnClassError, PacelineError, Problem
from paceline.core.processes import die_with_parent
from paceline.plan.codec import Json
from paceline.plan.plan import Dtype, Plan
from paceline.tasks.load import in_one_line, load_task, raised_at, task_class
from paceline.tasks.torch_adapters import samples_of
from paceline.worker.reporting import TERMINATING_ERRORS

Answer = dict[str, Json]
POLL_S = 0.1  # between two looks whether anybody still wants to know


def count_samples(order: Answer, orders: socket.socket) -> Answer:
    """{"ev": "counted", num_samples} or {"ev": "refused", problems, exit_code}, to be told to the launcher.

    BrokenPipeError when the command goes meanwhile.
    """
    try:
        task_class(str(order["task"]))  # imported here, once, as workers will need it too
    except PacelineError as error:
        return _refused(error)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer_and_exit(order, orders, tell)
    os.close(tell)
    with os.fdopen(told, "rb") as answers:
        while not select.select([answers.fileno()], [], [], POLL_S)[0]:
            if _is_unwanted(orders):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise BrokenPipeError
        text = answers.read()
    _, status = os.waitpid(pid, 0)
    if text:
        said: Answer = json.loads(text)
        return said
    code = os.waitstatus_to_exitcode(status)
    what = f"task {order['task']} could not be built: its process ended with exit code {code}"
    return _refused(_own_task(what, "build it in a Python of your own, and look at what it does"))


def _is_unwanted(orders: socket.socket) -> bool:
    """The command is gone, or wants all to end now. What it said is looked at, and stays for the zygote."""
    news = select.poll()
    news.register(orders, select.POLLIN | select.POLLRDHUP)
    events = dict(news.poll(0)).get(orders.fileno(), 0)
    if events & (select.POLLRDHUP | select.POLLHUP):
        return True
    return bool(events) and b'"op": "kill"' in orders.recv(1 << 16, socket.MSG_PEEK)


def build_count_order(plan: Plan) -> Answer:
    """To count the samples of a plan, which also shows whether its data can be read."""
    options: dict[str, Json] = dict(plan.task_options)
    return {"task": plan.task, "seed": plan.seed, "options": options, "dtype": plan.dtype.value}


def _answer_and_exit(order: Answer, orders: socket.socket, tell: int) -> NoReturn:
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    orders.close()
    os.dup2(2, 1)  # stdout is the command's, and a task may print
    os.write(tell, json.dumps(count_in_process(order)).encode())
    os.close(tell)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def count_in_process(order: Answer) -> Answer:
    """Build the task in this process."""
    name, options = str(order["task"]), order["options"]
    assert isinstance(options, dict), "options come by name"
    torch.set_default_dtype(torch.float64 if order["dtype"] == Dtype.FLOAT64 else torch.float32)
    try:
        # As in a plan: options are numbers, words, yes or no.
        task = load_task(name, seed=int(str(order["seed"])), options=options)  # type: ignore[arg-type]
        return {"ev": "counted", "num_samples": len(samples_of(task))}
    except PacelineError as error:
        return _refused(error)
    except TERMINATING_ERRORS as error:
        # Any failure of a user's task ends here: what it was, and where, in one line.
        what = f"task {name} cannot be built: {in_one_line(error)}"
        return _refused(_own_task(what, f"it was raised in {raised_at(error)}"))


def _own_task(what: str, hint: str) -> PacelineError:
    return OwnClassError([Problem(what, hint)])


def _refused(error: PacelineError) -> Answer:
    problems: list[Json] = [dict(problem) for problem in error.told()]
    return {"ev": "refused", "problems": problems, "exit_code": int(error.exit_code)}

"""The parameter server of ranks that torchrun started: `… -m paceline.worker.entry.torchrun_server_main FD`.

Orders come as one JSON line on stdin, reports go out as JSON lines on stdout (see `ServerProcess` in
torchrun_leader.py).
"""

import json
import os
import socket
import sys
from pathlib import Path

from paceline.core.processes import die_with_parent
from paceline.plan.catalog import SCRIPT_TASK
from paceline.plan.codec import loads
from paceline.worker.context import WorkerContext
from paceline.worker.control import ControlBlock
from paceline.worker.entry.script import script_body
from paceline.worker.entry.zygote import run_process
from paceline.worker.participant import serve


def main(listener_fd: int) -> int:
    die_with_parent()
    order = json.loads(sys.stdin.readline())
    plan = loads(order["plan"])
    run_dir = Path(order["run_dir"])
    resume_from = order["resume_from"]
    reports = os.dup(1)
    os.dup2(2, 1)  # output of a task must not be parsed as a report
    with socket.socket(fileno=listener_fd) as listener:
        context = WorkerContext(
            plan=plan,
            run_dir=run_dir,
            control=ControlBlock(plan.num_workers),
            rendezvous=run_dir,  # not used: workers connect to the listener
            listener=listener,
            token=bytes.fromhex(order["token"]),
            resume_from=None if resume_from is None else Path(resume_from),
        )
        body = script_body(plan, "server-0") if plan.task == SCRIPT_TASK else serve
        return run_process(context, "server-0", body, reports)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

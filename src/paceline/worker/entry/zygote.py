"""Zygote: imports torch once and forks the participants of a run.

`python -m paceline.worker.entry.zygote FD` receives orders as JSON lines over the socket FD: start a run,
ask it to stop, kill it. Its children are the participants. It never trains, opens no thread and touches no
GPU, so forking is safe. When the socket closes, for instance because the command was killed, the zygote
kills its children and ends; when the zygote is killed, the kernel kills them. Processes that a task starts
itself become children of the zygote when their participant ends, and are killed at the end of the run; where
the zygote is killed, the command kills them (launchers/local.py).
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from paceline.coordinator.run_endpoint import CoordinatorEndpoint
from paceline.core import environ
from paceline.core.clock import ActiveTimeout
from paceline.core.errors import ExitCode, PacelineError, TrainingError
from paceline.core.ids import Rank
from paceline.core.processes import (
    adopt_orphans,
    children_of,
    cpu_ticks,
    die_with_parent,
    is_stopped,
    kill_each,
    reap,
)
from paceline.plan.catalog import SCRIPT_TASK, Channel, data_of, server_names
from paceline.plan.codec import Json, loads
from paceline.plan.plan import Launcher, Plan, Transport
from paceline.plan.urls import is_remote_data
from paceline.tasks.load import load_task, task_class
from paceline.worker.agent_disk import AgentHost
from paceline.worker.context import LOCAL_HOST, WorkerContext
from paceline.worker.control import ControlBlock
from paceline.worker.entry.sample_count import answer_in_child, build_count_order, count_samples
from paceline.worker.entry.script import probe_in_process, script_body
from paceline.worker.entry.virtual_workers import run_virtual_workers
from paceline.worker.participant import ParticipantBody, elastic_body, serve, work
from paceline.worker.rank_output import log_to
from paceline.worker.reporting import TERMINATING_ERRORS, ChildReports, Report, fault_of, log_error
from paceline.worker.script.facts import file_of
from paceline.worker.wiring import channel_of, shared_world

PROGRESS_S = 0.1
TOKEN_BYTES = 32
GRACE_S = 5.0
AGENT_SILENCE_S = 4.0  # less than a command waits for an agent (launchers/agents/wire.py)
ALL_WORKERS = "workers"  # one process that is all participants
POLL_S = 0.01
DONE = b'{"ev": "done"}'  # the last line of a participant whose body returned
# torch imports them when a module is wrapped for DDP or FSDP, which takes as long as importing torch.
WRAPPERS = ("torch.distributed.fsdp", "torch._dynamo")
OPTIMIZERS = ("torch._dynamo",)  # likewise, when an optimizer of torch is built


class Zygote:
    def __init__(self, orders: socket.socket) -> None:
        adopt_orphans()
        self._orders = orders
        self._buffer = b""
        self._children: dict[int, str] = {}  # pid -> participant
        self._context: WorkerContext | None = None
        self._kill_at_s: float | None = None
        self._by_us: set[int] = set()  # pids of children that this process ended by a signal
        self._killed: set[int] = set()  # the subset that was sent SIGKILL
        # When the next signal is due, for children that are being ended.
        self._escalate_at_s: dict[int, float] = {}
        # CPU time of each child so far, and the timeout for it to increase.
        self._idle: dict[int, tuple[int, ActiveTimeout]] = {}
        self._has_ended_well = False  # a participant of this run has
        self._reports: dict[int, ChildReports] = {}  # by pid
        self._silence = ActiveTimeout(AGENT_SILENCE_S)  # of an agent
        self._end = (0, False)  # what was reported of the control block's `end`
        self._done: set[int] = set()  # pids of children whose body returned
        self._selector = selectors.DefaultSelector()
        self._selector.register(orders, selectors.EVENT_READ, self._read_orders)
        deaths_read, deaths_write = os.pipe()
        os.set_blocking(deaths_write, False)
        os.set_blocking(deaths_read, False)
        signal.set_wakeup_fd(deaths_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up fd carries the news
        self._selector.register(deaths_read, selectors.EVENT_READ, lambda: os.read(deaths_read, 4096))

    def run(self) -> None:
        try:
            self._send("ready")
            self._serve()
        except (BrokenPipeError, ConnectionResetError):  # the command has ended
            self._end_adopted()  # the participants with them

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(PROGRESS_S if self._children else None):
                key.data()
            self._reap_children()
            if self._children:
                self._report_progress()
            if self._kill_at_s is not None and time.monotonic() > self._kill_at_s:
                self._kill_all()
                self._kill_at_s = None
            self._end_stuck()
            self._escalate()
            self._check_agent()

    def _read_orders(self) -> None:
        data = self._orders.recv(1 << 16)
        if not data:
            raise BrokenPipeError
        self._silence = ActiveTimeout(AGENT_SILENCE_S)
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._handle_order(json.loads(line))

    def _check_agent(self) -> None:
        """Participants must not train on beside their replacements when the agent stands still."""
        if self._context is not None and self._context.agent is not None and not self._silence.next_s():
            raise BrokenPipeError

    def _handle_order(self, order: dict[str, Json]) -> None:
        match order["op"]:
            case "start":
                try:
                    self._start(order)
                except PacelineError as error:
                    problems: list[Json] = [dict(problem) for problem in error.to_dicts()]
                    self._send("refused", problems=problems, exit_code=int(error.exit_code))
            case "count":
                answer = count_samples(order, self._orders)
                self._orders.sendall(json.dumps(answer).encode() + b"\n")
            case "probe":
                _import_once(OPTIMIZERS)
                answer = answer_in_child(order, self._orders, probe_in_process, str(order["file"]))
                self._orders.sendall(json.dumps(answer).encode() + b"\n")
            case "stop" if self._context is not None:
                self._context.control.ask_to_stop()
            case "kill":
                self._kill_all()
            case "reap":
                self._end_child(int(str(order["pid"])))
            case "fork" if self._context is not None:  # a replacement, or one more
                index = int(str(order["index"]))
                self._context.control.continue_steps(index, int(str(order.get("steps", 0))))
                self._fork_elastic(index)
            case "fork_server" if self._context is not None:
                self._fork_server(str(order["who"]))
            case "end" if self._context is not None:
                self._end_run()
            case "leave" if self._context is not None:
                self._context.control.ask_to_leave(int(str(order["index"])))
            case "alone" if self._context is not None:
                self._context.control.give_up_coordinator()
            case "shared" if self._context is not None:
                self._context.control.receive_end(
                    int(str(order["ended_at"])), is_saved=bool(order["is_saved"])
                )
                self._end = self._context.control.end
            case "save" if self._context is not None:
                self._context.control.ask_to_save()
            case "pause" if self._context is not None:
                saver = order.get("saver")
                self._context.control.pause(
                    bool(order["is_paused"]), None if saver is None else int(str(saver))
                )

    def _start(self, order: dict[str, Json]) -> None:
        plan = loads(str(order["plan"]))
        run_dir = Path(str(order["run_dir"]))
        channel = channel_of(plan.mode)
        # Imported here, once; one that cannot be is refused here, and not N times.
        kind = task_class(plan.task)
        if is_remote_data(data_of(plan)):  # a child checks: reading from a network takes threads
            answer = count_samples(build_count_order(plan), self._orders)
            if answer["ev"] == "refused":
                self._orders.sendall(json.dumps(answer).encode() + b"\n")
                return
        elif getattr(kind, "reads_files", False):  # likewise, and all workers share what it keeps of them
            load_task(plan.task, seed=plan.seed, options=plan.task_options)
        if channel is Channel.TORCH:  # likewise: once, and not in every worker and every replacement
            _import_once(WRAPPERS)
        elif plan.task == SCRIPT_TASK:
            file_of(plan.task_options)  # on each host: one without the file takes no part
            _import_once(OPTIMIZERS)
        self._context = _make_context(plan, run_dir, channel, order)
        self._kill_at_s = None
        self._by_us = set()
        self._killed = set()
        self._idle = {}
        self._has_ended_well = False
        self._end = (0, False)
        if self._context.agent is not None:
            pass  # an agent's command orders each participant
        elif plan.elastic is not None:
            for participant in server_names(plan):
                self._fork_server(participant)
            for index in range(plan.elastic.workers):
                self._fork_elastic(index)
        elif plan.launcher is Launcher.VIRTUAL:
            self._fork(ALL_WORKERS, run_virtual_workers)
        else:
            self._fork_each(plan, channel)
        if self._context.listener is not None:
            self._context.listener.close()

    def _fork_each(self, plan: Plan, channel: Channel) -> None:
        if plan.task == SCRIPT_TASK:
            servers = ["server-0"] if channel is Channel.STORE else []
            for participant in [*servers, *(f"worker-{rank}" for rank in range(plan.num_workers))]:
                self._fork(participant, script_body(plan, participant))
            return
        if channel is Channel.STORE:
            self._fork("server-0", serve)
        for rank in range(plan.num_workers):
            self._fork(f"worker-{rank}", partial(work, Rank(rank)))

    def _fork_elastic(self, index: int) -> None:
        assert self._context is not None, "a run was started"
        self._context.control.ask_nothing(index)
        participant = f"worker-{index}"
        self._fork(participant, _elastic_body(self._context.plan, participant))

    def _fork_server(self, participant: str) -> None:
        assert self._context is not None, "a run was started"
        self._fork(participant, _elastic_body(self._context.plan, participant))

    def _fork(
        self, participant: str, body: Callable[[WorkerContext, Callable[[Report], None]], None]
    ) -> None:
        assert self._context is not None, "a run was started"
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._orders.close()
            log_to(self._context.run_dir / "logs" / f"{participant}.log")
            os._exit(run_process(self._context, participant, body, write_fd))
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        self._children[pid] = participant
        self._reports[pid] = ChildReports(read_fd)
        self._selector.register(read_fd, selectors.EVENT_READ, lambda: self._forward_reports(pid))
        self._send("started", who=participant, pid=pid)

    def _forward_reports(self, pid: int) -> None:
        for line in self._reports[pid].lines():
            if line == DONE:
                self._done.add(pid)
            else:
                self._orders.sendall(line + b"\n")
        if self._reports[pid].has_ended:
            self._selector.unregister(self._reports[pid].fd)

    def _reap_children(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            # Else it was adopted, or was stuck in the kernel and counted as ended before.
            if pid in self._children:
                self._on_exit(pid, os.waitstatus_to_exitcode(status))

    def _on_exit(self, pid: int, code: int) -> None:
        participant = self._children.pop(pid)
        self._escalate_at_s.pop(pid, None)
        self._idle.pop(pid, None)
        is_done = self._drain_reports(pid)
        if code == 0 and not is_done:  # os._exit in a task, or in a library
            code = int(ExitCode.TRAINING_FAILED)
            self._send("error", who=participant, **fault_of(_ended_early(participant), participant))
        self._has_ended_well = self._has_ended_well or code == 0
        self._report_progress()
        self._send("exited", who=participant, code=code, pid=pid, by_us=pid in self._by_us)
        if self._context is not None and self._context.plan.elastic is not None:
            return  # the others continue, and the launcher decides about this one
        if code != 0:
            self._abort()
        if not self._children:
            self._end_run()

    def _end_stuck(self) -> None:
        """A participant that is stopped, or waits for ever, must not keep the run from ending.

        Once another one has ended well, each of the rest may be idle for as long as a peer may be silent.
        It is not: it trains, evaluates or saves, all of which takes CPU time.
        """
        if not self._has_ended_well or self._context is None or self._kill_at_s is not None:
            return
        idle = []
        for pid in self._children:
            used = cpu_ticks(pid)
            known, patience = self._idle.get(pid, (-1, None))
            if patience is None or known != used:
                self._idle[pid] = (used, ActiveTimeout(self._context.plan.timeout_s))
            elif not patience.next_s() and pid not in self._escalate_at_s:
                idle.append(pid)
        # Those that are stopped are the cause; the others may only wait for them.
        stopped = [pid for pid in self._children if is_stopped(pid)]
        for pid in [pid for pid in idle if pid in stopped or not stopped]:
            self._end_child(pid)

    def _end_child(self, pid: int) -> None:
        """SIGTERM, then SIGKILL. It is our own child and not waited for yet, so its pid is no other's."""
        if pid not in self._children or pid in self._escalate_at_s:
            return
        if is_stopped(pid):  # SIGTERM would wait for it to be continued
            self._kill(pid)
            return
        os.kill(pid, signal.SIGTERM)
        self._by_us.add(pid)
        self._escalate_at_s[pid] = time.monotonic() + GRACE_S

    def _escalate(self) -> None:
        now_s = time.monotonic()
        for pid in [pid for pid, at_s in self._escalate_at_s.items() if at_s <= now_s]:
            if pid not in self._killed:
                self._kill(pid)
            else:  # the kernel does not let it go, perhaps never: the run does not wait for it
                self._on_exit(pid, -signal.SIGKILL)

    def _drain_reports(self, pid: int) -> bool:
        """Pass on the last reports of a child that ended; whether its body returned."""
        reports = self._reports[pid]
        if not reports.has_ended:
            self._forward_reports(pid)
        if not reports.has_ended:  # a process that it started still holds the pipe
            self._selector.unregister(reports.fd)
        reports.close()
        del self._reports[pid]
        is_done = pid in self._done
        self._done.discard(pid)
        return is_done

    def _abort(self) -> None:
        """One participant failed: wake the others, and give them a moment to end by themselves."""
        if self._context is not None and self._context.world is not None:
            self._context.world.abort()
        if self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + GRACE_S

    def _end_run(self) -> None:
        assert self._context is not None, "children belong to a run"
        self._context.rendezvous.unlink(missing_ok=True)
        if self._context.world is not None:
            self._context.world.close()
        self._context = None
        self._kill_at_s = None
        self._end_adopted()
        self._send("over")

    def _kill_all(self) -> None:
        for pid in self._children:
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self._by_us.add(pid)
        self._killed.add(pid)
        self._escalate_at_s[pid] = time.monotonic() + GRACE_S

    def _end_adopted(self) -> None:
        """Kill processes that tasks started and left running. Every other child has ended before."""
        end_s = time.monotonic() + GRACE_S
        # Those that they have started are adopted then; one that is stuck in the kernel is not waited for.
        while kill_each(children_of(os.getpid())) and time.monotonic() < end_s:
            reap()
            time.sleep(POLL_S)

    def _report_progress(self) -> None:
        if self._context is not None:
            block = self._context.control
            steps: list[Json] = list(block.steps())
            alive = sum(participant.startswith("worker-") for participant in self._children.values())
            if ALL_WORKERS in self._children.values():
                alive = self._context.plan.num_workers
            self._send("progress", steps=steps, loss=block.mean_loss(), alive=alive)
            if self._context.agent is not None and block.end != self._end:
                self._end = block.end
                self._send("shared", ended_at=self._end[0], is_saved=self._end[1])

    def _send(self, event: str, **fields: Json) -> None:
        self._orders.sendall(json.dumps({"ev": event, **fields}).encode() + b"\n")


def _elastic_body(plan: Plan, participant: str) -> ParticipantBody:
    body = script_body if plan.task == SCRIPT_TASK else elastic_body
    return body(plan, participant)


def _import_once(modules: Sequence[str]) -> None:
    """Here, before processes are forked that need them."""
    for module in modules:
        importlib.import_module(module)


def _make_context(plan: Plan, run_dir: Path, channel: Channel, order: dict[str, Json]) -> WorkerContext:
    listener = None
    resume_from = order.get("resume_from")
    coordinator = order.get("coordinator")
    agent = order.get("agent")
    token = order.get("token")  # of a run whose participants are not all started by this process
    if plan.transport is Transport.TCP and plan.elastic is None:  # else each server listens for itself
        listener = socket.create_server(("127.0.0.1", 0), backlog=plan.num_workers)
    return WorkerContext(
        plan=plan,
        run_dir=run_dir,
        control=ControlBlock(plan.num_workers),
        rendezvous=run_dir / f".rendezvous-{os.getpid()}-{time.monotonic_ns()}",
        world=None if plan.elastic is not None else shared_world(plan, channel),
        listener=listener,
        token=os.urandom(TOKEN_BYTES) if token is None else bytes.fromhex(str(token)),
        host=str(order.get("host", LOCAL_HOST)),
        resume_from=None if resume_from is None else Path(str(resume_from)),
        coordinator=CoordinatorEndpoint.read(coordinator) if isinstance(coordinator, dict) else None,
        agent=_agent_host(agent) if isinstance(agent, dict) else None,
    )


def _agent_host(fields: Mapping[str, Json]) -> AgentHost:
    return AgentHost(
        name=str(fields["name"]),
        ahead_ns=int(str(fields["ahead_ns"])),
        socket=Path(str(fields["socket"])),
    )


def _ended_early(participant: str) -> TrainingError:
    return TrainingError(
        f"{participant} ended with exit code 0 before its work was done",
        "search for os._exit in the task and the libraries that it uses",
    )


def run_process(
    context: WorkerContext,
    participant: str,
    body: Callable[[WorkerContext, Callable[[Report], None]], None],
    reports: int,
) -> int:
    """Run a participant; its exit code. Its exceptions are reported to the launcher and logged."""

    def send(fields: object) -> None:
        os.write(reports, (json.dumps(fields) + "\n").encode())

    try:
        body(context, lambda facts: send({"ev": "report", "who": participant, **facts}))
        os.write(reports, DONE + b"\n")
        return 0
    except TERMINATING_ERRORS as error:
        # Any failure of a user's task ends here too.
        log_error(error)
        fault = fault_of(error, f"{context.run_dir}/logs/{participant}.log")
        send({"ev": "error", "who": participant, **fault})
        return int(fault["exit_code"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    gc.freeze()  # collections in the children then neither visit nor copy what was imported here
    # Participants fork loader processes beside the threads of gRPC; these processes never use it.
    environ.set_default_variables(GRPC_ENABLE_FORK_SUPPORT="0")
    torch.set_num_threads(1)  # a thread pool made before the fork would be dead in the children
    Zygote(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()

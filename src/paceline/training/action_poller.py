"""Action poller: passes operators' requests from the coordinator to the launcher of an elastic run.

The coordinator's list of actions is authoritative; its watch stream only wakes the poller up. The poller runs
in a background event loop, and the launcher collects requests and notices when it has time. So an unreachable
coordinator delays nothing: training continues, and the outage is reported once.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, assert_never

import grpc

from paceline.coordinator.client.aio import NotNowError, RefusedError, UnreachableError
from paceline.coordinator.client.blocking import Background
from paceline.coordinator.client.endpoints import Endpoints
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core.clock import ActiveTimeout, monotonic_s
from paceline.launchers.supervision import Effect, Granted, OperatorRequest, OperatorResponse, Refused

KINDS = ("add", "remove", "checkpoint", "stop")
EXECUTED_BY_CLIENT = "client"  # the executor of an action that is only recorded here
POLL_S = 2.0  # poll interval without a wake-up by the watch stream
NODE_TIMEOUT_S = 1.0  # timeout per node while the run stops
NO_LEADER_TIMEOUT_S = 5.0  # a stopping run waits this long for a coordinator without a leader
# The same, where most nodes refuse connections: there is no majority that could elect a leader.
NO_MAJORITY_TIMEOUT_S = 1.0
OUTCOMES = {pb.RUN_FINISHED: "finished", pb.RUN_STOPPED: "stopped", pb.RUN_FAILED: "failed"}
ELECTION_TIMEOUT_S = 3.0  # allowed for electing a leader; after it the coordinator counts as unreachable


class ActionPoller:
    """Source of operator requests for the elastic supervisor (launchers/elastic.py)."""

    def __init__(
        self,
        endpoints: Endpoints,
        run: str,
        *,
        is_held: Callable[[str], bool] = lambda _: False,
        more_messages: Callable[[], list[str]] = list,
        last_checkpoint: Callable[[], str] = str,
    ) -> None:
        """`is_held`: whether an operator has paused this participant; `more_messages`: further notices.

        `last_checkpoint` describes the checkpoint from which a run that stops now can be resumed.
        """
        self._last_checkpoint = last_checkpoint
        self._is_alone = False
        self._leader_check: asyncio.Task[None] | None = None
        self._endpoints = endpoints
        self._run = run
        self._is_stopped = is_held
        self._more_messages = more_messages
        self._lock = threading.Lock()
        self._requests: list[OperatorRequest] = []
        self._notices: list[str] = []
        self._seen: set[int] = set()  # actions that were passed to the launcher
        self._responses: list[OperatorResponse] = []  # not yet reported to the coordinator
        self._open: dict[int, Granted] = {}  # accepted, effect not seen yet
        self._saved_before: dict[int, int] = {}  # newest checkpoint when an action came, by its number
        self._generation = 0
        self._members: dict[str, int] = {}  # pids of the last known members, by name
        self._given_up: dict[str, int] = {}
        self._unreachable_since_s: float | None = None
        self._last_notice = ""
        self._background = Background()
        self._background.call(self._start())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._background.call(self._stop())
        finally:
            self._background.close()

    # Called by the launcher.

    def requests(self) -> list[OperatorRequest]:
        with self._lock:
            requests = self._requests
            self._requests = []
        return requests

    def take_messages(self) -> list[str]:
        with self._lock:
            notices = self._notices
            self._notices = []
        return [*notices, *self._more_messages()]

    def stopping(self) -> None:
        self._background.begin(self._start_leader_check)

    def is_alone(self) -> bool:
        return self._is_alone

    def given_up(self) -> dict[str, int]:
        with self._lock:
            given_up = dict(self._given_up)
        return {worker: pid for worker, pid in given_up.items() if not self._is_stopped(worker)}

    def answer(self, given: OperatorResponse) -> None:
        self._background.call(self._queue_response(given))

    # In the background event loop.

    async def _start(self) -> None:
        self._client = self._endpoints.client(ELECTION_TIMEOUT_S)
        self._wakeup = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    def _start_leader_check(self) -> None:
        if self._leader_check is None:
            self._leader_check = asyncio.create_task(self._check_leader())

    async def _check_leader(self) -> None:
        """While the run stops: give the coordinator up if it has no leader for the timeout."""
        while not self._is_alone:
            nodes, refused = await self._count_nodes()
            silent_s = (
                NO_MAJORITY_TIMEOUT_S if 2 * (len(nodes) - refused) <= len(nodes) else NO_LEADER_TIMEOUT_S
            )
            timeout = ActiveTimeout(silent_s)
            leader = asyncio.ensure_future(self._client.find_leader())
            try:
                while not leader.done() and (wait_s := timeout.next_s()):
                    await asyncio.wait((leader,), timeout=wait_s)
                if leader.done() and leader.exception() is None:
                    await asyncio.sleep(POLL_S)
                    continue
            finally:
                leader.cancel()
            # Counted again, so that the message has the numbers at the time of giving up.
            nodes, refused = await self._count_nodes()
            await self._give_up(sum(nodes.values()), len(nodes))

    async def _give_up(self, answering: int, known: int) -> None:
        problem = "no majority" if 2 * answering <= known else "no leader"
        checkpoint = await asyncio.to_thread(self._last_checkpoint)
        self._notify(
            f"the coordinator has {problem} ({answering} of {known} nodes answer): stopping without it;"
            f" {checkpoint or 'there is no checkpoint yet'}"
        )
        self._is_alone = True
        self._client.give_up()

    async def _count_nodes(self) -> tuple[dict[str, bool], int]:
        """Which of the known nodes answer, by address, and how many refuse connections."""
        nodes: dict[str, bool] = {}
        refused = 0
        pending = set(self._endpoints.addresses)
        while pending:
            statuses = await asyncio.gather(*(self._status(address) for address in sorted(pending)))
            for address, status in zip(sorted(pending), statuses, strict=True):
                nodes[address] = isinstance(status, pb.NodeStatus)
                refused += status is grpc.StatusCode.UNAVAILABLE
            peers = [p for status in statuses if isinstance(status, pb.NodeStatus) for p in status.peers]
            pending = {peer.address for peer in peers if peer.address and peer.is_voter} - set(nodes)
        return nodes, refused

    async def _status(self, address: str) -> pb.NodeStatus | grpc.StatusCode:
        try:
            async with asyncio.timeout(NODE_TIMEOUT_S):
                return await self._client.of_node(address, "Status", pb.StatusRequest())
        except TimeoutError:
            return grpc.StatusCode.DEADLINE_EXCEEDED
        except grpc.aio.AioRpcError as error:
            return error.code()

    async def _stop(self) -> None:
        for task in [self._task, *([] if self._leader_check is None else [self._leader_check])]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        with suppress(RefusedError, UnreachableError):
            await self._report_end()
        await self._client.close()

    async def _report_end(self) -> None:
        granted = [given for given in self._responses if isinstance(given, Granted)]
        granted += self._open.values()
        stops = {given.number for given in granted if given.effect is Effect.END}
        outcome = ""
        if stops:
            view = await self._client.read("Runs.Get", pb.GetRun(run=self._run), pb.RunView)
            outcome = OUTCOMES.get(view.run.phase, "")
        for number in [given.number for given in self._responses] + list(self._open):
            if number in stops and outcome:
                await self._report(number, pb.ACTION_EFFECT_SEEN, f"the run ended: {outcome}")
            else:
                await self._report(number, pb.ACTION_FAILED, "the run ended before")

    async def _queue_response(self, given: OperatorResponse) -> None:
        self._responses.append(given)
        self._wakeup.set()

    async def _follow(self) -> None:
        watching: asyncio.Task[None] | None = None
        try:
            while not self._is_alone:
                try:
                    leader = await self._client.find_leader()
                    await self._poll()
                    self._report_recovery()
                    if watching is None or watching.done():
                        watching = asyncio.create_task(self._watch(leader))
                except UnreachableError as error:
                    if not self._is_alone:
                        self._report_outage(error)
                    continue
                except RefusedError as error:
                    self._notify(f"cannot read requests from the coordinator: {error.what}")
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._wakeup.wait()
                self._wakeup.clear()
        finally:
            if watching is not None:
                watching.cancel()

    async def _watch(self, leader: str) -> None:
        # When the stream breaks, the next poll starts another one.
        with suppress(grpc.aio.AioRpcError):
            async for _ in self._client.watch(leader, pb.WatchRequest(run=self._run)):
                self._wakeup.set()

    async def _poll(self) -> None:
        await self._take_new_requests()
        while self._responses:
            given = self._responses[0]
            if isinstance(given, Refused):
                await self._report(given.number, pb.ACTION_REFUSED, given.reason)
            else:
                await self._report(given.number, pb.ACTION_ACCEPTED, given.reason)
                self._open[given.number] = given
            del self._responses[0]
        view = await self._client.read("Runs.Get", pb.GetRun(run=self._run), pb.RunView)
        self._generation = view.generation.number
        await self._update_lost(view)
        for given in list(self._open.values()):
            if text := await self._observed_effect(given, view.generation):
                await self._report(given.number, pb.ACTION_EFFECT_SEEN, text)
                del self._open[given.number]

    async def _take_new_requests(self) -> None:
        listed = await self._client.read("Actions.List", pb.ListActions(run=self._run), pb.ActionList)
        new = [action for action in listed.actions if self._is_new(action)]
        if any(action.kind == "checkpoint" for action in new):
            saved_step = await self._newest_checkpoint()
            self._saved_before |= {action.action: saved_step for action in new}
        with self._lock:
            self._seen.update(action.action for action in new)
            self._requests.extend(map(_operator_request, new))

    def _is_new(self, action: pb.Action) -> bool:
        is_for_run = action.kind in KINDS and action.details.get("executor") != EXECUTED_BY_CLIENT
        return is_for_run and action.phase == pb.ACTION_REQUESTED and action.action not in self._seen

    async def _observed_effect(self, given: Granted, generation: pb.Generation) -> str:
        """Description of the effect; empty: none yet."""
        match given.effect:
            case Effect.WORKERS:
                if has_effect(given, generation):
                    return f"generation {generation.number} has {len(generation.workers)} workers"
            case Effect.CHECKPOINT:
                step = await self._newest_checkpoint()
                if step > self._saved_before.get(given.number, 0):
                    return f"step {step} is on disk"
            case Effect.END:
                pass  # reported when the run has ended
            case _:
                assert_never(given.effect)
        return ""

    async def _newest_checkpoint(self) -> int:
        """The step of the newest catalogued checkpoint; 0: there is none."""
        request = pb.ListCheckpoints(run=self._run)
        listed = await self._client.read("Checkpoints.List", request, pb.CheckpointList)
        return max((checkpoint.step for checkpoint in listed.checkpoints), default=0)

    async def _update_lost(self, view: pb.RunView) -> None:
        """Find members that the coordinator lost by an expired lease: gone, without having left."""
        living = {worker.worker: _pid(worker) for worker in view.workers}
        missing = {worker: pid for worker, pid in self._members.items() if living.get(worker) != pid}
        self._members |= living
        if missing:
            everyone = pb.ListWorkers(run=self._run, with_ended=True)
            known = await self._client.read("Members.List", everyone, pb.WorkerList)
            lost = {(w.worker, _pid(w)) for w in known.workers if w.phase == pb.WORKER_LOST}
            missing = {worker: pid for worker, pid in missing.items() if (worker, pid) in lost}
        with self._lock:
            self._given_up = missing

    async def _report(self, number: int, phase: pb.ActionPhase, note: str) -> None:
        with suppress(NotNowError):  # already reported; only the reply was lost
            report = pb.ReportAction(action=number, phase=phase, note=note)
            await self._client.write("Actions.Report", report, pb.Action)

    def _report_outage(self, error: UnreachableError) -> None:
        if self._unreachable_since_s is not None:
            return
        self._unreachable_since_s = monotonic_s()
        self._notify(
            f"the coordinator does not answer: {error.what}; training continues in generation"
            f" {self._generation}, but workers cannot join or leave until it is back"
        )

    def _report_recovery(self) -> None:
        if self._unreachable_since_s is not None:
            silent_s = ELECTION_TIMEOUT_S + monotonic_s() - self._unreachable_since_s
            self._unreachable_since_s = None
            self._notify(
                f"the coordinator answers again, after {silent_s:.1f} s, in generation {self._generation}"
            )

    def _notify(self, text: str) -> None:
        if text != self._last_notice:
            self._last_notice = text
            with self._lock:
                self._notices.append(text)


def _pid(worker: pb.Worker) -> int:
    pid = worker.facts.get("pid", "")
    return int(pid) if pid.isdecimal() else 0


def has_effect(given: Granted, generation: pb.Generation) -> bool:
    """Whether the generation has all added workers and none of the removed ones."""
    workers = set(generation.workers)
    if not workers or generation.is_revoked:
        return False
    return workers.issuperset(given.start) and workers.isdisjoint(given.leave)


def _operator_request(action: pb.Action) -> OperatorRequest:
    count = action.details.get("count", "1")
    return OperatorRequest(action.action, action.kind, int(count) if count.isdecimal() else 0, action.target)
